"""Which version of a package is installed."""

from __future__ import annotations

from importlib import import_module

from onnxopt.runtime.ort import onnxruntime


def version_of(package: str) -> str:
    """As its installer wrote it; as the package says itself where none of that name was installed: onnxruntime comes
    as onnxruntime-gpu, too, and onnxopt may run from a folder of its source. Raises ImportError."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        module = onnxruntime() if package == "onnxruntime" else import_module(package)
        return str(getattr(module, "__version__", "unknown"))
