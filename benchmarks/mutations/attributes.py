"""Nodes with a wrong attribute: axes, windows, modes, switches."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from onnx import AttributeProto, helper

from mutations.place import Edit, Place

AXES: Final = {
    **dict.fromkeys(("Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization", "TopK"), -1),
    **dict.fromkeys(("Gather", "GatherElements", "ScatterElements", "Concat", "Split", "ArgMax", "ArgMin"), 0),
    "Flatten": 1,
}
WINDOWS: Final = ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool")
LISTED: Final = ("Squeeze", "Unsqueeze")  # and every reduction: axes in a constant, or in an attribute before that

# Switches with their defaults, and words with the word that is mistaken for them.
SWITCHES: Final = {
    "ArgMax": "select_last_index",
    "ArgMin": "select_last_index",
    "CumSum": "exclusive",
    "Mod": "fmod",
    "MaxPool": "ceil_mode",
    "AveragePool": "ceil_mode",
    "GridSample": "align_corners",
    "RotaryEmbedding": "interleaved",
    "NonMaxSuppression": "center_point_box",
    "LSTM": "input_forget",
    "Resize": "exclude_outside",
}
WORDS: Final = {
    "Resize": ("nearest_mode", "round_prefer_floor", {"floor": "round_prefer_floor", "round_prefer_floor": "floor"}),
    "Pad": ("mode", "constant", {"reflect": "edge", "edge": "reflect"}),
    "GridSample": ("padding_mode", "zeros", {"zeros": "border", "border": "zeros"}),
    **dict.fromkeys(WINDOWS, ("auto_pad", "NOTSET", {"SAME_UPPER": "SAME_LOWER", "SAME_LOWER": "SAME_UPPER"})),
    **dict.fromkeys(("ScatterND", "ScatterElements"), ("reduction", "none", {"none": "add", "add": "none"})),
}
GROUPS: Final = {"GroupNormalization": "num_groups", "LRN": "size"}


def transpose_changed(place: Place, rng: Random) -> Edit | None:
    """Exchange two axes, preferably of equal size."""
    perm = list(place.attribute("perm", ()))
    if place.op != "Transpose" or len(perm) < 2:
        return None
    shape = place.shape(place.node.output[0])
    pairs = [(i, j) for j in range(len(perm)) for i in range(j)]
    alike = [(i, j) for i, j in pairs if shape is not None and shape[i] == shape[j] != 1]
    i, j = rng.choice(alike or pairs)
    perm[i], perm[j] = perm[j], perm[i]
    return place.with_attributes(f"perm {perm}", perm=perm)


def axis_off_by_one(place: Place, _: Random) -> Edit | None:
    if place.op in AXES:
        axis = place.attribute("axis", AXES[place.op])
        new = axis - 1 if axis not in (0, -1) else axis + (1 if axis == 0 else -1)
        return place.with_attributes(f"axis {new}, not {axis}", axis=new)
    if not place.op.startswith("Reduce") and place.op not in LISTED:
        return None
    axes = place.attribute("axes")
    if axes:
        new = [_beside(axes[0]), *axes[1:]]
        return place.with_attributes(f"axes {new}, not {list(axes)}", axes=new)
    listed = place.array(1)
    if listed is None or not listed.size:
        return None
    changed = listed.copy().reshape(-1)
    changed[0] = _beside(int(changed[0]))
    return place.with_constants({1: changed.reshape(listed.shape)}, f"axes {changed.tolist()}, not {listed.tolist()}")


def _beside(axis: int) -> int:
    return axis - 1 if axis > 0 or axis < -1 else {0: 1, -1: -2}[axis]


def pads_shifted(place: Place, rng: Random) -> Edit | None:
    """Shift the window by one, with the same output size."""
    pads = list(place.attribute("pads", ()))
    if place.op not in WINDOWS or not any(pads):
        return None
    half = len(pads) // 2
    i = rng.choice([k for k, p in enumerate(pads) if p])
    pads[i] -= 1
    pads[(i + half) % len(pads)] += 1
    return place.with_attributes(f"pads {pads}", pads=pads)


def dilated(place: Place, rng: Random) -> Edit | None:
    """Increase the dilation of a window by one, and its padding accordingly."""
    kernel = place.attribute("kernel_shape") or (w.shape[2:] if (w := place.array(1)) is not None else ())
    axes = [k for k, size in enumerate(kernel) if size % 2 and size > 1]
    if place.op not in WINDOWS or not axes or place.attribute("auto_pad", b"NOTSET") != b"NOTSET":
        return None
    n, k = len(kernel), rng.choice(axes)
    dilations = list(place.attribute("dilations", [1] * n))
    pads = list(place.attribute("pads", [0] * 2 * n))
    dilations[k] += 1
    for i in (k, k + n):
        pads[i] += kernel[k] // 2
    return place.with_attributes(f"dilations {dilations}, pads {pads}", dilations=dilations, pads=pads)


def stride_changed(place: Place, _: Random) -> Edit | None:
    kernel = place.attribute("kernel_shape", [1])
    strides = list(place.attribute("strides", [1] * len(kernel)))
    if place.op not in WINDOWS:
        return None
    new = [s + 1 if s == 1 else s - 1 for s in strides]
    return place.with_attributes(f"strides {new}, not {strides}", strides=new)


def padding_counted(place: Place, _: Random) -> Edit | None:
    if place.op != "AveragePool" or not any(place.attribute("pads", ())):
        return None
    new = 1 - place.attribute("count_include_pad", 0)
    return place.with_attributes(f"count_include_pad {new}", count_include_pad=new)


def pad_value_changed(place: Place, _: Random) -> Edit | None:
    if place.op != "Pad":
        return None
    if place.attribute("mode", b"constant") != b"constant":
        return place.with_attributes("mode constant", mode="constant")
    value = place.array(2)
    if value is None:
        return place.with_attributes("mode edge", mode="edge")
    return place.with_constants({2: value + 1}, "padded with one more")


def gemm_factor_changed(place: Place, rng: Random) -> Edit | None:
    if place.op != "Gemm":
        return None
    name = rng.choice(["alpha", "beta"] if place.input(2) else ["alpha"])
    value = place.attribute(name, 1.0) * 1.01
    return place.with_attributes(f"{name} {value:g}", **{name: value})


def transposition_flipped(place: Place, rng: Random) -> Edit | None:
    """Flip the transposition of a Gemm operand, preferably a square one."""
    if place.op != "Gemm":
        return None
    shapes = [place.shape(place.input(i)) or getattr(place.array(i), "shape", None) for i in (0, 1)]
    square = [i for i in (0, 1) if (s := shapes[i]) is not None and len(set(s)) == 1]
    name = ("transA", "transB")[rng.choice(square or [0, 1])]
    return place.with_attributes(f"{name} flipped", **{name: 1 - place.attribute(name, 0)})


def keepdims_flipped(place: Place, _: Random) -> Edit | None:
    if not place.op.startswith(("Reduce", "Arg")):
        return None
    new = 1 - place.attribute("keepdims", 1)
    return place.with_attributes(f"keepdims {new}", keepdims=new)


def other_gelu(place: Place, _: Random) -> Edit | None:
    if place.op != "Gelu":
        return None
    new = "none" if place.attribute("approximate", b"none") == b"tanh" else "tanh"
    return place.with_attributes(f"approximate {new}", approximate=new)


def epsilon_too_large(place: Place, _: Random) -> Edit | None:
    if "Normalization" not in place.op or place.op == "LpNormalization":
        return None
    new = 100 * place.attribute("epsilon", 1e-5)
    return place.with_attributes(f"epsilon {new:g}", epsilon=new)


def quantization_axis_changed(place: Place, _: Random) -> Edit | None:
    scale = place.array(1)
    if place.op not in ("QuantizeLinear", "DequantizeLinear") or scale is None or scale.size < 2:
        return None
    new = 1 if place.attribute("axis", 1) == 0 else 0
    return place.with_attributes(f"axis {new}", axis=new)


def decision_turned(place: Place, _: Random) -> Edit | None:
    """The smallest instead of the largest, the last instead of the first."""
    if place.op == "TopK":
        new = 1 - place.attribute("largest", 1)
        return place.with_attributes(f"largest {new}", largest=new)
    turned = {"ArgMax": "ArgMin", "ArgMin": "ArgMax"}
    return place.with_op(turned[place.op]) if place.op in turned else None


def mode_changed(place: Place, _: Random) -> Edit | None:
    """Change the coordinates of a Resize, the direction of a recurrence, the causality of attention."""
    if place.op == "Resize":
        old = place.attribute("coordinate_transformation_mode", b"half_pixel")
        new = "half_pixel" if old == b"asymmetric" else "asymmetric"
        return place.with_attributes(new, coordinate_transformation_mode=new)
    if place.op in ("LSTM", "GRU", "RNN") and place.attribute("direction", b"forward") != b"bidirectional":
        return place.with_attributes("direction turned", direction="reverse")
    if place.op in ("DepthToSpace",):
        new = "DCR" if place.attribute("mode", b"DCR") == b"CRD" else "CRD"
        return place.with_attributes(new, mode=new)
    switch = {"Attention": "is_causal", "CumSum": "reverse", "GRU": "linear_before_reset"}.get(place.op)
    return place.with_attributes(switch, **{switch: 1 - place.attribute(switch, 0)}) if switch else None


def parameter_changed(place: Place, rng: Random) -> Edit | None:
    """Change another number: the slope of LeakyRelu, the scale of Attention."""
    if place.op == "Gemm" or "Normalization" in place.op:
        return None
    numbers: list[AttributeProto] = [a for a in place.node.attribute if a.type == AttributeProto.FLOAT and a.f]
    if not numbers:
        return None
    a = rng.choice(numbers)
    value: Any = helper.get_attribute_value(a) * 1.1
    return place.with_attributes(f"{a.name} {value:g}", **{a.name: value})


def branches_swapped(place: Place, _: Random) -> Edit | None:
    if place.op != "If":
        return None
    then, other = place.attribute("then_branch"), place.attribute("else_branch")
    return place.with_attributes("then and else are swapped", then_branch=other, else_branch=then)


def switch_flipped(place: Place, _: Random) -> Edit | None:
    """Take the last of several largest numbers, count the last window, align corners."""
    name = SWITCHES.get(place.op)
    if name is None:
        return None
    new = 1 - place.attribute(name, 0)
    return place.with_attributes(f"{name} {new}", **{name: new})


def word_changed(place: Place, _: Random) -> Edit | None:
    """Round, pad or accumulate in another way."""
    name, default, others = WORDS.get(place.op, ("", "", {}))
    old = place.attribute(name, default)
    new = others.get(old.decode() if isinstance(old, bytes) else old)
    return None if new is None else place.with_attributes(f"{name} {new}", **{name: new})


def groups_changed(place: Place, _: Random) -> Edit | None:
    """Halve the number of groups, or the size of a window over channels."""
    name = GROUPS.get(place.op)
    old = place.attribute(name, 1) if name is not None else 1
    if name is None or old < 2:
        return None
    return place.with_attributes(f"{name} {old // 2}, not {old}", **{name: old // 2})
