"""Output for build systems: GitHub's annotations, and JUnit XML."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree import ElementTree

from onnxopt.plaintext import cleaned, harmless
from onnxopt.reporting.batch import said, told


def workflow_commands(outcomes: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Returns workflow commands: an error for a failure, a warning for rewrites left out.

    See "Workflow commands for GitHub Actions". Percent signs and line ends are escaped, in properties colons and commas
    too.
    """
    for o in cleaned(outcomes):
        if not o["code"]:
            continue
        kind = "warning" if o["code"] == 3 else "error"
        text = "\n".join(filter(None, [said(o), *told(o), o["hint"]]))
        yield f"::{kind} file={_property(_in_repository(o['source']))},title=onnxopt::{_data(text)}"


def _in_repository(path: str) -> str:
    """Returns a path relative to the root of the repository, independent of the current folder."""
    root = os.environ.get("GITHUB_WORKSPACE")
    if not root or "://" in path:
        return path
    relative = os.path.relpath(os.path.realpath(path), os.path.realpath(root))
    return path if relative.startswith(os.pardir) else relative


def _data(text: str) -> str:
    return harmless(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def junit(outcomes: Sequence[dict[str, Any]]) -> bytes:
    """A test suite with a case for each model: a failure where a check failed (exit code 1), an error for the rest."""
    failures = sum(o["code"] == 1 for o in outcomes)
    errors = sum(o["code"] in (2, 4) for o in outcomes)
    seconds = f"{sum(o['seconds'] for o in outcomes):.3f}"
    counts = {"tests": str(len(outcomes)), "failures": str(failures), "errors": str(errors), "time": seconds}
    root = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(root, "testsuite", {"name": "onnxopt", **counts})
    for o in cleaned(outcomes):  # XML 1.0 has no control characters
        case = ElementTree.SubElement(
            suite,
            "testcase",
            {"classname": "onnxopt.optimize", "name": o["source"], "time": f"{o['seconds']:.3f}"},
        )
        if o["code"] in (1, 2, 4):
            kind = "failure" if o["code"] == 1 else "error"
            failed = ElementTree.SubElement(case, kind, {"message": said(o)})
            failed.text = "\n".join(filter(None, [*told(o, full=True), o["hint"]]))
        else:
            ElementTree.SubElement(case, "system-out").text = "\n".join([said(o), *told(o, full=True)])
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"
