"""Constant folding, limited in the growth of the file."""

from __future__ import annotations

from collections.abc import Collection, Container
from dataclasses import dataclass

from onnxopt.analysis import kernels, types
from onnxopt.analysis.constants import REFUSED, is_computable, is_refused, is_repeated
from onnxopt.analysis.folding import KernelCache, is_read, is_second_layout, is_widened, quantize, worth_running
from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node, present, producer
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, option, register
from onnxopt.pipeline.context import MEMORY, WORK
from onnxopt.proto.messages import Array, element_type, tensor_bytes
from onnxopt.rewriting.replace import cannot_hold, hold

# Small operands may give a large result.
_GROWING = frozenset({"Range", "Tile", "Pad", "Resize", "Upsample", "OneHot"})
_RULE = "fold"
_BATCH_BYTES = 2 << 30  # bytes of results in memory before they are stored in the graph
_NARROW = 1 << 16  # bytes by which a weight may exceed its stored size
_MADE = 1 << 34  # bytes made by all folds of a run, beyond freed ones
_MAX_GROWTH = 1 << 30  # bytes by which all folds may enlarge the model


@register
@dataclass(eq=False, repr=False)
class ConstantFolding(GraphPass):
    """f(constants) = constant.

    Applies when: the operator is deterministic and known, and all its inputs are constants, or computed from constants.
    Keeps:
    * DequantizeLinear, also of weights quantized here;
    * large weights stored in fewer bits than the result, as in a Cast of int8;
    * from -O2 on the Transpose of a weight also read in its stored layout, such as a tied embedding (a Gemm reads it
      transposed, and runtimes fold it on loading);
    * results that enlarge the file by more than `max_bytes` each (size-neutral folds of big weights are always done);
    * few elements repeated to a large array, known to other passes all the same;
    * nodes that fail, crash their process, or take too much memory or time.

    Not done: random operators, training Dropout, statistics updated in training, control flow, sequences, optionals.
    """

    info = PassInfo("constant-folding", opt_level=1)
    max_bytes: int = option(1 << 20, "a fold may add this many bytes to the file")
    max_fill: int = option(1 << 14, "elements repeated to more bytes than this stay ConstantOfShape or Expand")
    max_work: int = option(1 << 28, "no intermediate result may take more bytes than this")
    max_operations: int = option(1 << 35, "all folds of a run may take this many multiplications")

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        again = patient = True
        while again:  # folded values may reveal sizes needed by waiting nodes
            cone = _Cone(graph, self, ctx)
            cone.collect()
            if cone.nodes:
                cone.evaluate(patient)
            replaced = bool(cone.nodes) and cone.replace()
            again = cone.measured or (cone.waiting and (replaced or (patient and cone.patient)))
            patient = replaced


class _Spent:
    """Totals over all folds of a run: bytes made beyond freed ones, bytes kept, operations, seconds in subprocesses."""

    def __init__(self) -> None:
        self.bytes = self.kept = self.operations = 0
        self.seconds = 0.0


class _Cone:
    """The nodes of a scope computable from constants."""

    def __init__(self, graph: Graph, options: ConstantFolding, ctx: PassContext) -> None:
        self.graph, self.options, self.ctx = graph, options, ctx
        self.nodes: dict[Node, None] = {}  # in topological order
        self.arrays: dict[Value, Array] = {}  # results computed and not yet stored
        self.once = KernelCache()
        self.freed: dict[Node, int] = {}  # bytes freed when only this node's outputs remain
        self.failed: dict[Node, list[Node | None]] = ctx.memo.setdefault("constant-folding: failed", {})
        self.dangerous: set[Value] = ctx.memo.setdefault("constant-folding: dangerous", set())
        self.told: set[tuple[Node, str]] = ctx.memo.setdefault("constant-folding: told", set())
        self.spent: _Spent = ctx.memo.setdefault("constant-folding: spent", _Spent())
        self.work = 0  # bytes made so far, beyond freed ones
        self.held = 0  # bytes made so far
        self.written_out: set[Value] = set()  # repeated elements materialized for a runtime
        self.waiting = False  # whether a node waits for more knowledge
        self.patient = False  # whether a node waits for nothing else
        self.measured = False  # whether a result of unknown size was too large: its operands are stored instead

    def collect(self) -> None:
        for node in self.graph:
            if not self._foldable(node):
                continue
            if reason := self.ctx.leaves_out(node):
                self._decline(node, reason)
                continue
            self.nodes[node] = None
            self.freed[node] = sum(self._frees(node, v) for v in dict.fromkeys(present(node.inputs)))

    def _foldable(self, node: Node) -> bool:
        for v in node.inputs:
            if v is not None and not v.constant and v.producer not in self.nodes:
                return False
        if self.failed.get(node) == [*map(producer, node.inputs)]:  # retried if a producer changed since
            return False
        return is_computable(node, self.graph.opset(node.domain))

    def _frees(self, node: Node, v: Value) -> int:
        if v.only_user is not node:
            return 0
        if v.constant:
            return tensor_bytes(*v.constant_type()) if v.is_stored else 0
        return self.freed[v.producer] if v.producer is not None else 0

    def evaluate(self, patient: bool) -> None:
        """Compute the nodes, by exact numpy kernels where available, the rest in a single session.

        `patient`: nodes of unknown size wait until the rest is folded, and may have a known size then.
        """
        rest = [n for n in self._by_kernels(list(self.nodes)) if self._affordable(n)]
        if not rest:
            return
        from onnxopt.analysis.folding_runtime import of_known_size

        if ready := of_known_size(rest):
            self._run(ready)
            rest = self._by_kernels([n for n in rest if n not in ready])
        if not patient:
            self._run(rest)
            return
        for node in rest:
            self.waiting = self.patient = True
            del self.nodes[node]

    def _by_kernels(self, nodes: list[Node]) -> list[Node]:
        """Evaluate nodes with a kernel and known operands. Returns the others."""
        rest, waiting = dict[Node, None](), set[Value]()
        for node in nodes:
            if self._is_cut_off(node):
                self.nodes.pop(node, None)
            elif not waiting.isdisjoint(node.inputs) or not self._by_kernel(node):
                rest[node] = None
                waiting.update(present(node.outputs))
        return [n for n in rest if n in self.nodes]

    def _by_kernel(self, node: Node) -> bool:
        """Evaluate a node by its kernel, or give it up. Returns False without a kernel."""
        inputs = [None if v is None else self._array(v) for v in node.inputs]
        if not self._pays(node, kernels.result_bytes(node, inputs)):
            return True
        if node.op == "QuantizeLinear":
            quantized = quantize(node, inputs)
            if quantized is None:
                self._give_up(node, "runtimes may quantize it otherwise")
            else:
                self.arrays[node.output] = quantized
            return True
        try:
            results = self.once.evaluate(node, inputs, self.graph.opset())
        except kernels.Invalid as e:
            self._give_up(node, str(e))
            # As constants these inputs would make a runtime reject the whole model, even in an untaken branch.
            self.dangerous.update(present(node.inputs))
            return True
        self.arrays.update((v, r) for v, r in zip(node.outputs, results or ()) if v is not None)
        return results is not None

    def _array(self, v: Value) -> Array:
        """Return the data of a constant, or of a result computed and not yet stored."""
        return self.arrays[v] if v in self.arrays else v.glance()

    def _is_cut_off(self, node: Node) -> bool:
        """Whether the node reads a result given up before."""
        return any(not v.constant and v.producer not in self.nodes for v in present(node.inputs))

    def _pays(self, node: Node, made: int) -> bool:
        """Whether `made` bytes may be computed. Freed bytes are not counted, so big weights are always permuted."""
        extra = max(0, made - self.freed[node])
        if self.held and self.held + made > _BATCH_BYTES:
            self.waiting = True
            self.nodes.pop(node, None)
            return False
        if self.spent.bytes + extra > _MADE:
            self._give_up(node, "folding takes too much work")
            return False
        if self.work + extra <= self.options.max_work:
            self.work += extra
            self.held += made
            self.spent.bytes += extra
            return True
        self._give_up(node, "takes too much memory to compute", retry=extra <= self.options.max_work)
        return False

    def _affordable(self, node: Node) -> bool:
        """Whether a node may run: the size of its result must be known, or small because all operands are small."""
        from onnxopt.graph.writer import write_names
        from onnxopt.proto.inference import is_sound

        if self._is_cut_off(node):
            del self.nodes[node]
            return False
        write_names(node)  # operand counts are taken from the message
        if not is_sound(node.proto):  # every loader infers it
            self._give_up(node, "runtimes die of it, or take for ever")
            return False
        outputs = present(node.outputs)
        return self._pays_for_inputs(node) and all(self._pays_for(node, v) for v in outputs) and self._is_quick(node)

    def _pays_for_inputs(self, node: Node) -> bool:
        """Whether the operands may be written out. Notes the types of operands computed before."""
        for v in present(node.inputs):
            array = self.arrays.get(v)
            if array is None:
                continue
            v.dtype, v.shape = element_type(array), array.shape
            if v not in self.written_out and is_repeated(array):
                self.written_out.add(v)
                if not self._pays(node, array.nbytes + self.freed[node]):
                    return False
        return True

    def _pays_for(self, node: Node, v: Value) -> bool:
        """Whether a result may be computed: of known size, or from small operands."""
        if types.static_shape(v) is None and all(i.constant for i in present(node.inputs)):
            types.update(self.graph.model)  # operands may have become constant just now
        shape, data_type = types.static_shape(v), types.dtype(v)
        if shape is not None and data_type:
            return self._pays(node, tensor_bytes(data_type, shape))
        if not v.is_used and node.op not in _GROWING:
            return True  # secondary results, such as statistics and masks, are no larger
        if sum(map(self._bytes, present(node.inputs))) <= 1 << 16 and node.op not in _GROWING:
            return True
        # In a body inference cannot read outer constants; after inlining it can.
        self._give_up(node, "the size of the result is unknown", retry=True)
        return False

    def _is_quick(self, node: Node) -> bool:
        """Whether the operations of a node are few enough. Counts the operations."""
        from onnxopt.analysis.folding_runtime import work

        found = work(node)
        operations = found.operations if found is not None else 0
        if self.spent.operations + operations > self.options.max_operations:
            self._give_up(node, "takes too many operations to compute", detail=f" ({operations:.1e})")
            return False
        self.spent.operations += operations
        return True

    def _bytes(self, v: Value) -> int:
        if v in self.arrays:
            return self.arrays[v].nbytes
        return tensor_bytes(*v.constant_type()) if v.constant else 0

    def _give_up(self, node: Node, reason: str, retry: bool = False, detail: str = "") -> None:
        """Leave the node out; with `retry` only until more is known or affordable."""
        if retry:
            self.waiting = True
        else:
            self.failed[node] = [*map(producer, node.inputs)]
        self.nodes.pop(node, None)
        self._decline(node, reason, detail)

    def _decline(self, node: Node, reason: str, detail: str = "") -> None:
        """Count a node once for each reason, over all rounds."""
        if (node, reason) not in self.told:
            self.told.add((node, reason))
            self.ctx.decline(_RULE, reason, repr(node) + detail)

    def _run(self, rest: Collection[Node]) -> None:
        inside = set(rest)
        running, wanted = worth_running(list(rest), lambda node, made: self._is_too_large(node, made, inside))
        if not running:
            return
        read = dict.fromkeys(v for node in running for v in present(node.inputs))
        known = {v: self._array(v) for v in read if v in self.arrays or v.constant}
        from onnxopt.analysis.folding_runtime import run_cone
        from onnxopt.worker.limits import Limits
        from onnxopt.worker.service import Sandbox

        with Sandbox(Limits(self.ctx[MEMORY], self.ctx[WORK]), self.spent.seconds) as sandbox:
            most = max((self.options.max_work, *(self.freed[n] for n in running)))
            self.arrays.update(run_cone(self.graph, running, known, wanted, sandbox, most, self._give_up))
            self.spent.seconds = sandbox.spent
        self._give_up_unmade(rest, set(wanted))

    def _give_up_unmade(self, rest: Collection[Node], needed: set[Value | None]) -> None:
        for node in rest:
            if self._is_cut_off(node):
                self.nodes.pop(node, None)
            elif node in self.nodes and not self.arrays.keys() >= needed.intersection(node.outputs):
                self._give_up(node, "cannot be run here")

    def _is_too_large(self, node: Node, results: list[Value], inside: Container[Node]) -> bool:
        """Whether the results are known to be too large to keep, and no other fold reads them."""
        made = 0
        for v in results:
            shape = types.static_shape(v)
            if shape is None or any(u in self.nodes and u not in inside for u in v.users):
                return False
            made += tensor_bytes(types.dtype(v), shape)
        return self._grows_too_much(node, made)

    def _grows_too_much(self, node: Node, made: int) -> bool:
        """Whether results of `made` bytes would exceed the growth limit of the file."""
        growth = made - self.freed[node]
        limit = self.options.max_bytes
        if growth <= limit and self.spent.kept + growth <= max(_MAX_GROWTH, limit):
            return False
        self._decline(node, "the file would grow beyond the limit (--max-constant-bytes)", f" (+{growth:,} bytes)")
        return True

    def replace(self) -> bool:
        """Replace results in reverse order: a node with too large a result stays, with its inputs kept instead.

        Returns whether any value was replaced.
        """
        replaced: list[tuple[Node, Value]] = []
        kept: set[Node] = set()
        for node in reversed(self.nodes):
            wanted = [v for v in present(node.outputs) if is_read(v, self.nodes, kept)]
            if wanted and self._stays(node, wanted, kept):
                kept.add(node)
            else:
                replaced += [(node, v) for v in wanted]
        for node in reversed(self.nodes):
            self._remove(node)  # dead before, not counted as a fold
        done = 0
        for node, value in replaced:
            if not self.ctx.spend(_RULE, 0, at=value):
                break
            hold(value, self.once.stored(self.arrays[value]))
            self._remove(node)
            done += 1
        return done > 0

    def _stays(self, node: Node, wanted: list[Value], kept: Container[Node]) -> bool:
        """Whether a `wanted` result is missing or must not be stored. Counts the growth of stored results."""
        if any(v not in self.arrays or v in self.dangerous for v in wanted):
            return True
        if why := next(filter(None, (cannot_hold(v, self.arrays[v]) for v in wanted)), ""):
            self._decline(node, why)
            return True
        if any(self.arrays[v].nbytes > self.options.max_fill and is_repeated(self.arrays[v]) for v in wanted):
            self._know(wanted)
            self._decline(node, "repeated elements stay a node: written out they would take the bytes")
            return True
        made = sum(self.arrays[v].nbytes for v in wanted)
        if self._grows_too_much(node, made):
            self._measure(wanted)
            return True
        growth = made - self.freed[node]
        if why := self._reason_to_stay(node, wanted, growth, kept):
            self._decline(node, why)
            return True
        self.spent.kept += max(0, growth)
        return False

    def _reason_to_stay(self, node: Node, wanted: list[Value], growth: int, kept: Container[Node]) -> str:
        """Return why computed results must not be stored, or an empty string."""
        # At -O1 no pass folds the Transpose into a product: nodes count there, and the file grows.
        if growth > self.options.max_fill and self.ctx.opt_level > 1 and is_second_layout(node, self.nodes, kept):
            return "others read the weight as it is stored, and it would be stored twice"
        if growth > _NARROW and is_widened(node, [self.arrays[v] for v in wanted], self.nodes):
            return "a weight that is stored in fewer bits stays so"
        return REFUSED if any(is_refused(v, self.arrays[v]) for v in wanted) else ""

    def _know(self, results: list[Value]) -> None:
        """Make repeated elements readable by every rule, stored by none."""
        if all(self.arrays[v].nbytes <= self.options.max_work for v in results):
            for v in results:
                v.array = self.arrays[v]
                self.graph.know(v)

    def _measure(self, results: Collection[Value]) -> None:
        for v in results:
            if types.static_shape(v) is None or not types.dtype(v):
                v.dtype, v.shape = element_type(self.arrays[v]), self.arrays[v].shape
                self.measured = True

    def _remove(self, unread: Node) -> None:
        """Remove an unread node, then nodes read only by it."""
        stack = [unread]
        while stack:
            node = stack.pop()
            if node.graph is None or node not in self.nodes or node.is_used:
                continue
            stack += [v.producer for v in present(node.inputs) if v.producer is not None]
            self.graph.remove(node)
            self.ctx.count(_RULE)
