"""`onnxopt` as users run it: the installed script, on real files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.cli.conftest import Run, operators

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
# `make fuzz` runs four more: large ones, with the same kinds of layers.
LONG = {"light_vgg19", "light_inception_v2", "light_resnet50", "light_zfnet512"}
PACKAGED = sorted(p for p in LIGHT.glob("*.onnx") if p.stem not in LONG or "ONNXOPT_FUZZ" in os.environ)


def test_optimize_folds_and_verifies(run: Run, samples: Path, tmp_path: Path) -> None:
    before = (samples / "residual_block.onnx").read_bytes()
    r = run("optimize", samples / "residual_block.onnx", "out.onnx")
    assert r.returncode == 0, r.stderr
    assert "9 → 6 nodes (-33%)" in r.stdout
    assert "✓ verified: largest difference" in r.stdout
    assert r.stderr == ""
    assert "BatchNormalization" not in operators(tmp_path / "out.onnx")
    assert (samples / "residual_block.onnx").read_bytes() == before


def test_every_sample_is_optimized_and_verified(run: Run, samples: Path, tmp_path: Path) -> None:
    paths = sorted(samples.glob("*.onnx"))
    r = run("optimize", *paths, "--out-dir", "made", "--strict")
    assert r.returncode == 0, r.stdout + r.stderr
    for path in paths:
        ((line, end),) = re.findall(rf"^(✓ made/{path.name}: .*), (\w+)$", r.stdout, re.MULTILINE)
        assert end in ("verified", "equal", "unchanged"), line
    r = run("optimize", *(f"made/{path.name}" for path in paths), "--out-dir", "again")
    assert f"{len(paths)} models: {len(paths)} unchanged" in r.stdout
    for path in paths:
        if path.name != "external_weights.onnx":  # this result has the name of its data file inside
            assert (tmp_path / "again" / path.name).read_bytes() == (tmp_path / "made" / path.name).read_bytes()


def test_level_0_copies_the_bytes(run: Run, samples: Path, tmp_path: Path) -> None:
    r = run("optimize", "-O0", samples / "transformer_block.onnx", "out.onnx")
    assert r.returncode == 0
    assert (tmp_path / "out.onnx").read_bytes() == (samples / "transformer_block.onnx").read_bytes()


def test_level_1_keeps_batch_normalization(run: Run, samples: Path, tmp_path: Path) -> None:
    assert run("optimize", "-O", "1", samples / "residual_block.onnx", "out.onnx").returncode == 0
    assert "BatchNormalization" in operators(tmp_path / "out.onnx")


def test_passes_can_be_chosen_and_disabled(run: Run, samples: Path, tmp_path: Path) -> None:
    source = samples / "residual_block.onnx"
    run("optimize", source, "out.onnx", "--disable", "conv-bn-folding")
    assert "BatchNormalization" in operators(tmp_path / "out.onnx")
    run("optimize", source, "out.onnx", "--pipeline", "conv-bn-folding")
    assert "BatchNormalization" not in operators(tmp_path / "out.onnx")
    r = run("optimize", source, "out.onnx", "--pipeline", "conv-bn-foldin")
    assert r.returncode == 2
    assert "did you mean conv-bn-folding" in r.stderr


def test_the_report_holds_everything(run: Run, samples: Path, tmp_path: Path) -> None:
    run("optimize", samples / "must_stay.onnx", "out.onnx", "--report", "report.json", "-q")
    report = json.loads((tmp_path / "report.json").read_text())
    folding = next(p for p in report["pipeline"]["passes"] if p["name"] == "conv-bn-folding")
    assert "Conv output used elsewhere" in folding["rules"]["fold_conv_bn"]["declined"]
    assert report["bytes_before"] == (samples / "must_stay.onnx").stat().st_size


def test_verbose_gives_reasons_of_declined_rewrites(run: Run, samples: Path) -> None:
    r = run("optimize", samples / "must_stay.onnx", "out.onnx", "-v")
    assert "Conv output used elsewhere" in r.stdout


def test_quiet_is_quiet(run: Run, samples: Path) -> None:
    r = run("optimize", samples / "residual_block.onnx", "out.onnx", "-q")
    assert (r.stdout, r.stderr) == ("", "")


@pytest.mark.parametrize(
    ("args", "says", "hint"),
    [
        (["missing.onnx", "out.onnx"], "missing.onnx: no such file", "check the path"),
        (["folder/goood", "out.onnx"], "folder/goood: no such file", "check the path"),
        (["goood", "out.onnx"], "goood: no such file", "did you mean good.onnx?"),
        (["lost.onnx", "out.onnx"], "lost.onnx: no such file", "it is a link to gone.onnx, where no file is"),
        (["nowhere/good.onnx", "out.onnx"], "nowhere/good.onnx: no such file", "there is no folder nowhere"),
        (["good.onnx", "out.onnx", "--input", "x=x.npy"], "--input x=x.npy: no such file", "check the path"),
        (["folder", "out.onnx"], "is a directory", "there is no .onnx file in it"),
        ([".", "out.onnx"], ". is a directory", "name the models in it: ./*.onnx"),
        (["goo*.onnx", "out.onnx"], "goo*.onnx: no such file", "the shell expands patterns: write it without quotes"),
        (["fo*.onnx", "out.onnx"], "fo*.onnx: no such file", "no file is called like that"),
        (["good.onnx", "out.onnx", "--report", "r.html"], "--report writes JSON", "onnxopt report IN OUT -o r.html"),
        (["empty.onnx", "out.onnx"], "is empty", "did not finish"),
        (["text.onnx", "out.onnx"], "not an ONNX model", "export or download"),
        (["good.onnx", "good.onnx"], "is the input itself", "another name, the original stays untouched; --in-place"),
        (["good.onnx", "./link.onnx"], "is the input itself", "untouched; --in-place replaces it"),
        (["good.onnx", "folder"], "is a directory", "name the file"),
        (["good.onnx", "new/"], "new/ is a folder that is not there", "name the file to write, or --out-dir DIR"),
        (["good.onnx", "nowhere/out.onnx"], "cannot write nowhere/out.onnx", "create the folder"),
        (
            ["good.onnx", "out.onnx", "--report", "nowhere/r.json"],
            "cannot write nowhere/r.json",
            "create the folder",
        ),
        (["good.onnx", "out.onnx", "--no-verify", "--rtol", "1"], "--no-verify contradicts", "leave one"),
        (["good.onnx", "out.onnx", "--plugin", "no.py"], "no.py: no such file", "a plugin is a Python file"),
        (["good.onnx", "out.onnx", "--plugin", "text.onnx"], "text.onnx is not a Python file", "a plugin is"),
        (["good.onnx", "out.onnx", "--disable", "zzz"], "no pass or rule is called 'zzz'", "onnxopt passes"),
        (
            ["good.onnx", "out.onnx", "--disable", "fold_conv_bm"],
            "is called 'fold_conv_bm'",
            "did you mean fold_conv_bn",
        ),
    ],
)
def test_errors_are_one_line_and_a_hint(
    args: list[str], says: str, hint: str, run: Run, samples: Path, tmp_path: Path
) -> None:
    good = (samples / "residual_block.onnx").read_bytes()
    (tmp_path / "good.onnx").write_bytes(good)
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.onnx").touch()
    (tmp_path / "text.onnx").write_text("hello")
    os.symlink("good.onnx", tmp_path / "link.onnx")
    os.symlink("gone.onnx", tmp_path / "lost.onnx")
    before = sorted(f.name for f in tmp_path.rglob("*"))
    r = run("optimize", *args)
    assert r.returncode == 2
    error, found, *rest = r.stderr.splitlines()
    assert error.startswith("error: ")
    assert says in error
    assert found.startswith("hint: ")
    assert hint in found
    assert not rest
    assert r.stdout == ""
    assert sorted(f.name for f in tmp_path.rglob("*")) == before
    assert (tmp_path / "good.onnx").read_bytes() == good


def damaged(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[:] = [7, 7]


def without_body(model: onnx.ModelProto) -> None:
    model.graph.node.insert(0, onnx.helper.make_node("Loop", ["", ""], ["nothing"]))


def of_no_type(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = 0


@pytest.mark.parametrize(
    ("spoil", "command", "says"),
    [
        (damaged, ["optimize", "bad.onnx", "out.onnx"], "tensor `w1` cannot be decoded"),
        (damaged, ["why", "bad.onnx", "fold_conv_bn"], "tensor `w1` cannot be decoded"),
        (without_body, ["optimize", "bad.onnx", "out.onnx"], "not a valid model: Required attribute 'body' is missing"),
        (of_no_type, ["optimize", "bad.onnx", "out.onnx"], "not a valid model: "),
    ],
)
def test_an_invalid_model_is_an_error_and_no_bug(
    spoil: Callable[[onnx.ModelProto], None], command: list[str], says: str, run: Run, samples: Path, tmp_path: Path
) -> None:
    model = onnx.load(samples / "conv_scale_shift.onnx")
    spoil(model)
    (tmp_path / "bad.onnx").write_bytes(model.SerializeToString())
    r = run(*command)
    assert r.returncode == 2
    assert says in r.stderr
    assert "bug" not in r.stderr
    assert [line.split(":")[0] for line in r.stderr.splitlines()] == ["error", "hint"]
    assert [p.name for p in tmp_path.iterdir()] == ["bad.onnx"]


@pytest.mark.parametrize(
    "args",
    [
        *(("optimize", "in.onnx", "out.onnx", option, "in.onnx") for option in ("--report", "--junit", "--journal")),
        ("optimize", "in.onnx", "out.onnx", "--report", "./out.onnx"),
        ("optimize", "in.onnx", "other.onnx", "--check", "--junit", "link.onnx"),
        ("optimize", "in.onnx", "--out-dir", "out", "--report", "out/in.onnx"),
        ("bisect", "in.onnx", "-o", "link.onnx"),
    ],
)
def test_reports_never_replace_a_model(args: tuple[str, ...], run: Run, samples: Path, tmp_path: Path) -> None:
    model = (samples / "residual_block.onnx").read_bytes()
    (tmp_path / "in.onnx").write_bytes(model)
    os.symlink("in.onnx", tmp_path / "link.onnx")
    (tmp_path / "out").mkdir()
    r = run(*args)
    assert r.returncode == 2
    assert r.stderr == f"error: {Path(args[-1])} is one of the models\nhint: write to another name\n"
    assert (tmp_path / "in.onnx").read_bytes() == model
    assert not (tmp_path / "out.onnx").exists()
    assert not list((tmp_path / "out").iterdir())


def test_a_wrong_result_is_not_written(run: Run, samples: Path, tmp_path: Path) -> None:
    (tmp_path / "out.onnx").write_bytes(b"before")
    r = run("optimize", samples / "residual_block.onnx", "out.onnx", "--rtol", "0", "--atol", "0", "--strict")
    assert r.returncode == 1
    assert "DIFFERENT: output `y`" in r.stdout
    assert "the result differs from the original: output `y`" in r.stderr
    assert (tmp_path / "out.onnx").read_bytes() == b"before"
    assert [f.name for f in tmp_path.iterdir()] == ["out.onnx"]


def test_no_colour_and_no_escape_codes_in_a_pipe(run: Run, samples: Path) -> None:
    assert "\x1b" not in run("stats", samples / "residual_block.onnx", NO_COLOR="1").stdout
    assert "\x1b" not in run("passes").stdout
    assert "\x1b" not in run("optimize", "nothing.onnx", "out.onnx").stderr


def test_given_inputs(run: Run, samples: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((5, 3, 16, 16), np.float32))
    r = run("optimize", samples / "residual_block.onnx", "out.onnx", "--input", "x=x.npy", "--report", "r.json")
    assert r.returncode == 0, r.stderr
    cases = json.loads((tmp_path / "r.json").read_text())["verification"]["cases"]
    assert cases[0]["outputs"][0]["shape"][0] == 5
    assert run("optimize", samples / "residual_block.onnx", "out.onnx", "--input", "x=no.npy").returncode == 2


def test_frozen_initializers_are_constants_and_no_longer_inputs(run: Run, samples: Path, tmp_path: Path) -> None:
    r = run("optimize", samples / "must_stay.onnx", "out.onnx", "--freeze-initializers")
    assert r.returncode == 0, r.stderr
    assert [i.name for i in onnx.load(tmp_path / "out.onnx").graph.input] == ["x"]
    assert operators(tmp_path / "out.onnx").count("BatchNormalization") == 3, "one folds more than without"


def test_stats_counts_and_compares(run: Run, samples: Path) -> None:
    run("optimize", samples / "residual_block.onnx", "out.onnx")
    both = json.loads(run("stats", samples / "residual_block.onnx", "out.onnx", "--format", "json").stdout)
    assert both["before"]["operators"]["BatchNormalization"] == 3
    assert "BatchNormalization" not in both["after"]["operators"]
    assert both["before"]["nodes"] - both["after"]["nodes"] == 3
    weights = 8 * 3 * 9 + 8 * 8 * 9 + 8 + 8 * 3 + 12 * 8
    assert both["before"]["parameters"] == weights
    table = run("stats", samples / "residual_block.onnx", "out.onnx").stdout
    assert "BatchNormalization" in table
    assert "-100%" in table
    markdown = run("stats", samples / "residual_block.onnx", "out.onnx", "--format", "markdown").stdout
    assert "| BatchNormalization | 3 | 0 | -3 |" in markdown


def test_passes_lists_the_passes(run: Run) -> None:
    out = run("passes").stdout
    for name in ("canonicalize", "elim-identity", "constant-folding", "conv-bn-folding", "conv-add-folding"):
        assert name in out


# All other nodes stay, with the same constants.
ONLY_DROPOUTS = {"light_bvlc_alexnet", "light_inception_v1", "light_squeezenet"}


@pytest.mark.parametrize("path", PACKAGED, ids=lambda p: p.stem)
def test_packaged_networks_give_their_packaged_outputs(path: Path, run: Run, tmp_path: Path) -> None:
    """Networks packaged with onnx (ResNet-50, DenseNet-121, …) give their packaged outputs after optimization."""
    import onnxruntime as rt

    r = run("optimize", path, "out.onnx", "-v")
    assert r.returncode == 0, r.stderr
    found = "✓ equal" if path.stem in ONLY_DROPOUTS else "✓ verified in pieces"
    assert found in r.stdout, "their weights are fills: outputs are constant, and say less than pieces and files do"
    options = rt.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = rt.GraphOptimizationLevel.ORT_DISABLE_ALL  # fills are made at their use,
    options.enable_cpu_mem_arena = False  # and freed then
    session = rt.InferenceSession(tmp_path / "out.onnx", options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    x = (np.arange(np.prod(given.shape)).reshape(given.shape) / np.prod(given.shape)).astype(np.float32)
    expected = numpy_helper.to_array(onnx.load_tensor(LIGHT / f"{path.stem}_output_0.pb"))
    assert np.allclose(session.run(None, {given.name: x})[0], expected, rtol=1e-3)
    assert "repeated elements stay a node" in r.stdout, "large fills are not written out, neither by folding"
    grown = (tmp_path / "out.onnx").stat().st_size - path.stat().st_size
    assert grown < 1 << 17, "of up to half a gigabyte; nor where BatchNormalization could be folded into them"


def test_provenance(run: Run, models: list[str], tmp_path: Path) -> None:
    import hashlib

    original = tmp_path / models[0]
    for out in ("a.onnx", "b.onnx"):
        assert run("optimize", models[0], out, "--provenance").returncode == 0
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    said = {p.key: p.value for p in onnx.load(tmp_path / "a.onnx").metadata_props}
    assert said["onnxopt.source_sha256"] == hashlib.sha256(original.read_bytes()).hexdigest()
    assert said["onnxopt.pipeline"].startswith("fixpoint(lift-constants,")
    assert said["onnxopt.version"]
    assert run("optimize", "a.onnx", "again.onnx", "--provenance").returncode == 0
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "a.onnx").read_bytes(), "nothing was changed"
    assert run("optimize", models[0], "plain.onnx").returncode == 0
    assert not onnx.load(tmp_path / "plain.onnx").metadata_props
    assert run("optimize", models[2], "noted.onnx", "--provenance").returncode == 0
    assert len(onnx.load(tmp_path / "noted.onnx").metadata_props) == 3, "also where no rewrite fires"
