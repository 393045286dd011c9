"""Commands as those of `tests/cli`: forked from one start."""

from __future__ import annotations

from tests.cli.conftest import fork_server, run

__all__ = ["fork_server", "run"]
