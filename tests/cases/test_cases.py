"""Every rule as a specification: a text model, what fires, what is left, why it is declined.

A `*.cases` file holds cases separated by lines of `---`. A trap may also stand below its guard, in the module of the
pass, as a comment that begins with `# case: NAME`. A case is an ONNX text model with a leading comment:

    # Conv-BatchNormalization folds.              the case's name
    # pass: conv-bn-folding                       passes to run to their fixed point, in order
    # expect: fold_conv_bn=1                      hits of each rule (others: none); nothing: `expect: none`
    # skip: fold_conv_bn "Conv output used elsewhere"      a declined reason that must have been counted
    # left: Conv=1 Relu=1                         operators left, in all scopes (optional)
    # options: max_bytes=0                         options of the last pass (optional)
    # weights: normal w1 b1                       as in models/build.py
    # feed: index 0 4                             integers for an input: from 0 to 3 (default 0 to 1)
    # runs: no                                    no runtime runs it: an old operator, or what a stranger may send

Each is run, its invariants checked after every pass, its result saved, checked by onnx, compared with the
original in onnxruntime with graph optimizations off (bit for bit where only exact passes ran, NaN, infinities and
-0.0 included), and optimized once more, which must change nothing.
"""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as rt
import pytest

import onnxopt.passes
from onnxopt.graph import Model, read_model, write_model
from onnxopt.pipeline import Fixpoint, Pass, PassContext, PipelineReport, RewritePass, all_passes, execute, get_pass
from onnxopt.pipeline.instruments import CheckEach
from tests.runtime import plain_session
from tests.samples import build_text

HERE = Path(__file__).parent
SIZES = {"empty": 0, "one": 1, "N": 2, "batch": 2, "S": 3, "H": 8, "W": 6}


@dataclass
class Case:
    name: str
    text: str
    passes: list[str] = field(default_factory=list)
    hits: dict[str, int] = field(default_factory=dict)
    skips: list[tuple[str, str]] = field(default_factory=list)
    left: dict[str, int] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    feeds: dict[str, tuple[int, int]] = field(default_factory=dict)
    runs: bool = True

    def build(self) -> onnx.ModelProto:
        return build_text(self.text)

    def pipeline(self) -> list[Pass]:
        passes = [get_pass(name)() for name in self.passes]
        if self.options:
            passes[-1] = dataclasses.replace(passes[-1], **self.options)
        return passes


def parse_case(file: Path, text: str) -> Case:
    lines = text.strip().splitlines()
    case = Case(f"{file.stem}: {lines[0].lstrip('# ').rstrip('.')}", "\n".join(lines) + "\n")
    for line in lines:
        if not line.startswith("#"):
            break
        key, _, rest = line.lstrip("# ").partition(":")
        rest = rest.strip()
        if key == "pass":
            case.passes = [p.strip() for p in rest.split(",")]
        elif key == "expect" and rest != "none":
            case.hits = {k: int(v) for k, v in (item.split("=") for item in rest.split())}
        elif key == "skip":
            rule, reason = re.fullmatch(r'(\w+) "(.*)"', rest).groups()  # type: ignore[union-attr]
            case.skips.append((rule, reason))
        elif key == "left":
            case.left = {k: int(v) for k, v in (item.rsplit("=", 1) for item in rest.split())}
        elif key == "options":
            values = {"true": True, "false": False}
            case.options = {k: values[v] if v in values else int(v) for k, v in (i.split("=") for i in rest.split())}
        elif key == "feed":
            name, low, high = rest.split()
            case.feeds[name] = (int(low), int(high))
        elif key == "runs":
            case.runs = rest != "no"
    assert case.passes, f"{case.name}: no pass"
    return case


def all_cases() -> list[Case]:
    written = [
        parse_case(file, block)
        for file in sorted(HERE.glob("*.cases"))
        for block in re.split(r"^---+$", file.read_text(), flags=re.MULTILINE)
        if block.strip()
    ]
    modules = sorted(Path(onnxopt.passes.__file__).parent.rglob("*.py"))
    return written + [case for file in modules for case in cases_below_guards(file.read_text(encoding="utf-8"))]


def cases_below_guards(source: str) -> list[Case]:
    """Returns the cases in comments of a module: `# case: NAME`, further keys, a model."""
    found = []
    for block in re.findall(r"^ *# case: ((?:.*\n)(?: *#.*\n)+)", source, flags=re.MULTILINE):
        text = re.sub(r"^ *# ", "", block, flags=re.MULTILINE)
        header, model = re.split(r"^(?=<)", text, maxsplit=1, flags=re.MULTILINE)
        comments = "".join(f"# {line}\n" for line in header.splitlines())
        (name,) = re.findall(r"^pass: ([\w-]+)", header, flags=re.MULTILINE)
        found.append(parse_case(Path(name.replace("-", "_")), comments + model))
    assert len(found) == source.count("# case: "), "a case without keys"
    return found


CASES = all_cases()


def turn(case: Case) -> int:
    """Returns the turn of a case in a sample: determined by its name, equal on every machine."""
    return zlib.crc32(case.name.encode())


def run(proto: onnx.ModelProto, passes: list[Pass]) -> tuple[Model, PipelineReport]:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    model = read_model(copy)
    return model, execute(Fixpoint(tuple(passes)), model, PassContext(opt_level=3, instruments=[CheckEach()]))


def size_of(symbol: str | None, seed: int) -> int:
    """Returns the former size of a dim that a mutation made a symbol, as in D8."""
    if symbol and (was := re.fullmatch(r"D(\d+)(_\d+)?", symbol)):
        return int(was[1])
    return SIZES.get(symbol or "", 2) + seed * (symbol != "one")


def make_feeds(s: rt.InferenceSession, case: Case, seed: int, special: bool) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    feeds = {}
    for i in s.get_inputs():
        shape = [d if isinstance(d, int) else size_of(d, seed) for d in i.shape]
        kind = i.type.removeprefix("tensor(").removesuffix(")")
        if kind == "bool":
            feeds[i.name] = rng.integers(0, 2, shape).astype(bool)
        elif kind == "string":
            feeds[i.name] = np.full(shape, "text", object)
        elif "int" in kind:
            feeds[i.name] = rng.integers(*case.feeds.get(i.name, (0, 2)), shape).astype(kind)
        else:
            dtype = {"float": np.float32, "double": np.float64, "float16": np.float16}[kind]
            data = rng.standard_normal(shape).astype(dtype)
            if special:
                flat = data.reshape(-1)
                flat[: min(5, flat.size)] = np.array([-0.0, np.inf, -np.inf, np.nan, 0.0], dtype)[: flat.size]
            feeds[i.name] = data
    return feeds


def assert_same_results(case: Case, before: onnx.ModelProto, after: onnx.ModelProto, exact: bool) -> None:
    a, b = plain_session(before), plain_session(after)
    assert [o.name for o in a.get_outputs()] == [o.name for o in b.get_outputs()]
    assert [i.name for i in a.get_inputs()] == [i.name for i in b.get_inputs()]
    for seed in (0, 1):
        feeds = make_feeds(a, case, seed, special=exact and seed == 1)
        for o, x, y in zip(a.get_outputs(), a.run(None, feeds), b.run(None, feeds)):
            if not isinstance(x, np.ndarray):
                assert str(x) == str(y), o.name
                continue
            assert x.dtype == y.dtype, o.name
            assert x.shape == y.shape, o.name
            if x.dtype.kind != "f":
                assert np.array_equal(x, y), o.name
            elif exact:
                same = (x == y) & (np.signbit(x) == np.signbit(y)) | (np.isnan(x) & np.isnan(y))
                assert same.all(), f"{o.name}: not bit for bit"
            else:
                limit = 1e-2 if x.dtype == np.float16 or "convert-dtype" in case.passes else 1e-5
                finite = np.isfinite(x)
                assert np.array_equal(x[~finite], y[~finite], equal_nan=True), o.name
                x, y = x[finite], y[finite]
                assert np.abs(x.astype(float) - y).max(initial=0) <= limit * max(1.0, np.abs(x).max(initial=0)), o.name


def check_what_happened(case: Case, model: Model, report: PipelineReport) -> None:
    # Cleaning up after the pass that a case is about is not what it is about.
    about = [p for p in report.passes if p.name != "dead-code" or case.passes[0] == "dead-code"]
    hits = {name: r.hits for p in about for name, r in p.rules.items() if r.hits}
    assert hits == case.hits, report.passes
    declined = {(name, reason) for p in report.passes for name, r in p.rules.items() for reason in r.declined}
    for skip in case.skips:
        assert skip in declined, declined
    if case.left is not None:
        assert Counter(node.op for node in model.nodes()) == case.left


@pytest.mark.usefixtures("kept_worker")
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_case(case: Case) -> None:
    before = case.build()
    model, report = run(before, case.pipeline())
    check_what_happened(case, model, report)
    after = onnx.ModelProto()
    after.CopyFrom(write_model(model))
    if case.runs:
        onnx.checker.check_model(after, full_check=True)
        assert_same_results(case, before, after, exact=all(p.info.opt_level <= 1 for p in case.pipeline()))
    again, _ = run(after, case.pipeline())
    assert again.version == 0, "a second run changes something"


def test_every_rule_fires() -> None:
    fired = {name for c in CASES for name, n in c.hits.items() if n}
    rules = [r for cls in all_passes().values() if issubclass(cls, RewritePass) for r in cls.rules]
    assert not [r.name for r in rules if r.name not in fired], "rules that no case fires"
