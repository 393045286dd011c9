"""Third-party runtimes: onnxruntime, the threads of numpy's BLAS, and versions of packages."""
