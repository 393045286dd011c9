"""Equivalents for options and commands of other tools, imported at an unknown option or command."""

from __future__ import annotations

from typing import Final

_DISABLE: Final = "--disable PASS leaves a pass or a rule out; `onnxopt passes` lists them"
_SIZE_HINT: Final = "--shape x:1,3,224,224 fixes an input's sizes, --dim batch=1 a dim's"
_NO_QUANTIZATION: Final = "weights are not quantized here: onnxopt optimize IN OUT --dtype float16 halves them"
_CHECKED: Final = "leave it out: the result is always verified, but with --no-verify"

# Options of other tools without dashes, by hint.
_OPTIONS: Final = {
    f"--{word}": hint
    for hint, words in {
        "--dtype float16": "fp16 float16 half convert-fp16",
        "--dtype bfloat16": "bf16 bfloat16",
        "--int32, with --no-keep-io inputs and outputs too": "input-int32 int64-to-int32 no-int64",
        _NO_QUANTIZATION: "quantize int8 quantization",
        _SIZE_HINT: "input-shape input-shapes override-input-shapes overwrite-input-shape",
        "--verify-dim batch=4 sizes a dim for verification only": "test-input-shape",
        _DISABLE: "no-optimization no-fusion disable-optimization disable-attention",
        "--disable constant-folding": "skip-constant-folding no-constant-folding",
        "leave it out: shapes are inferred as rules ask": (
            "skip-shape-inference no-shape-infer skip-onnx-shape skip-symbolic-shape"
        ),
        "leave it out: bodies are always optimized": "include-subgraph",
        _CHECKED: "check-n model-check enable-check",
        "--no-verify": "no-check",
        "--outputs NAMES keeps those that are named": "unused-output",
        "--external copy": "save-as-external-data all-tensors-to-one-file",
        "--target-opset N": "opset opset-version",
        "--dim batch=1": "dim-param dim-value",
        "--with PASS, or -O3": "enable-optimization enable-fuse-bn",
        "leave it out: levels run until nothing changes": "fixed-point num-passes",
        "leave it out: -O1 does it": "fold-constants cleanup toposort",
        "-O1, -O2, or -O3": "opt-level optimization-level",
        "leave it out: -O3 reads it off the graph": "model-type num-heads hidden-size",
        "--target onnxruntime,cuda": "use-gpu only-onnxruntime target-platform",
        "leave it out: dims stay dynamic unless --dim or --shape fixes them": "dynamic-input-shape",
        "onnxopt passes": "list-default-optimizers print-all-passes",
        "--max-constant-bytes N": "no-large-tensor size-threshold fold-size-threshold tensor-size-threshold",
        "--pipeline PASSES": "passes",
        "--input NAME=FILE.npy": "input-data-path input-data",
        "onnxopt stats MODEL": "inspect dump-to-disk",
    }.items()
    for word in words.split()
}
# Commands of other tools, by hint.
_COMMANDS: Final = {
    word: hint
    for hint, words in {
        "onnxopt optimize IN OUT": "simplify slim sim sanitize",
        "onnxopt stats MODEL": "info inspect summary show",
        "onnxopt verify A B says whether they compute the same, onnxopt diff A B what is in them": "compare check",
        "onnxopt bench MODEL": "profile benchmark time run",
        "onnxopt report MODEL": "view visualize draw",
        "onnxopt bisect MODEL": "debug reduce",
        _NO_QUANTIZATION: "quantize quantise",
        "onnxopt extract MODEL OUT; onnxopt partition MODEL": "surgeon cut split",
        "onnxopt optimize IN OUT --target-opset N, or --dtype float16": "convert",
    }.items()
    for word in words.split()
}


def option(name: str) -> str:
    """Return the hint for an option of another tool; empty for an unknown option."""
    word = name.replace("_", "-")
    return _OPTIONS.get(word, _DISABLE if word.startswith("--skip-") else "")


def command(name: str) -> str:
    """Return the hint for a command of another tool; empty for an unknown command."""
    return _COMMANDS.get(name, "")
