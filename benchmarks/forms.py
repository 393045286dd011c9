"""What forms cost in onnxruntime on CPU; writes docs/forms.md and onnxopt/pipeline/measured.json.

    python benchmarks/forms.py [--seconds 3] [--form NAME] [--onnxruntime FOLDER ...]

Each pair of form_pairs.py runs in turn, one thread, processor time, and gives the ratio of B to A with its 95 %
interval: below one, B is faster. Measured is the installed onnxruntime; with FOLDER (where another version is
installed: pip install --no-deps --target FOLDER onnxruntime==VERSION) that one, and what was measured of others before
stays. Asked is also which opset a version loads, and of which operators it has no kernel in newer opsets.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
from form_pairs import pairs
from tools import ROOT

from onnxopt.comparison.latency import BenchOptions, bench
from onnxopt.pipeline.measured import FORMS, LACKS, LOADS

PAGE = ROOT / "docs" / "forms.md"
DATA = ROOT / "onnxopt" / "pipeline" / "measured.json"

# In a process with the onnxruntime that is asked: (version, newest opset that it loads, kernels). A kernel is given for
# a version of an operator that it starts at, or whose span it says.
_ASK = """
import json, onnxruntime as rt
from onnx import helper, TensorProto
from onnxruntime.capi import onnxruntime_pybind11_state as state
rt.set_default_logger_severity(4)
def loads(opset, newest):
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
    imports = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=helper.find_min_ir_version_for(imports))
    try:
        return bool(rt.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]))
    except Exception:
        return False
newest = max(n for n in range(7, NEWEST + 1) if loads(n, NEWEST))
kernels = [(k.op_name, *k.version_range, sorted({t for ts in k.type_constraints.values() for t in ts}))
    for k in state.get_all_opkernel_def() if k.domain in ("", "ai.onnx") and k.provider == "CPUExecutionProvider"]
print(json.dumps([rt.__version__, newest, kernels]))
"""
_OPEN = (1 << 31) - 1  # the end of a kernel's span that is not known: it is taken for its first version alone


def asked() -> tuple[str, int, dict[str, int]]:
    """Returns (version, newest loadable opset, first opset without a kernel by operator)."""
    program = _ASK.replace("NEWEST", str(onnx.defs.onnx_opset_version()))
    told = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True).stdout
    version, newest, kernels = json.loads(told.splitlines()[-1])
    since: dict[str, set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and not schema.deprecated and schema.since_version <= newest:
            since.setdefault(schema.name, set()).add(schema.since_version)

    def types(operator: str, start: int) -> set[str]:
        spans = [(low, high, set(kinds) or {"any"}) for name, low, high, kinds in kernels if name == operator]
        found = [kinds for low, high, kinds in spans if low == start or (low <= start <= high < _OPEN)]
        return set().union(*found)

    lacks = {}
    for operator, starts in since.items():
        for start in sorted(starts, reverse=True):
            if types(operator, start) or not any(types(operator, older) for older in starts if older < start):
                break
            lacks[operator] = start
    return version, newest, dict(sorted(lacks.items()))


def measured(seconds: float, only: str) -> dict[str, dict[str, list[float]]]:
    """By form and size: (ratio, low, high); `only`: of this form."""
    found: dict[str, dict[str, list[float]]] = {}
    options = BenchOptions(seconds=seconds, threads=1, clock="processor")
    with tempfile.TemporaryDirectory() as name:
        files = [Path(name) / "a.onnx", Path(name) / "b.onnx"]
        for pair in (p for p in pairs() if only in ("", p.name)):
            for file, model in zip(files, (pair.a, pair.b)):
                onnx.save(model, file)
            result = bench(files, options)
            if result.failure:
                print(f"{pair.name}, {pair.size}: {result.failure}", file=sys.stderr)
                continue
            ratio = result.ratios[0]
            numbers = [round(ratio.value, 2), round(ratio.low or 0, 2), round(ratio.high or 0, 2)]
            found.setdefault(pair.name, {})[pair.size] = numbers
            print(f"{pair.name}, {pair.size}: {numbers}", file=sys.stderr, flush=True)
    return found


def newest_first(versions: object) -> list[str]:
    return sorted(versions, key=lambda v: [int(n) for n in v.split(".")], reverse=True)  # type: ignore[call-overload,no-any-return]


def write() -> None:
    """Write the data, and the page with the data."""
    loads, lacks, forms = ({v: table[v] for v in newest_first(table)} for table in (LOADS, LACKS, FORMS))
    text = json.dumps({"loads": loads, "lacks": lacks, "forms": forms}, indent=1)
    DATA.write_text(re.sub(r"\[[^]]*]", lambda numbers: json.dumps(json.loads(numbers[0])), text) + "\n")
    page = PAGE.read_text()
    for mark, table in (("forms", forms_table()), ("versions", versions_table())):
        start, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
        page = re.sub(f"{start}.*?{end}", lambda _, t=f"{start}\n{table}\n{end}": t, page, flags=re.DOTALL)  # type: ignore[misc]
    PAGE.write_text(page)


def forms_table() -> str:
    """A row a form and size: ratio and interval in the newest version, ratios in the others."""
    newest, *others = newest_first(FORMS)
    words = {(pair.name, pair.size): pair.form for pair in pairs()}
    rows = [f"| form | B in place of A | size | {newest} | 95 % | {' | '.join(others)} |"]
    rows.append("|---|---|---|---:|---|" + "---:|" * len(others))
    for (name, size), form in words.items():
        value, low, high = FORMS[newest][name][size]
        more = [f"{FORMS[v][name][size][0]:.2f}" if size in FORMS[v].get(name, {}) else "" for v in others]
        rows.append(f"| `{name}` | {form} | {size} | {value:.2f} | {low:.2f} to {high:.2f} | {' | '.join(more)} |")
    return "\n".join(rows)


def versions_table() -> str:
    rows = ["| onnxruntime | loads opset | kernel missing from opset … on |", "|---|---:|---|"]
    for v in newest_first(LOADS):
        by_opset: dict[int, list[str]] = {}
        for operator, opset in LACKS[v].items():
            by_opset.setdefault(opset, []).append(operator)
        told = "; ".join(f"{opset}: {', '.join(names)}" for opset, names in sorted(by_opset.items()))
        rows.append(f"| {v} | {LOADS[v]} | {told} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3, help="of a measurement (default: %(default)s)")
    parser.add_argument("--form", default="", help="measure this one alone; the others stay")
    parser.add_argument("--onnxruntime", nargs="+", default=[""], metavar="FOLDER", help="where another version is")
    options = parser.parse_args()
    for folder in options.onnxruntime:
        os.environ["PYTHONPATH"] = folder
        version, loads, lacks = asked()
        print(f"onnxruntime {version} on {platform.machine()}", file=sys.stderr)
        name = ".".join(version.split(".")[:2])
        LOADS[name], LACKS[name] = loads, lacks
        if options.seconds:
            FORMS[name] = FORMS.get(name, {}) | measured(options.seconds, options.form)
        write()


if __name__ == "__main__":
    main()
