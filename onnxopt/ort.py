"""The only door to onnxruntime: whoever runs a model through us does not tell its maker."""

from __future__ import annotations

import os
from typing import Any


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


def path_for(path: str) -> str:
    """`path` as onnxruntime takes it, which is in UTF-8, whatever the locale. Raises OSError for what is not."""
    try:
        return os.fsencode(path).decode()
    except UnicodeDecodeError:
        raise OSError("it takes no path that is not in UTF-8") from None
