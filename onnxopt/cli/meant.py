"""Equivalents for options and commands of other tools, imported at an unknown option or command."""

from __future__ import annotations

from typing import Final

_DISABLE: Final = "--disable PASS leaves a pass or a rule out; `onnxopt passes` lists them"
_SIZE_HINT: Final = "--shape x:1,3,224,224 fixes an input's sizes, --dim batch=1 a dim's"
_NO_QUANTIZATION: Final = "weights are not quantized here: onnxopt optimize IN OUT --dtype float16 halves them"
_CHECKED: Final = "leave it out: the result is always verified, but with --no-verify"

_OPTIONS: Final = {
    **dict.fromkeys(("--fp16", "--float16", "--half", "--convert-fp16"), "--dtype float16"),
    **dict.fromkeys(("--bf16", "--bfloat16"), "--dtype bfloat16"),
    **dict.fromkeys(
        ("--input-int32", "--int64-to-int32", "--no-int64"), "--int32, with --no-keep-io inputs and outputs too"
    ),
    **dict.fromkeys(("--quantize", "--int8", "--quantization"), _NO_QUANTIZATION),
    **dict.fromkeys(
        ("--input-shape", "--input-shapes", "--override-input-shapes", "--overwrite-input-shape"), _SIZE_HINT
    ),
    "--test-input-shape": "--verify-dim batch=4 sizes a dim for verification only",
    **dict.fromkeys(("--no-optimization", "--no-fusion", "--disable-optimization", "--disable-attention"), _DISABLE),
    **dict.fromkeys(("--skip-constant-folding", "--no-constant-folding"), "--disable constant-folding"),
    **dict.fromkeys(
        ("--skip-shape-inference", "--no-shape-infer", "--skip-onnx-shape", "--skip-symbolic-shape"),
        "leave it out: shapes are inferred as rules ask",
    ),
    "--include-subgraph": "leave it out: bodies are always optimized",
    **dict.fromkeys(("--check-n", "--model-check", "--enable-check"), _CHECKED),
    "--no-check": "--no-verify",
    "--unused-output": "--outputs NAMES keeps those that are named",
    **dict.fromkeys(("--save-as-external-data", "--all-tensors-to-one-file"), "--external copy"),
    **dict.fromkeys(("--opset", "--opset-version"), "--target-opset N"),
    **dict.fromkeys(("--dim-param", "--dim-value"), "--dim batch=1"),
    **dict.fromkeys(("--enable-optimization", "--enable-fuse-bn"), "--with PASS, or -O3"),
    **dict.fromkeys(("--fixed-point", "--num-passes"), "leave it out: levels run until nothing changes"),
    **dict.fromkeys(("--fold-constants", "--cleanup", "--toposort"), "leave it out: -O1 does it"),
    **dict.fromkeys(("--opt-level", "--optimization-level"), "-O1, -O2, or -O3"),
    **dict.fromkeys(("--model-type", "--num-heads", "--hidden-size"), "leave it out: -O3 reads it off the graph"),
    **dict.fromkeys(("--use-gpu", "--only-onnxruntime", "--target-platform"), "--target onnxruntime,cuda"),
    "--dynamic-input-shape": "leave it out: dims stay dynamic unless --dim or --shape fixes them",
    **dict.fromkeys(("--list-default-optimizers", "--print-all-passes"), "onnxopt passes"),
    **dict.fromkeys(("--no-large-tensor", "--size-threshold", "--fold-size-threshold"), "--max-constant-bytes N"),
    "--passes": "--pipeline PASSES",
    **dict.fromkeys(("--input-data-path", "--input-data"), "--input NAME=FILE.npy"),
    "--tensor-size-threshold": "--max-constant-bytes N",
    **dict.fromkeys(("--inspect", "--dump-to-disk"), "onnxopt stats MODEL"),
}
_COMMANDS: Final = {
    **dict.fromkeys(("simplify", "slim", "sim", "sanitize"), "onnxopt optimize IN OUT"),
    **dict.fromkeys(("info", "inspect", "summary", "show"), "onnxopt stats MODEL"),
    **dict.fromkeys(
        ("compare", "check"),
        "onnxopt verify A B says whether they compute the same, onnxopt diff A B what is in them",
    ),
    **dict.fromkeys(("profile", "benchmark", "time", "run"), "onnxopt bench MODEL"),
    **dict.fromkeys(("view", "visualize", "draw"), "onnxopt report MODEL"),
    **dict.fromkeys(("debug", "reduce"), "onnxopt bisect MODEL"),
    **dict.fromkeys(("quantize", "quantise"), _NO_QUANTIZATION),
    **dict.fromkeys(("surgeon", "cut", "split"), "onnxopt extract MODEL OUT; onnxopt partition MODEL"),
    "convert": "onnxopt optimize IN OUT --target-opset N, or --dtype float16",
}


def option(name: str) -> str:
    """Returns the hint for an option of another tool; empty for an unknown option."""
    word = name.replace("_", "-")
    return _OPTIONS.get(word, _DISABLE if word.startswith("--skip-") else "")


def command(name: str) -> str:
    """Returns the hint for a command of another tool; empty for an unknown command."""
    return _COMMANDS.get(name, "")
