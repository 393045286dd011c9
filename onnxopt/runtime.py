"""Third-party runtimes: onnxruntime, the threads of numpy's BLAS, and versions of packages."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

# Threads that wait sleep: the BLAS below numpy has one for each core, which spins for some 50 ms from its import on.
#
# That is half of what importing numpy costs, and the verifier, whose process works beside ours, needs the core.


def let_threads_sleep() -> None:
    """Called before numpy is imported, which is when OpenBLAS looks; processes that we start inherit it.

    Its threads wait 2 to the power of that many cycles before they sleep, 26 unless told, 4 at least. Who wants it
    otherwise says so in OPENBLAS_THREAD_TIMEOUT. (OpenBLAS, USAGE.md and driver/others/blas_server.c)
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")


# The only door to onnxruntime: whoever runs a model through us does not tell its maker.


def onnxruntime() -> Any:
    """The module, with telemetry off: it would leave files in the home and temporary folders, and ask for the network.

    Set before it is loaded, which is when it looks; processes that we start inherit it. Who wants it says so in
    ORT_DISABLE_TELEMETRY. Raises ImportError.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime as rt

    if os.environ["ORT_DISABLE_TELEMETRY"] != "0":
        rt.disable_telemetry_events()  # what Windows asks, whose events are the system's
    return rt


class PathError(OSError):
    """A path that onnxruntime does not take, which says nothing about what lies there."""


def path_for(path: str) -> str:
    """`path` as onnxruntime takes it, which is in UTF-8, whatever the locale. Raises PathError for what is not."""
    try:
        return os.fsencode(path).decode()
    except UnicodeDecodeError:
        raise PathError("it takes no path that is not in UTF-8") from None


def source_for(path: str) -> tuple[str | bytes, str]:
    """What to load for the model at `path`: its path, or its bytes where onnxruntime does not take that; and the folder
    of these, where other files of the model lie. Raises PathError if it does not take that either, and it may have any.
    """
    try:
        return path_for(path), ""
    except PathError:
        with open(path, "rb") as f:
            data = f.read()
        return data, folder_for(os.path.dirname(os.path.abspath(path)), data)


def folder_for(folder: str, model: bytes) -> str:
    """`folder`, where other files of a serialized model may lie, as onnxruntime takes it; empty if it does not, and
    there are none. Raises PathError."""
    try:
        return path_for(folder)
    except PathError:
        if b"location" in model:  # as each reference to another file has it
            raise
        return ""


# Which version of a package is installed.


def version_of(package: str) -> str:
    """As its installer wrote it; as the package says itself where none of that name was installed: onnxruntime comes
    as onnxruntime-gpu, too, and onnxopt may run from a folder of its source. Raises ImportError."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        module = onnxruntime() if package == "onnxruntime" else import_module(package)
        return str(getattr(module, "__version__", "unknown"))
