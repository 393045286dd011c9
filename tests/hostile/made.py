# ruff: noqa: E501
"""Hostile models made on purpose: cycles, bombs, laughs, names, sizes, types, numbers. {name: bytes}"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper, parser

from tests.hostile.altered import EVIL
from tests.hostile.bases import HEAD, base

TAIL = "k = ReduceSum <keepdims = 0> (c) y = Add (x, k) }"
FUNCTION = '<domain: "l", opset_import: ["" : 17, "l" : 1]> f%d (a) => (b) { %s }'


def made() -> Iterator[tuple[str, bytes]]:
    for part in (cycles, bombs, laughs, names, sizes, types, attributes, opsets, sparse, texts):
        for name, model in part():
            yield f"{part.__name__}: {name}", model.SerializeToString()
    yield from no_text()


def no_text() -> Iterator[tuple[str, bytes]]:
    """Yield models with a name whose last byte is not UTF-8."""
    for name in ("if", "calls", "everything", "beside"):
        data = base(name).SerializeToString()
        for old in (
            b"then_branch",
            b"value_float",
            b"Relu",
            b"Mul",
            b"text",
            b"sparse",
            b"key",
            b"w.bin",
            b"location",
            b"Neg",
        ):
            if old in data:
                yield f"no text: {old.decode()} in {name}", data.replace(old, old[:-1] + b"\xff")


def text(body: str, weights: str = "", more: str = "", end: str = "(float[n, 4] x) => (float[] y)") -> ModelProto:
    return parser.parse_model(
        f"{HEAD} g {end} <{weights}> {body} {more}" if weights else f"{HEAD} g {end} {body} {more}"
    )


def cycles() -> Iterator[tuple[str, ModelProto]]:
    for name, body in {
        "of one": "{ y = Add (x, y) }",
        "of two": "{ a = Add (x, b) b = Relu (a) y = Neg (b) }",
        "backwards": "{ y = Relu (b) b = Neg (a) a = Abs (x) }",
        "of a thousand": "{ v0 = Add (x, v999) " + " ".join(f"v{i + 1} = Neg (v{i})" for i in range(1000)) + " y = Neg (v1) }",
        "through a body": "{ c = Constant <value_int = 1> () b = Cast <to = 9> (c) y = If (b) < "
        "then_branch = t () => (float[] p) { p = Relu (y) }, else_branch = e () => (float[] q) { q = Neg (x) } > }",
        "onto an input": "{ x = Relu (x) y = Neg (x) }",
        "twice": "{ y = Relu (x) y = Neg (x) }",
        "of nothing": "{ y = Relu (nobody) }",
    }.items():  # fmt: skip
        yield name, text(body)
    for name, calls in {"itself": [0], "each other": [1, 0], "three": [1, 2, 0]}.items():
        functions = " ".join(FUNCTION % (i, f"b = l.f{to} (a)") for i, to in enumerate(calls))
        yield f"functions, {name}", text("{ y = l.f0 (x) }", more=functions)
    model = base("if")
    model.functions.add(name="If", domain="").node.add(op_type="If", input=["a"], output=["b"])
    yield "a function called If", model
    model = base("calls")
    model.functions.extend(list(model.functions))
    yield "functions twice", model


def bombs() -> Iterator[tuple[str, ModelProto]]:
    big, most = 1 << 45, (1 << 63) - 1
    for name, weights, body in [
        ("Range", f"int64 a = {{0}}, int64 b = {{{big}}}, int64 s = {{1}}", "r = Range (a, b, s) c = Cast <to = 1> (r)"),
        ("Range of 0", "int64 a = {0}, int64 b = {9}, int64 s = {0}", "r = Range (a, b, s) c = Cast <to = 1> (r)"),
        ("Range down", f"int64 a = {{0}}, int64 b = {{{-most}}}, int64 s = {{-1}}", "r = Range (a, b, s) c = Cast <to = 1> (r)"),
        ("Tile", "float[2] t = {1, 2}, int64[1] n = {70368744177664}", "c = Tile (t, n)"),
        ("Tile below 0", "float[2] t = {1, 2}, int64[1] n = {-4}", "c = Tile (t, n)"),
        ("Expand", "float[1] t = {1}, int64[3] s = {1048576, 1048576, 64}", "c = Expand (t, s)"),
        ("ConstantOfShape", f"int64[2] s = {{{1 << 31}, {1 << 31}}}", "c = ConstantOfShape (s)"),
        ("ConstantOfShape of 2^63", f"int64[3] s = {{{most}, {most}, 2}}", "c = ConstantOfShape (s)"),
        ("ConstantOfShape below 0", "int64[1] s = {-7}", "c = ConstantOfShape (s)"),
        ("ConstantOfShape of rank 5000", f"int64[5000] s = {{{', '.join('1' * 5000)}}}", "c = ConstantOfShape (s)"),
        ("Resize", "float[1, 1, 2, 2] t = {1, 2, 3, 4}, float[4] s = {1, 1, 1000000, 1000000}", "c = Resize (t, , s)"),
        ("Resize by nan", "float[1, 1, 2, 2] t = {1, 2, 3, 4}, float[4] s = {1, 1, 0, -1}", "c = Resize (t, , s)"),
        ("Pad", f"float[2] t = {{1, 2}}, int64[2] p = {{{big}, {big}}}", "c = Pad (t, p)"),
        ("Pad below 0", "float[2] t = {1, 2}, int64[2] p = {-9, -9}", "c = Pad (t, p)"),
        ("OneHot", f"int64[2] i = {{1, 2}}, int64 d = {{{big}}}, float[2] v = {{0, 1}}", "c = OneHot (i, d, v)"),
        ("Gather outside", "float[2] t = {1, 2}, int64[1] i = {99}", "c = Gather (t, i)"),
        ("GatherND outside", "float[2] t = {1, 2}, int64[1] i = {-99}", "c = GatherND (t, i)"),
        ("ScatterND outside", "float[2] t = {1, 2}, int64[1, 1] i = {99}, float[1] u = {1}", "c = ScatterND (t, i, u)"),
        ("Slice by 0", "float[2] t = {1, 2}, int64[1] z = {0}, int64[1] o = {2}", "c = Slice (t, z, o, z, z)"),
        ("Slice of 2^63", f"float[2] t = {{1, 2}}, int64[1] z = {{{-most - 1}}}, int64[1] o = {{{most}}}", "c = Slice (t, z, o)"),
        ("Reshape of 2^62", f"float[2] t = {{1, 2}}, int64[2] s = {{{1 << 62}, 4}}", "c = Reshape (t, s)"),
        ("Reshape by two -1", "float[2] t = {1, 2}, int64[2] s = {-1, -1}", "c = Reshape (t, s)"),
        ("Reshape to 0", "float[2] t = {1, 2}, int64[2] s = {0, 0}", "c = Reshape (t, s)"),
        ("Div", "int64[1] t = {-9223372036854775808}, int64[1] m = {-1}", "d = Div (t, m) c = Cast <to = 1> (d)"),
        ("Div by 0", "int64[1] t = {5}, int64[1] m = {0}", "d = Div (t, m) c = Cast <to = 1> (d)"),
        ("Mod by 0", "int32[1] t = {5}, int32[1] m = {0}", "d = Mod (t, m) c = Cast <to = 1> (d)"),
        ("Pow", "int64[1] t = {9}, int64[1] m = {9223372036854775807}", "d = Pow (t, m) c = Cast <to = 1> (d)"),
        ("BitShift", "uint64[1] t = {9}, uint64[1] m = {9999}", 'd = BitShift <direction = "LEFT"> (t, m) c = Cast <to = 1> (d)'),
        ("Loop of 2^62", "int64 m = {4611686018427387904}, bool t = {1}, float[1] v = {1}",
         "c = Loop (m, t, v) < body = b (int64 i, bool k, float[1] u) => (bool o, float[1] w) { o = Identity (k) w = Add (u, u) } >"),
        ("Loop that doubles", "int64 m = {60}, bool t = {1}, float[1] v = {1}",
         "c = Loop (m, t, v) < body = b (int64 i, bool k, float[] u) => (bool o, float[] w) { o = Identity (k) w = Concat <axis = 0> (u, u) } >"),
        ("Einsum", "int64[2] s = {4000, 4000}", 'e = ConstantOfShape (s) c = Einsum <equation = "ij,jk,kl,lm->im"> (e, e, e, e)'),
        ("Einsum of nothing", "float[2] t = {1, 2}", 'c = Einsum <equation = "ij,,->k...a"> (t, t)'),
        ("Split to a sequence", f"int64[1] n = {{{big}}}, int64 s = {{1}}, int64 f = {{0}}",
         "e = ConstantOfShape (n) q = SplitToSequence (e, s) c = SequenceAt (q, f)"),
        ("Expand to 60 dims", f"float[1] t = {{1}}, int64[60] s = {{{', '.join('2' * 60)}}}", "c = Expand (t, s)"),
        ("Split", "float[2] t = {1, 2}, int64[1] s = {99}", "c = Split (t, s)"),
        ("MatMul", "int64[2] s = {4200, 4200}", "e = ConstantOfShape (s) c = MatMul (e, e)"),
        ("CumSum", "float[2] t = {1, 2}, int64 s = {99}", "c = CumSum (t, s)"),
        ("TopK", f"float[2] t = {{1, 2}}, int64[1] s = {{{big}}}", "c, i = TopK (t, s)"),
        ("Random", "int64[1] s = {1}", f"c = RandomNormal <shape = [{1 << 20}, {1 << 20}]> ()"),
        ("Eye", "int64[2] s = {1, 1}", "e = ConstantOfShape (s) c = EyeLike <k = 9223372036854775807> (e)"),
        ("Transpose twice the same", "float[2, 2] t = {1, 2, 3, 4}", "c = Transpose <perm = [0, 0]> (t)"),
        ("Unsqueeze at 99", "float[2] t = {1, 2}, int64[1] s = {99}", "c = Unsqueeze (t, s)"),
        ("Squeeze at 99", "float[2] t = {1, 2}, int64[2] s = {99, 99}", "c = Squeeze (t, s)"),
        ("Concat at 99", "float[2] t = {1, 2}", "c = Concat <axis = 99> (t, t)"),
        ("Cast to 999", "float[2] t = {1, 2}", "d = Cast <to = 999> (t) c = Cast <to = 1> (d)"),
        ("SpaceToDepth by 0", "float[1, 1, 2, 2] t = {1, 2, 3, 4}", "c = SpaceToDepth <blocksize = 0> (t)"),
        ("Conv", "int64[4] s = {1, 8, 512, 512}", "e = ConstantOfShape (s) c = Conv <pads = [256, 256, 256, 256]> (e, e)"),
        ("Conv by 0", "float[1, 1, 2, 2] t = {1, 2, 3, 4}", "c = Conv <strides = [0, 0], group = 0> (t, t)"),
        ("MaxPool", "float[1, 1, 2, 2] t = {1, 2, 3, 4}", f"c = MaxPool <kernel_shape = [{big}, {big}], pads = [-1, -1, -1, -1]> (t)"),
        ("LSTM", "float[1, 1, 1] t = {1}", f"c = LSTM <hidden_size = {big}> (t, t, t)"),
        ("Unique", "float[2] t = {1, 2}", "c = Unique <axis = -9> (t)"),
        ("StringSplit", "float[2] t = {1, 2}", "c = RegexFullMatch (t)"),
    ]:  # fmt: skip
        yield name, text("{ " + body + " " + TAIL, weights)
    for op in ("Concat <axis = 0>", "MatMul", "Mul"):
        chain = " ".join(f"c{i + 1} = {op} (c{i}, c{i})" for i in range(50))
        yield f"{op} that doubles", text(f"{{ {chain} c = Identity (c50) {TAIL}", "float[2, 2] c0 = {1, 2, 3, 4}")
    for size in (1 << 16, 1 << 31, most):
        yield (
            f"an input of {size}",
            text("{ i = Identity (x) y = Relu (i) }", end=f"(float[{size}, {size}] x) => (float[] y)"),
        )


def laughs() -> Iterator[tuple[str, ModelProto]]:
    for count, body in itertools.product(
        (5, 16, 25, 64, 99, 120, 500), ("t = l.f%d (a) b = l.f%d (t)", "t = l.f%d (a) b = Add (t, a) c%d = Neg (t)")
    ):
        functions = [FUNCTION % (0, "b = Relu (a)"), *(FUNCTION % (i, body % (i - 1, i - 1)) for i in range(1, count))]
        yield f"{count} {body[:14]}", text(f"{{ y = l.f{count - 1} (x) }}", more=" ".join(functions))
    for depth in (5, 20, 24):
        yield f"bodies {depth}", ModelProto.FromString(_bodies(depth))


def _bodies(depth: int) -> bytes:
    body = "c = Relu (x)"
    for i in range(depth):
        end = f"(float[] r{i})"
        body = (
            f"c = If (k) < then_branch = t{i} () => {end} {{ {body.replace('c = ', f'r{i} = ', 1)} }}, "
            f"else_branch = e{i} () => {end} {{ r{i} = Neg (x) }} >"
        )
    return bytes(text(f"{{ {body} y = Relu (c) }}", "bool k = {1}").SerializeToString())


NAMES = ["", " ", EVIL, "L" * 1_000_000, "x", "then_branch", "\n::stop-commands::t", "..", "../../up", "y\0", "None", "é",
         "#comment", "a,b", "a@b", "--help", "%0A::error::", "=cmd()", '"', "\\", "🙂" * 300]  # fmt: skip


def names() -> Iterator[tuple[str, ModelProto]]:
    for i, name in enumerate(NAMES):
        model = base("if")
        for body in (model.graph, *(a.g for a in model.graph.node[0].attribute)):
            for node in body.node:
                node.name = name
            body.name = name
        yield f"of nodes {i}", model
        for old in ("x", "w", "d", "e", "y", "k"):
            if name != old:
                yield f"{old} {i}", _renamed(base("if"), old, name)
        model = base("calls")
        for function in model.functions[:1]:
            function.name = model.graph.node[0].op_type = name
        yield f"of a function {i}", model
        model = base("calls")
        for part in (*model.functions, *model.graph.node, *(n for f in model.functions for n in f.node)):
            part.domain = name
        model.opset_import.add(domain=name, version=1)
        yield f"of a domain {i}", model
        model = base("chain")
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = name
        yield f"of a size {i}", model
        helper.set_model_props(model, {name: name, "k": name})
        model.producer_name = model.doc_string = model.domain = name
        yield f"of metadata {i}", model


def _renamed(model: ModelProto, old: str, new: str) -> ModelProto:
    graphs = [model.graph]
    while graphs:
        graph = graphs.pop()
        for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
            value.name = new if value.name == old else value.name
        for node in graph.node:
            node.input[:] = [new if n == old else n for n in node.input]
            node.output[:] = [new if n == old else n for n in node.output]
            graphs += [a.g for a in node.attribute if a.HasField("g")]
    return model


def sizes() -> Iterator[tuple[str, ModelProto]]:
    for size, where in itertools.product(
        (-1, 0, -(1 << 63), 1 << 31, 1 << 62, (1 << 63) - 1), ("input", "output", "weight", "all", "constant", "value")
    ):
        model = base("conv")
        graph = model.graph
        if where in ("input", "output"):
            getattr(graph, where)[0].type.tensor_type.shape.dim[2].dim_value = size
        elif where == "weight":
            graph.initializer[0].dims[0] = size
        elif where == "all":
            for tensor in graph.initializer:
                tensor.dims[:] = [size, size]
        elif where == "constant":
            node = graph.node.add(op_type="Constant", output=["more"])
            node.attribute.append(helper.make_attribute("value", TensorProto(data_type=1, dims=[size, 3])))
            graph.node.add(op_type="Relu", input=["more"], output=["z"])
        else:
            graph.value_info.append(helper.make_tensor_value_info("c", 1, [size] * 8))
        yield f"{size} {where}", model
    for rank in (0, 64, 65, 10_000):
        model = base("chain")
        model.graph.initializer[0].dims[:] = [1] * rank
        yield f"rank {rank}", model
        model = base("chain")
        model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", 1, [1] * rank))
        yield f"input of rank {rank}", model
    for data, kind in itertools.product(
        (b"", b"\0", b"\0" * 3, b"\0" * 1000), ("raw_data", "float_data", "int64_data")
    ):
        model = base("chain")
        tensor = model.graph.initializer[1]
        tensor.ClearField("float_data")
        tensor.ClearField("raw_data")
        if kind == "raw_data":
            tensor.raw_data = data
        else:
            getattr(tensor, kind).extend([1] * len(data))
        yield f"{kind} of {len(data)}", model


def types() -> Iterator[tuple[str, ModelProto]]:
    for number, where in itertools.product(
        (-1, 0, 8, 10, 14, 16, 17, 21, 22, 23, 24, 25, 99, (1 << 31) - 1), ("input", "weight", "output", "constant")
    ):
        model = base("chain")
        if where == "weight":
            model.graph.initializer[0].data_type = number
        elif where == "constant":
            node = model.graph.node.add(op_type="Constant", output=["more"])
            node.attribute.append(
                helper.make_attribute("value", TensorProto(data_type=number, dims=[1], raw_data=b"\0" * 8))
            )
            model.graph.node.add(op_type="Add", input=["more", "more"], output=["z"])
        else:
            getattr(model.graph, where)[0].type.tensor_type.elem_type = number
        yield f"{number} {where}", model
    for kind in ("sequence_type", "optional_type", "map_type", "sparse_tensor_type", "opaque_type"):
        model = base("chain")
        model.graph.input[0].type.Clear()
        if hasattr(model.graph.input[0].type, kind):
            getattr(model.graph.input[0].type, kind).SetInParent()
            yield f"an empty {kind}", model
    model = base("chain")
    inner = model.graph.input[0].type
    inner.Clear()
    for _ in range(40):
        inner = inner.sequence_type.elem_type
    yield "a sequence of sequences", model


def attributes() -> Iterator[tuple[str, ModelProto]]:
    for kind, name in itertools.product(AttributeProto.AttributeType.values(), ("conv", "if", "loop", "constants")):
        model = base(name)
        for node in model.graph.node:
            for attribute in node.attribute:
                attribute.type = kind
        yield f"type {kind} in {name}", model
    for name in ("conv", "if", "loop", "scan", "attention", "shapes"):
        for how in ("none", "twice", "no name", "no value", "a reference"):
            model = base(name)
            for node in model.graph.node:
                if how == "none":
                    del node.attribute[:]
                elif how == "twice":
                    node.attribute.extend(list(node.attribute))
                for attribute in node.attribute:
                    if how == "no name":
                        attribute.name = ""
                    elif how == "no value":
                        kept = attribute.name, attribute.type
                        attribute.Clear()
                        attribute.name, attribute.type = kept
                    elif how == "a reference":
                        attribute.ref_attr_name = "k"
            yield f"{how} in {name}", model


def opsets() -> Iterator[tuple[str, ModelProto]]:
    for version in (-1, 0, 1, 6, 7, 25, 26, 99, 1 << 31, 1 << 62, -(1 << 63)):
        for name in ("chain", "calls", "quantized"):
            model = base(name)
            model.opset_import[0].version = version
            for function in model.functions:
                function.opset_import[0].version = version
            yield f"{version} in {name}", model
    for version in (-1, 0, 1, 99, (1 << 63) - 1):
        model = base("chain")
        model.ir_version = version
        yield f"IR {version}", model
    for name in ("chain", "calls"):
        model = base(name)
        del model.opset_import[:]
        yield f"none in {name}", model
        model.opset_import.extend(
            [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx", 12), helper.make_opsetid("", 7)]
        )
        yield f"three in {name}", model


def sparse() -> Iterator[tuple[str, ModelProto]]:
    for i, (indices, dims) in enumerate(
        [([99, 3], [4]), ([-1, 0], [4]), ([3, 0], [4]), ([0, 0], [4]), ([0], [4]), ([0, 1, 2], [4]), ([0, 1], []), ([0, 1], [1 << 62]),
         ([0, 1], [-4]), ([0, 1], [1 << 20, 1 << 20]), ([[0, 0], [9, 9]], [2, 2]), ([[0], [1]], [4]), ([[[0]], [[1]]], [4])]
    ):  # fmt: skip
        model = base("everything")
        tensor = model.graph.sparse_initializer[0]
        tensor.indices.CopyFrom(numpy_helper.from_array(np.array(indices, np.int64), ""))
        tensor.dims[:] = dims
        yield str(i), model
        constant = base("chain")
        node = constant.graph.node.add(op_type="Constant", output=["more"])
        node.attribute.append(helper.make_attribute("sparse_value", tensor))
        constant.graph.node.add(op_type="Add", input=["more", "b"], output=["z"])
        yield f"constant {i}", constant
    for what in ("values", "indices"):
        model = base("everything")
        getattr(model.graph.sparse_initializer[0], what).Clear()
        yield f"no {what}", model
        model = base("everything")
        getattr(model.graph.sparse_initializer[0], what).data_location = TensorProto.EXTERNAL
        yield f"{what} elsewhere", model


def texts() -> Iterator[tuple[str, ModelProto]]:
    for i, (values, dims) in enumerate(
        [([], [2]), ([b"\xff" * 10], [1]), ([b"a"] * 3, [2]), ([b"\0"], [1]), ([EVIL.encode()], []), ([b"a"], [-1]), ([b"L" * 10**6], [1])]
    ):  # fmt: skip
        model = base("everything")
        (tensor,) = [t for t in model.graph.initializer if t.name == "text"]
        tensor.dims[:] = dims
        tensor.string_data[:] = values
        yield str(i), model
        tensor.raw_data = b"abcd"
        yield f"raw {i}", model
        tensor.ClearField("raw_data")
        node = model.graph.node.add(op_type="Constant", output=["more"])
        node.attribute.append(helper.make_attribute("value", tensor))
        model.graph.node.add(op_type="Equal", input=["more", "text"], output=["same"])
        yield f"constant {i}", model
