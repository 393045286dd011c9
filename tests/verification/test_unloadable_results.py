"""A result that was not compared is at least loaded: an unloadable result never replaces a loadable original."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from onnxopt.verification import DIFFERENT, UNVERIFIED, Verifier
from tests.samples import parsed

# The inputs must be strings of numbers, which no random string is.
TEXT = "g (string[2] x, float[2,3] z) => (float[2] y, float[2,3] w) {{ y = Cast <to = 1> (x)  {0} }}"
LOADED = "w = Softmax <axis = 1> (z)"
BROKEN = "w = Softmax <axis = 9> (z)"


def verdict(folder: Path, original: str, result: str) -> tuple[str, bool, str]:
    files = [folder / "a.onnx", folder / "b.onnx"]
    for file, text in zip(files, (original, result)):
        onnx.save(parsed(TEXT.format(text)), file)
    with Verifier(files[0]) as verifier:
        verifier.submit(files[1])
        found = verifier.finish()
    return found.status, found.is_unloaded, found.message


def test_an_unloadable_result_is_refused(tmp_path: Path) -> None:
    status, unloaded, message = verdict(tmp_path, LOADED, BROKEN)
    assert (status, unloaded) == (DIFFERENT, True)
    assert message.startswith("the result cannot be loaded: ")


@pytest.mark.parametrize("original", [LOADED, BROKEN])
def test_a_result_of_an_unrunnable_original_is_not_verified(original: str, tmp_path: Path) -> None:
    """A result of an original that does not load or run is "not verified".

    The verdict makes no claim about the load of the result.
    """
    status, unloaded, message = verdict(tmp_path, original, original)
    assert (status, unloaded) == (UNVERIFIED, False)
    assert "the original" in message
