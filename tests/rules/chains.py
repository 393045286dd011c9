"""Chains of two or three operators that only move elements, for each pair of operators, rewritten by the passes.

    python -m tests.rules.chains [PAIR…] [--fired 200] [--seconds 600]

A pair is written `Gather-Transpose`: the first operator reads the source. Results are compared bit for bit in
onnxruntime without optimizations, on elements of arbitrary bits (also NaN with payload), and with symbolic dims of
size 0 or 1. The exit code is 1 if a fault was found.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from math import prod
from typing import Any, Final

import numpy as np
import onnx
import onnx.printer
from onnx import ModelProto, TensorProto, helper, numpy_helper

import onnxopt.passes  # noqa: F401 - registers them
from onnxopt.graph import read_model, write_model
from onnxopt.pipeline import Fixpoint, PassContext, execute, get_pass
from onnxopt.pipeline.instruments import CheckEach
from tests.runtime import plain_session

PASSES: Final = ("reshape-chains", "gather-axes")
NOTHING: Final = "nothing was compared"
TRIES: Final = 60  # draws for each chain on which a pass fires
FAR: Final = (1 << 63) - 1


class Chain:
    """A model that grows by one operator at a time; `dims`: the dims of the last result."""

    def __init__(self, seed: str) -> None:
        self.draw = draw = random.Random(seed)
        self.opset = draw.choice([9, 11, 13, 13, 17, 17, 18, 21, 23])
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[TensorProto] = []
        self.outputs: dict[str, int] = {}  # and their ranks
        self.dims = [draw.choice([1, 1, 2, 2, 3, 4, 6]) for _ in range(draw.choice([1, 2, 2, 3, 3, 4]))]
        self.source = list(self.dims)
        self.names: list[str | int] = [f"D{i}" if draw.random() < 0.3 else d for i, d in enumerate(self.dims)]
        self.feeds: dict[str, Any] = {}
        self.type = draw.choice(
            [np.float32, np.float32, np.float64, np.int64, np.uint8]
        )  # of float16 some kernels make single precision, and other NaN
        self.last = "x"
        if draw.random() < 0.1:  # of an unknown rank
            self._put("Identity", [self._given("shape_of_x", np.array(self.dims))])
            self.last = self._put("Reshape", ["x", self.last])

    def _given(self, name: str, array: np.ndarray[Any, Any]) -> str:
        """An input of integers, of a length that is known or not."""
        self.feeds[name] = array.astype(np.int64)
        return name

    def _put(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def _ints(self, *numbers: int, shape: Sequence[int] | None = None) -> str:
        array = np.array(numbers, np.int64).reshape(shape if shape is not None else [len(numbers)])
        self.constants.append(numpy_helper.from_array(array, f"c{len(self.constants)}"))
        return str(self.constants[-1].name)

    def _axis(self, axis: int, rank: int | None = None) -> int:
        return axis if self.draw.random() < 0.6 else axis - (len(self.dims) if rank is None else rank)

    def add(self, op: str) -> bool:
        """Add an operator; False if the dims have no place for it."""
        if not getattr(self, f"_{op.lower()}")():
            return False
        if self.draw.random() < 0.08:
            self.outputs[self.last] = len(self.dims)
        return prod(self.dims) <= 4096

    def _reshape(self) -> bool:
        draw, dims = self.draw, list(self.dims)
        if draw.random() < 0.3:
            total, dims = prod(dims), []
            for _ in range(draw.randint(0, 3)):
                part = draw.choice([n for n in range(1, total + 1) if total % n == 0] or [0])
                dims.append(part)
                total //= part or 1
            dims.append(total)
        for _ in range(draw.randint(1, 3)):
            i = draw.randrange(len(dims) + 1)
            if draw.random() < 0.3:
                dims.insert(i, 1)
            elif 0 < i < len(dims) and draw.random() < 0.6:
                dims[i - 1 : i + 1] = [dims[i - 1] * dims[i]]
            elif i < len(dims) and dims[i] > 3:
                part = draw.choice([n for n in range(2, dims[i]) if dims[i] % n == 0] or [1])
                dims[i : i + 1] = [part, dims[i] // part]
            elif i < len(dims) and dims[i] == 1 and len(dims) > 1:
                del dims[i]
        target = [0 if draw.random() < 0.4 and d == e else d for d, e in zip(dims, self.dims)] + dims[len(self.dims) :]
        if target and draw.random() < 0.6:
            target[draw.randrange(len(target))] = -1
        allow = {"allowzero": 1} if self.opset >= 14 and 0 not in target and draw.random() < 0.2 else {}
        given = self._ints(*target)
        if draw.random() < 0.1:  # of an unknown target
            given = self._given(f"t{len(self.nodes)}", np.array(target))
        self.last, self.dims = self._put("Reshape", [self.last, given], **allow), dims
        return True

    def _flatten(self) -> bool:
        axis = self.draw.randint(0, len(self.dims))
        written = axis if self.opset < 11 or axis == len(self.dims) else self._axis(axis)
        self.last = self._put("Flatten", [self.last], axis=written)
        self.dims = [prod(self.dims[:axis]), prod(self.dims[axis:])]
        return True

    def _ones(self, op: str, axes: list[int]) -> None:
        if self.opset < 13:
            self.last = self._put(op, [self.last], axes=axes)
        else:
            self.last = self._put(op, [self.last, self._ints(*axes)])

    def _squeeze(self) -> bool:
        ones = [i for i, d in enumerate(self.dims) if d == 1]
        gone = self.draw.sample(ones, self.draw.randint(1, len(ones))) if ones else []
        if gone:
            # Before opset 13, onnx infers another rank from axes out of order, where it knows the dims.
            listed = sorted(gone) if self.opset < 13 else gone
            self._ones("Squeeze", [i if self.opset < 11 else self._axis(i) for i in listed])
            self.dims = [d for i, d in enumerate(self.dims) if i not in gone]
        return bool(gone)

    def _unsqueeze(self) -> bool:
        put = self.draw.randint(1, 2)
        rank = len(self.dims) + put
        axes = self.draw.sample(range(rank), put)
        self._ones("Unsqueeze", [i if self.opset < 11 else self._axis(i, rank) for i in axes])
        rest = iter(self.dims)
        self.dims = [1 if i in axes else next(rest) for i in range(rank)]
        return True

    def _transpose(self) -> bool:
        perm = list(range(len(self.dims)))
        if self.draw.random() < 0.15:
            perm.reverse()
            self.last = self._put("Transpose", [self.last])
        else:
            self.draw.shuffle(perm)
            self.last = self._put("Transpose", [self.last], perm=perm)
        self.dims = [self.dims[i] for i in perm]
        return True

    def _slice(self) -> bool:
        if not self.dims:
            return False
        draw = self.draw
        axes = draw.sample(range(len(self.dims)), draw.randint(1, min(2, len(self.dims))))
        bounds = []
        for axis in axes:
            n, step = self.dims[axis], draw.choice([1, 1, 1, 2, 3, -1, -2]) if self.opset >= 10 else 1
            start, end = draw.choice([0, 0, 1, n - 1, -1, -n, 7]), draw.choice([n, FAR, 1, 2, n - 1, -1, 9])
            if draw.random() < 0.3:
                start = draw.randrange(n) if n else 0
                end, step = start + 1, 1
            if step < 0:
                start, end = draw.choice([-1, n - 1, FAR]), draw.choice([-FAR, 0, -n - 1, -2])
            bounds.append((start, end, self._axis(axis) if self.opset >= 10 else axis, step))
            first, last, _ = slice(start, end, step).indices(n)
            self.dims[axis] = len(range(first, last, step))
        starts, ends, where, steps = ([b[i] for b in bounds] for i in range(4))
        if self.opset < 10:
            self.last = self._put("Slice", [self.last], starts=starts, ends=ends, axes=where)
        else:
            listed = [starts, ends, where] + ([steps] if any(s != 1 for s in steps) or draw.random() < 0.3 else [])
            self.last = self._put("Slice", [self.last, *(self._ints(*v) for v in listed)])
        return True

    def _gather(self) -> bool:
        if not self.dims:
            return False
        draw, axis = self.draw, self.draw.randrange(len(self.dims))
        n, shape = self.dims[axis], draw.choice([[], [], [1], [2], [3], [2, 2], [1, 1]])
        if not n:
            return False
        low = -n if self.opset >= 11 else 0
        places = [draw.randrange(low, n) for _ in range(prod(shape))]
        if draw.random() < 0.25:
            shape, places = draw.choice([[n], [1, n], [n, 1]]), [*range(n)]
        if draw.random() < 0.2:
            index = self._given(f"i{len(self.nodes)}", np.array(places).reshape(shape))
        else:
            index = self._ints(*places, shape=shape)
        self.last = self._put("Gather", [self.last, index], axis=self._axis(axis))
        self.dims[axis : axis + 1] = shape
        return True

    def _gathernd(self) -> bool:
        if not self.dims or self.opset < 11 or 0 in self.dims:
            return False
        draw = self.draw
        n, shape = draw.randint(1, min(3, len(self.dims))), draw.choice([[1], [2], [3], [2, 2]])
        if draw.random() < 0.3:
            shape = self.dims[:n]
            places = np.indices(shape).reshape(n, -1).T.reshape(-1).tolist()
        else:
            places = [draw.randrange(-self.dims[i], self.dims[i]) for _ in range(prod(shape)) for i in range(n)]
        if len(places) > 200:
            return False
        self.last = self._put("GatherND", [self.last, self._ints(*places, shape=[*shape, n])])
        self.dims = [*shape, *self.dims[n:]]
        return True

    def _expand(self) -> bool:
        wide = [self.draw.choice([1, 2, 3]) if d == 1 else self.draw.choice([1, d]) for d in self.dims]
        made = [max(d, w) if d else 0 for d, w in zip(self.dims, wide)]
        self.last, self.dims = self._put("Expand", [self.last, self._ints(*wide)]), made
        return bool(wide)

    def _tile(self) -> bool:
        often = [self.draw.choice([1, 1, 2, 3]) if d == 1 or self.draw.random() < 0.1 else 1 for d in self.dims]
        self.last = self._put("Tile", [self.last, self._ints(*often)])
        self.dims = [d * n for d, n in zip(self.dims, often)]
        return bool(often)

    def model(self) -> ModelProto:
        """The model, its last result an output of unknown dims."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.type))
        inputs = [helper.make_tensor_value_info("x", kind, self.names)]
        inputs += [
            helper.make_tensor_value_info(name, TensorProto.INT64, a.shape if name != "shape_of_x" else ["R"])
            for name, a in self.feeds.items()
        ]
        ranks = {**self.outputs, self.last: len(self.dims)}
        outputs = [helper.make_tensor_value_info(name, kind, [None] * rank) for name, rank in ranks.items()]
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)

    def draws(self) -> Iterator[Mapping[str, Any]]:
        """Inputs of any bits: as drawn, and with other sizes for the symbols."""
        rng = np.random.default_rng(self.draw.randrange(1 << 30))
        for size in (None, 0, 1, 2, 12):
            dims = [d if size is None or isinstance(n, int) else size for d, n in zip(self.source, self.names)]
            bits = rng.integers(0, 256, prod(dims) * np.dtype(self.type).itemsize, np.uint8)
            yield {**self.feeds, "x": bits.view(self.type).reshape(dims)}
            if all(isinstance(n, int) for n in self.names):
                return


def _chain_of(inner: str, outer: str, number: int) -> Chain | None:
    chain = Chain(f"{inner} {outer} {number}")
    ops = [inner, outer]
    if chain.draw.random() < 0.7:
        ops.insert(chain.draw.choice([0, 2, 2]), chain.draw.choice(MOVERS))
    try:
        return chain if all(chain.add(op) for op in ops) else None
    except (ValueError, IndexError):
        return None


def _optimized(model: ModelProto) -> tuple[ModelProto, bool]:
    copy = ModelProto()
    copy.CopyFrom(model)
    graph = read_model(copy)
    execute(Fixpoint(tuple(get_pass(p)() for p in PASSES)), graph, PassContext(opt_level=3, instruments=[CheckEach()]))
    changed = graph.version > 0
    after = ModelProto()
    after.CopyFrom(write_model(graph))
    return after, changed


def examined(inner: str, outer: str, number: int) -> tuple[bool, str]:
    """Returns whether the passes changed the chain, and the fault."""
    chain = _chain_of(inner, outer, number)
    if chain is None:
        return False, ""
    model = chain.model()
    try:
        onnx.checker.check_model(model, full_check=True)
        session = plain_session(model)
    except Exception:
        return False, ""
    after, changed = _optimized(model)
    if not changed:
        return False, ""
    fault = _fault(chain, session, after)
    if not fault and len(after.graph.node) > len(model.graph.node):
        fault = "more nodes than before"
    return True, fault if fault in (
        "",
        NOTHING,
    ) else f"{fault}\n{onnx.printer.to_text(model)}\n{onnx.printer.to_text(after)}"


def _fault(chain: Chain, before: Any, after: ModelProto) -> str:
    try:
        onnx.checker.check_model(after, full_check=True)
        session = plain_session(after)
    except Exception as e:
        return f"no model: {e}"
    compared = 0
    for feeds in chain.draws():
        try:
            wanted = before.run(None, feeds)
        except Exception:
            continue  # sizes for which the chain is none
        try:
            found = session.run(None, feeds)
        except Exception as e:
            if not all(a.size for a in (feeds["x"], *wanted)):
                continue  # of no elements a GatherND reads nothing, whatever its indices, which a Gather checks
            return f"fails for {[*feeds['x'].shape]}: {e}"
        compared += 1
        for a, b in zip(wanted, found):
            if a.shape != b.shape or a.dtype != b.dtype or a.tobytes() != b.tobytes():
                return f"differs for {[*feeds['x'].shape]}: {a.shape}, {b.shape}"
    again, changed = _optimized(after)
    # An output between two steps may say less of its dims than was known of the value that became it.
    if changed and (len(after.graph.output) == 1 or _optimized(again)[1]):
        return "a second run changes something"
    return "" if compared else NOTHING


MOVERS: Final = (
    *("Expand", "Flatten", "Gather", "GatherND", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
)
PAIRS: Final = tuple(f"{a}-{b}" for a in MOVERS for b in MOVERS)


def campaign(
    pair: str, fired: int, stop: Callable[[], bool] = lambda: False, first: int = 0
) -> tuple[int, int, list[tuple[int, str]]]:
    """How many chains of the pair were drawn, on how many of them a pass fired, and the faults."""
    inner, _, outer = pair.partition("-")
    found, faults, number = 0, list[tuple[int, str]](), first
    for number in count(first):
        if found >= fired or number - first >= TRIES * fired or stop():
            break
        try:
            changed, fault = examined(inner, outer, number)
        except Exception as e:
            changed, fault = True, f"{type(e).__name__}: {e}"
        if fault == NOTHING:
            continue
        found += changed
        if fault:
            faults.append((number, fault))
    return number - first, found, faults


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rules.chains", description=__doc__.partition("\n")[0])
    parser.add_argument("pairs", nargs="*", help="as Gather-Transpose, or parts of that (all)")
    parser.add_argument("--fired", type=int, default=200, help="chains of each pair on which a pass fires (200)")
    parser.add_argument("--seconds", type=float, default=1800, help="for all of them (1800)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first draw (0)")
    args = parser.parse_args()
    end, wrong, total, few = time.monotonic() + args.seconds, 0, 0, []
    for pair in (p for p in PAIRS if not args.pairs or any(a in p for a in args.pairs)):
        drawn, fired, faults = campaign(pair, args.fired, lambda: time.monotonic() > end, args.first)
        print(f"{pair:24} {drawn:6} {fired:6} {len(faults) or '-'}", flush=True)
        for number, text in faults[:3]:
            print(f"    {pair} {number}: {text[:3000]}", flush=True)
        wrong, total = wrong + len(faults), total + fired
        few += [f"{pair} ({fired})"] if fired < args.fired else []
    print(f"{total} chains on which a pass fired, {wrong} faults; fewer than {args.fired}: {', '.join(few) or 'none'}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
