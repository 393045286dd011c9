"""Third-party runtimes: onnxruntime (no other module imports it), the threads of numpy's BLAS, versions of packages."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any


def let_threads_sleep() -> None:
    """Make idle threads of numpy's BLAS sleep. Call before numpy is imported; child processes inherit the setting.

    OpenBLAS starts a thread for each core, which spins for some 50 ms after the import: half of the cost of importing
    numpy, on a core that the verifier's process needs. The threads wait 2 to the power of OPENBLAS_THREAD_TIMEOUT
    cycles before they sleep (default 26, at least 4). A value set by the user stays. Source: OpenBLAS, USAGE.md and
    driver/others/blas_server.c
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")


def onnxruntime() -> Any:
    """Return the module onnxruntime, with telemetry off. Raises ImportError.

    Telemetry leaves files in the home and temporary folders, and needs the network. onnxruntime reads
    ORT_DISABLE_TELEMETRY when it is loaded; child processes inherit the variable. A value set by the user stays.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime as rt

    if os.environ["ORT_DISABLE_TELEMETRY"] != "0":
        rt.disable_telemetry_events()  # needed on Windows, where events go to the system
    return rt


class PathError(OSError):
    """onnxruntime cannot open a path, for a reason independent of the file."""


def path_for(path: str) -> str:
    """Return `path` as onnxruntime accepts it: in UTF-8 in every locale. Raises PathError if `path` is not UTF-8."""
    try:
        return os.fsencode(path).decode()
    except UnicodeDecodeError:
        raise PathError("it takes no path that is not in UTF-8") from None


def source_for(path: str) -> tuple[str | bytes, str]:
    """Return (source, folder): the path of a model, or the model's bytes and the folder of its data files.

    The bytes are for a path that onnxruntime does not accept. Raises PathError if it does not accept the folder either,
    and the model may have data files.
    """
    try:
        return path_for(path), ""
    except PathError:
        with open(path, "rb") as f:
            data = f.read()
        return data, folder_for(os.path.dirname(os.path.abspath(path)), data)


def folder_for(folder: str, model: bytes) -> str:
    """Return the folder of a serialized model's data files as onnxruntime accepts it.

    Empty if onnxruntime does not accept the path and the model has no data files. Raises PathError if it has some.
    """
    try:
        return path_for(folder)
    except PathError:
        if b"location" in model:  # the key of every reference to another file
            raise
        return ""


def version_of(package: str) -> str:
    """Return the installed version of a package. Raises ImportError.

    Without a distribution of the name, the version in the module: onnxruntime may come as onnxruntime-gpu, and onnxopt
    may run from a source folder.
    """
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        module = onnxruntime() if package == "onnxruntime" else import_module(package)
        return str(getattr(module, "__version__", "unknown"))
