"""Arguments of the API's functions: models in memory as files, arrays as files, and unknown keywords."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from onnxopt.arguments import dict_in, kind
from onnxopt.errors import OnnxOptError, UsageError, file_path, nearest

if TYPE_CHECKING:
    from onnx import ModelProto

    AnyModel: TypeAlias = "str | os.PathLike[str] | ModelProto"

IN_MEMORY = "ModelProto"  # how messages call a model without a file


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder, removed at the end of the block; errors raised in the block do not name the folder."""
    with tempfile.TemporaryDirectory(prefix="onnxopt.") as name:
        try:
            yield Path(name)
        except OnnxOptError as e:
            e.message, e.hint = (text.replace(f"{name}{os.sep}", "") for text in (e.message, e.hint))
            raise


@contextmanager
def model_file(model: AnyModel) -> Iterator[Path]:
    """Yield the path of a model, given or of a temporary file for a ModelProto. Raises UsageError for other types."""
    from onnx import ModelProto

    if not isinstance(model, ModelProto):
        yield file_path(model)
        return
    from onnxopt.io.save import materialize

    with temporary_folder() as folder:
        materialize(model, folder / IN_MEMORY)
        yield folder / IN_MEMORY


def name_of(file: Path) -> str:
    """Return the user's name for a model with a file from `model_file`."""
    return IN_MEMORY if file.name == IN_MEMORY else str(file)


@contextmanager
def input_files(given: Mapping[str, Any], setting: str) -> Iterator[dict[str, str]]:
    """Yield a .npy file for each input, given or temporary for an array. Raises UsageError, naming `setting`."""
    given = dict_in(given, setting, "array")
    arrays = {name: value for name, value in given.items() if not isinstance(value, (str, os.PathLike))}
    files = {name: os.fspath(value) for name, value in given.items() if name not in arrays}
    if not arrays:
        yield files
        return
    import numpy as np

    with temporary_folder() as folder:
        for i, (name, value) in enumerate(arrays.items()):
            array = np.asarray(value)
            if array.dtype.hasobject and not all(isinstance(v, str) for v in array.flat):
                raise UsageError(
                    f"{setting}[{name!r}] is {kind(value)}, not an array",
                    "an array of numbers or text, or the path of a .npy file",
                )
            files[name] = str(folder / f"array {i + 1}")
            with open(files[name], "wb") as file:
                np.save(file, array.astype(str) if array.dtype.hasobject else array, allow_pickle=False)
        yield files


# -- unknown keywords -------------------------------------------------------------------------------------------------

_DEFAULT: Final = "leave it out: that is always done"
_LOGGED: Final = 'logging.getLogger("onnxopt").setLevel("INFO") says what is done'
_FOLDING: Final = 'disable=["constant-folding"]'
_EQUIVALENTS: Final = {
    **dict.fromkeys(("fp16", "float16", "half", "to_fp16", "convert_fp16"), 'dtype="float16"'),
    **dict.fromkeys(("bf16", "bfloat16"), 'dtype="bfloat16"'),
    **dict.fromkeys(("input_int32", "int64_to_int32"), "int32=True"),
    # of the command
    "with": 'extra=["PASS"]',
    "dim": 'dims={"batch": 1}',
    "shape": 'shapes={"x": (1, 3, 224, 224)}',
    "plugin": 'plugins=["passes.py"]',
    "allow_domain": 'allow_domains=["DOMAIN"]',
    "verify_dim": 'verify_dims={"batch": 4}',
    "no_verify": "verify=False",
    **dict.fromkeys(("quiet", "verbose", "v"), _LOGGED),
    "stats": "onnxopt.stats(model)",
    "report": "what is returned has .report",
    # of records
    **dict.fromkeys(("options", "verify_options"), "each of their fields is a keyword of its own, such as level=3"),
    "check_result": "verify=False",
    "limits": "memory=BYTES, work=SECONDS",
    # onnxsim.simplify
    **dict.fromkeys(("check", "check_n"), "verify=True, which is the default"),
    "perform_optimization": "level=0 changes nothing",
    "skip_fuse_bn": 'disable=["conv-bn-folding"]',
    **dict.fromkeys(("input_shapes", "overwrite_input_shapes"), 'shapes={"x": (1, 3, 224, 224)}'),
    "test_input_shapes": 'verify_dims={"batch": 4}',
    "input_data": 'input={"x": array}',
    **dict.fromkeys(("skipped_optimizers", "skip_optimizations", "skip_fusion_patterns"), 'disable=["PASS"]'),
    "skip_constant_folding": _FOLDING,
    **dict.fromkeys(("skip_shape_inference", "no_shape_infer"), "leave it out: shapes are inferred as rules ask"),
    "dynamic_input_shape": "leave it out: dims stay dynamic unless dims or shapes fix them",
    "include_subgraph": _DEFAULT,
    "unused_output": 'outputs=["KEPT"]',
    **dict.fromkeys(("tensor_size_threshold", "size_threshold"), "max_constant_bytes=BYTES"),
    "mutable_initializer": "leave it out, or freeze_initializers=True for its contrary",
    "custom_lib": 'custom_op_libraries=["FILE"]',
    "target_opset_version": "target_opset=18",
    "extra_optimizers": 'extra=["PASS"]',
    **dict.fromkeys(("custom_rewriter", "function_rewrite_rules"), 'plugins=["passes.py"], extra=["PASS"]'),
    "check_rtol": "rtol=1e-3",
    "check_atol": "atol=1e-3",
    "input_fill": 'onnxopt.verify("a.onnx", "b.onnx", cases=["ones"])',
    "initializers_as_constants": _FOLDING,
    "import_custom_schemas": "leave it out: unknown operators stay as they are",
    # onnxslim.slim
    **dict.fromkeys(("output_model", "output_path", "destination", "out"), 'output="out.onnx"'),
    "model_check": "verify=True, which is the default",
    "model_check_inputs": 'input={"x": array}',
    "inspect": "onnxopt.stats(model)",
    "save_as_external_data": 'external="copy"',
    # onnxoptimizer.optimize
    "passes": 'pipeline="dead-code,elim-identity"',
    "fixed_point": 'pipeline="fixpoint(dead-code,elim-identity)"; levels are fixed points',
}


def refuse(called: str, wrong: Iterable[str], known: Collection[str]) -> None:
    """Raise TypeError for keywords `wrong` that the function `called` does not have, with the equivalents."""
    for name in wrong:
        if name not in known:
            meant = _EQUIVALENTS.get(name) or nearest(name, known, f"help(onnxopt.{called}) lists those that there are")
            raise TypeError(f"{called}() has no keyword {name}: {meant}")
