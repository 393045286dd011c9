"""Integers of an operator that may be int32: allowed by schemas, and supported by onnxruntime."""

from __future__ import annotations

from collections import defaultdict

import onnx
import onnxruntime

from onnxopt.analysis.int64 import NO_KERNEL

WIDE, NARROW = "tensor(int64)", "tensor(int32)"


def test_operators_without_a_kernel_are_known() -> None:
    """Of each kernel with int64 in one place there is one with int32 there, and all else alike."""
    kernels = defaultdict(list)
    for k in onnxruntime.capi.onnxruntime_pybind11_state.get_all_opkernel_def():
        if k.provider == "CPUExecutionProvider" and k.domain == "":
            kernels[k.op_name, tuple(k.version_range)].append({s: {*kinds} for s, kinds in k.type_constraints.items()})
    lacking, asked = set(), 0
    for schema in onnx.defs.get_all_schemas_with_history():
        symbols = [c.type_param_str for c in schema.type_constraints if {WIDE, NARROW} <= {*c.allowed_type_strs}]
        for (name, (low, high)), found in kernels.items():
            if schema.domain or name != schema.name or not low <= schema.since_version <= high:
                continue
            for symbol in symbols:
                of_wide = [k for k in found if WIDE in k.get(symbol, ())]
                asked += len(of_wide)
                for kernel in of_wide:
                    others = {s: kinds for s, kinds in kernel.items() if s != symbol}
                    takes = [k for k in found if NARROW in k.get(symbol, ())]
                    if not any(all(k.get(s, kinds) >= kinds for s, kinds in others.items()) for k in takes):
                        lacking.add(name)
    assert asked > 100
    assert lacking == {*NO_KERNEL}
