"""A project's own defaults: `onnxopt.toml`, or `[tool.onnxopt]` in `pyproject.toml`, in this folder or one above."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onnxopt.errors import UsageError, nearest


class ProjectCommand(click.Command):
    """A command whose options may have their defaults in the project's file; the command line goes before it."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        file, settings = find_settings(Path.cwd())
        if file is not None:
            extra["default_map"] = self._defaults(file, settings)
        return super().make_context(info_name, args, parent, **extra)

    def _defaults(self, file: Path, settings: dict[str, Any]) -> dict[str, Any]:
        known = _flags(self)
        defaults = {}
        for name, value in settings.items():
            if name not in known and name in _settings():
                continue  # of another command
            if name not in known:
                hint = nearest(name, known, f"there are {', '.join(known)}")
                raise UsageError(f"{file}: no setting is called {name!r}", hint)
            if name == "config" and isinstance(value, dict):
                value = [f"{key}={_plain(v)}" for key, v in value.items()]
            param = known[name]
            many = param.multiple if isinstance(param, click.Option) else False
            defaults[param.name or name] = [value] if many and not isinstance(value, list) else value
        return defaults


def _flags(command: click.Command) -> dict[str, click.Parameter]:
    return {flag.removeprefix("--"): p for p in command.params for flag in p.opts if flag.startswith("--") and p.name}


def _settings() -> dict[str, click.Parameter]:
    """What a project's file may set: the options of `optimize`."""
    from onnxopt.cli.optimize import optimize

    return _flags(optimize)


def find_settings(folder: Path) -> tuple[Path | None, dict[str, Any]]:
    """(file, settings) of the nearest file that has any. Raises UsageError for one that is not TOML."""
    for place in (folder, *folder.parents):
        file = place / "onnxopt.toml"
        if file.is_file():
            return file, _read(file)
        file = place / "pyproject.toml"
        if file.is_file() and b"[tool.onnxopt" in file.read_bytes():
            return file, _read(file).get("tool", {}).get("onnxopt", {})
    return None, {}


def _read(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(file.read_text())
    except (OSError, ValueError) as e:
        raise UsageError(f"{file} cannot be read: {e}", "correct it, or work in another folder") from None


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
