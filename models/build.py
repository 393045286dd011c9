"""Turn the sample models (ONNX text) into files with seeded weights.

    python models/build.py [OUTDIR]        # default: models/build

A sample is a `*.onnxtxt` file that `onnx.parser` reads. Its leading comment says what the model shows, and
holds what the ONNX text format has no words for:

    # weights: normal w1 b1        the values declared as w1 and b1 become initializers with random data
    # external: 256                weights of at least so many bytes are saved beside the model

Type and shape of a weight are declared once, where ONNX text declares values: `<float[8, 3, 3, 3] w1, ...>`.
The data depends on the model's and the weight's name only, so editing one weight changes no other.
"""

from __future__ import annotations

import argparse
import math
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import checker, helper, numpy_helper, parser, shape_inference

HERE = Path(__file__).resolve().parent
DIRECTIVE = re.compile(r"(weights|external):\s*(.+)")

Shape = tuple[int, ...]
Fill = Callable[[np.random.Generator, Shape], np.ndarray]


def _normal(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Scaled by the fan-in, so that activations stay of order one through any depth."""
    return rng.standard_normal(shape) / math.sqrt(math.prod(shape[1:]))


def _positive(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """For variances and scales: away from zero, on both sides of one."""
    return rng.uniform(0.5, 1.5, shape)


def _integers(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """For quantized weights: the range of int8 without -128."""
    return rng.integers(-127, 128, shape)


FILLS: dict[str, Fill] = {"normal": _normal, "positive": _positive, "integers": _integers}


def header(text: str) -> tuple[str, dict[str, str], int | None]:
    """Split the leading comment into its prose, the fill of each weight, and the external-data threshold."""
    prose: list[str] = []
    fills: dict[str, str] = {}
    external: int | None = None
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        comment = line.removeprefix("#").strip()
        directive = DIRECTIVE.fullmatch(comment)
        if directive is None:
            prose.append(comment)
        elif directive[1] == "external":
            external = int(directive[2])
        else:
            fill, *names = directive[2].split()
            fills.update(dict.fromkeys(names, fill))
    return " ".join(prose).strip(), fills, external


def build(text_path: Path) -> onnx.ModelProto:
    """The checked model of one text file, weights inline.

    Raises ValueError for a `weights:` line that fits no declaration, and onnx's own errors for a text that
    does not parse, check or infer.
    """
    text = text_path.read_text(encoding="utf-8")
    prose, fills, _ = header(text)
    model = parser.parse_model(text)
    model.doc_string = prose
    declared = {value.name: value for value in model.graph.value_info}
    for name, fill in fills.items():
        if name not in declared:
            raise ValueError(f"{text_path.name}: weight {name!r} is not declared in the main graph")
        if fill not in FILLS:
            raise ValueError(f"{text_path.name}: no fill {fill!r}; known are {', '.join(FILLS)}")
        value = declared[name]
        model.graph.value_info.remove(value)
        model.graph.initializer.append(_weight(model.graph.name, value, FILLS[fill]))
    checker.check_model(model, full_check=True)
    shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    return model


def _weight(model_name: str, value: onnx.ValueInfoProto, fill: Fill) -> onnx.TensorProto:
    kind = value.type.tensor_type
    shape = tuple(dim.dim_value for dim in kind.shape.dim)
    rng = np.random.default_rng(zlib.crc32(f"{model_name}/{value.name}".encode()))
    data = fill(rng, shape).astype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return numpy_helper.from_array(data, value.name)


def build_all(out_dir: Path) -> list[Path]:
    """Write every sample to `out_dir` as `<name>.onnx` and return the paths, in order of name."""
    out_dir.mkdir(parents=True, exist_ok=True)
    return [_write(text_path, out_dir) for text_path in sorted(HERE.glob("*.onnxtxt"))]


def _write(text_path: Path, out_dir: Path) -> Path:
    model = build(text_path)
    _, _, external = header(text_path.read_text(encoding="utf-8"))
    path = out_dir / f"{text_path.stem}.onnx"
    if external is None:
        onnx.save(model, path)
        return path
    data = path.with_suffix(".data")
    data.unlink(missing_ok=True)  # onnx appends to, or refuses, a file that is there
    onnx.save(model, path, save_as_external_data=True, location=data.name, size_threshold=external)
    checker.check_model(str(path), full_check=True)
    return path


def main() -> None:
    args = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    args.add_argument("outdir", nargs="?", type=Path, default=HERE / "build", help="by default models/build")
    for path in build_all(args.parse_args().outdir):
        print(path)


if __name__ == "__main__":
    main()
