"""Reproducers of pass failures: the model before the failing pass, remaining pipeline, settings, and error.

Nothing is recorded while passes run. Runs are deterministic: after a failure the run is repeated up to the failing
pass.
"""

from __future__ import annotations

import dataclasses
import filecmp
import json
import platform
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onnxopt.errors import InstrumentError, OnnxOptError, UsageError, WriteError, refuse_pipe, unwritable
from onnxopt.graph import Model
from onnxopt.io import load, refuse_overwriting_input, save
from onnxopt.pipeline.context import PassContext
from onnxopt.pipeline.execute import execute, remaining
from onnxopt.pipeline.instruments import CheckEach, VerifyEach
from onnxopt.pipeline.records import Instrument, Site
from onnxopt.pipeline.registry import load_module, loaded_modules
from onnxopt.pipeline.sequence import parse_pipeline, pipeline_text
from onnxopt.plaintext import line
from onnxopt.proto.messages import is_external
from onnxopt.runtime import version_of

if TYPE_CHECKING:
    from onnxopt.pipeline.base import Pass

_PACKAGES: Final = ("onnxopt", "onnx", "onnxruntime", "numpy")
_OURS: Final = ("plugins", "freeze_initializers", "check_each", "verify_each")  # settings outside the context
_OF_A_CONTEXT: Final = (
    *("opt_level", "required_pass", "disabled_pass", "disabled_rule"),
    *("excluded", "config", "target", "max_rewrites"),
)
_ZEROED_FROM: Final = 64  # bytes; smaller tensors may be shapes or axes


class _Stop(InstrumentError):
    """Raised before the failing pass."""


class _StopBefore(Instrument):
    def __init__(self, runs: int) -> None:
        self.runs = runs
        self.text = ""
        self.fuel: int | None = None

    def before(self, model: Model, p: Pass) -> None:
        ctx = PassContext.current()
        if not p.children and len(ctx.history) == self.runs:
            self.text = pipeline_text(remaining(p, ctx))
            self.fuel = ctx.fuel.left
            raise _Stop(f"before {p.name}")


def keep_reproducer(
    folder: str | Path,
    model: Model,
    pipeline: Pass,
    ctx: PassContext,
    error: OnnxOptError,
    freeze_initializers: bool = False,
    *,
    zero_weights: bool = False,
) -> None:
    """Repeat the failed run of `pipeline` up to the pass that raised `error`, and write a reproducer into `folder`.

    Writes `model.onnx`, `pipeline.txt`, `settings.json`, `environment.json`, `error.txt` and the plugins' files.
    `model` is in its state before the run, and is changed. `zero_weights` writes large tensors as zeros, for
    confidential models; the failure may depend on them. The error's hint names the folder. Raises WriteError.
    """
    assert error.failed is not None
    stop = _StopBefore(error.failed[0])
    again = dataclasses.replace(ctx, instruments=(stop,), trace=None)
    try:
        execute(pipeline, model, again)
    except _Stop:
        pass
    except OnnxOptError:
        return  # another failure: nothing useful to keep
    else:
        return
    if zero_weights:
        _zero(model)
    again.max_rewrites, again.instruments = stop.fuel, ctx.instruments
    write_reproducer(folder, model, stop.text, again, error, freeze_initializers=freeze_initializers)


def write_reproducer(
    folder: str | Path,
    model: Model,
    text: str,
    ctx: PassContext,
    error: OnnxOptError,
    *,
    freeze_initializers: bool = False,
    verify: bool = False,
) -> None:
    """Write a folder for `reproduce`: the pipeline `text` on `model`, with the settings of `ctx`.

    `verify`: compare the result of each pass with the model. The error's hint names the folder. Raises WriteError.
    """
    folder = Path(folder)
    settings = {
        "opt_level": ctx.opt_level,
        "required_pass": sorted(ctx.required_pass),
        "disabled_pass": sorted(ctx.disabled_pass),
        "disabled_rule": sorted(ctx.disabled_rule),
        "excluded": [[s.name, s.value, s.scope] for s in ctx.excluded],
        "config": dict(ctx.config),
        "target": ctx.target,
        "max_rewrites": ctx.max_rewrites,
        "freeze_initializers": freeze_initializers,
        "check_each": any(isinstance(i, CheckEach) for i in ctx.instruments),
        "verify_each": verify or any(isinstance(i, VerifyEach) for i in ctx.instruments),
    }
    for name in ("model.onnx", "settings.json", "environment.json", "pipeline.txt", "error.txt"):
        if model.path is not None:
            refuse_overwriting_input(model.path, folder / name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save(model, folder / "model.onnx")
        texts = {
            "settings.json": json.dumps(settings | {"plugins": _keep_plugins(folder)}, indent=2),
            "environment.json": json.dumps(environment(), indent=2),
            "pipeline.txt": text,
            "error.txt": line(error.message, whole=True),
        }
        for name, content in texts.items():
            (folder / name).unlink(missing_ok=True)  # which may be a link or a pipe
            (folder / name).write_text(content + "\n", encoding="utf-8")
    except OSError as e:
        raise unwritable(folder, e, "name another folder for --reproducer") from None
    error.hint = f"`onnxopt reproduce {folder}` runs it again; attach the folder to a report"


def _keep_plugins(folder: Path) -> list[str]:
    """Copy loaded plugin files. Returns the modules and files to load, files relative to `folder`."""
    found: list[str] = []
    kept: dict[str, str] = {}
    for source in loaded_modules():
        if not source.endswith(".py"):
            found.append(source)
            continue
        name = Path(source).stem
        while kept.setdefault(name, source) != source:
            name += "_"  # a file of another folder with the same name
        found.append(f"plugins/{name}.py")
        target = folder / found[-1]
        if target.parent.is_symlink():
            raise WriteError(f"{target.parent} is a link", "name another folder for --reproducer")
        target.parent.mkdir(exist_ok=True)
        if not (target.exists() and target.samefile(source)):
            target.unlink(missing_ok=True)
            shutil.copyfile(source, target)
    return found


def reproduce(folder: str | Path) -> OnnxOptError | None:
    """Run a reproducer. Returns the error it ends in, or None. Raises UsageError for an invalid folder."""
    folder = Path(folder)
    try:
        refuse_pipe(folder / "settings.json")
        refuse_pipe(folder / "pipeline.txt")
        settings = _settings((folder / "settings.json").read_text(encoding="utf-8"))
        text = (folder / "pipeline.txt").read_text(encoding="utf-8")
    except (OSError, ValueError, RecursionError) as e:
        why = f"{Path(e.filename).name}: {e.strerror}" if isinstance(e, OSError) else f"settings.json: {e}"
        raise UsageError(f"{folder} is not a reproducer: {why}", "name the folder that --reproducer wrote") from None
    plugins, frozen, check_each, verify_each = (settings.pop(key) for key in _OURS)
    for plugin in plugins:
        if not plugin.endswith(".py"):
            load_module(plugin)
        elif not _is_loaded(folder / plugin):
            load_module(str(folder / plugin))
    instruments: list[Instrument] = [CheckEach()] if check_each else []
    if verify_each:
        instruments.append(VerifyEach(folder / "model.onnx"))
    ctx = PassContext(**settings, instruments=instruments)
    try:
        model = load(folder / "model.onnx", freeze_initializers=frozen, stored=True)
        execute(parse_pipeline(text), model, ctx)
    except OnnxOptError as e:
        if e.failed is None:
            raise
        return e
    return None


def _settings(text: str) -> dict[str, Any]:
    """Return the settings of settings.json; the context checks the values. Raises ValueError."""
    settings = json.loads(text)
    if not isinstance(settings, dict):
        raise ValueError("it holds no settings")
    if missing := {*_OURS} - settings.keys():
        raise ValueError(f"{min(missing)} is missing")
    if unknown := settings.keys() - {*_OURS, *_OF_A_CONTEXT}:
        raise ValueError(f"no setting is called {min(unknown)!r} in this version of onnxopt")
    plugins, sites = settings["plugins"], settings.get("excluded", [])
    if not isinstance(plugins, list) or not all(isinstance(p, str) for p in plugins):
        raise ValueError("plugins are not a list of files and modules")
    if not isinstance(sites, list) or not all(
        isinstance(s, list) and len(s) == 3 and all(isinstance(part, str) for part in s) for s in sites
    ):
        raise ValueError("excluded is not a list of [rule, value, scope]")
    settings["excluded"] = [Site(*names) for names in sites]
    return settings


def _is_loaded(file: Path) -> bool:
    """Whether an equal plugin file is loaded, as in the process that wrote the folder."""
    loaded = [source for source in loaded_modules() if source.endswith(".py") and Path(source).is_file()]
    return file.is_file() and any(filecmp.cmp(source, file, shallow=False) for source in loaded)


def environment() -> dict[str, str]:
    """Return the versions of Python, platform and relevant packages."""
    found = {"python": sys.version.split()[0], "platform": platform.platform()}
    return found | {name: version_of(name) for name in _PACKAGES}


def _zero(model: Model) -> None:
    for scope in model.scopes():
        for value in scope.initializers.values():
            tensor = value.tensor
            if tensor is None or not value.constant or is_external(tensor):
                continue
            size = len(value.stored or tensor.raw_data)
            if size >= _ZEROED_FROM:
                tensor.raw_data, value.stored = b"\0" * size, None
