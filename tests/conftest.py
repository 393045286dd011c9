"""The same machine for all tests. Tests of hundreds of small models keep the process that folds or judges."""

from __future__ import annotations

import compileall
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType

import pytest
from hypothesis import settings

from onnxopt.graph import Model
from onnxopt.verification import verifier
from onnxopt.verification.verifier import Verifier
from onnxopt.worker import service
from onnxopt.worker.service import Sandbox, Spare
from tests.commands import fork_server, run
from tests.installed import place
from tests.samples import ROOT

__all__ = ["fork_server", "place", "run"]

# What commands do otherwise in a build, in colours, or as their user has set them up.
for name in (
    *("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"),
    *("ONNXOPT_DEBUG", "ONNXOPT_PROJECT_FILE", "ONNXOPT_CACHE_KEY"),
):
    os.environ.pop(name, None)
Model.debug = True  # the use of a value that no longer is raises


def pytest_configure(config: pytest.Config) -> None:
    """Compile the package once: commands, which keep no byte code (see below), would compile at each of their starts
    what has changed."""
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(ROOT / "onnxopt", quiet=2)


def pytest_collection_finish() -> None:
    """Byte code of tests is kept, and of nothing else: a plugin's is left beside it, and would be taken for that of one
    of the same size that replaces the plugin in a second. Nine thousand tests are garbage of nobody: each full
    collection would go through all of them."""
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    gc.collect()
    gc.freeze()


# How long an example takes says how busy the machine is: the first imports what it needs.
settings.register_profile("onnxopt", deadline=None)
settings.load_profile("onnxopt")


@pytest.fixture(scope="session", autouse=True)
def workers_are_forked() -> Iterator[None]:
    """The start of a worker is most of what the verdict on a small model costs."""
    if sys.platform != "linux":
        yield
        return
    from tests import worker_server

    worker_server.fork_workers()
    yield
    worker_server.end_server()


@contextmanager
def _keeping(module: ModuleType, owner: type[Sandbox] | type[Verifier]) -> Iterator[None]:
    """As a batch does with its small models: what `owner` closes is kept for the next one, which begins where its start
    would end. One of another program, or with another limit, is a new one; so is one that died, or has had much memory.
    """
    spare, started = Spare(), service.Service

    def take(start: str, timeout: float, memory: int) -> service.Service:
        with pytest.MonkeyPatch.context() as within:  # a spare starts the first worker by the name that is replaced
            within.setattr(service, "Service", started)
            return spare.take(start, timeout, memory)

    def close(self: Sandbox | Verifier) -> None:
        if self._service is not None:
            spare.keep(self._service)
            self._service = None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Service", take)
        patch.setattr(owner, "close", close)
        yield
    spare.close()


def keeping_worker() -> AbstractContextManager[None]:
    """Keep the process that folds: its start dominates; tests of its start and end are elsewhere."""
    return _keeping(service, Sandbox)


def keeping_judge() -> AbstractContextManager[None]:
    return _keeping(verifier, Verifier)


@pytest.fixture(scope="module")
def kept_worker() -> Iterator[None]:
    with keeping_worker():
        yield


@pytest.fixture(scope="module")
def kept_judge() -> Iterator[None]:
    with keeping_judge():
        yield


@contextmanager
def registry_restored() -> Iterator[None]:
    """Forget the passes, config keys and plugins registered within the block."""
    from onnxopt.pipeline import registry, settings

    with pytest.MonkeyPatch.context() as patch:
        for name in ("_PASSES", "_ORIGINS", "_MODULES"):
            patch.setattr(registry, name, getattr(registry, name).copy())
        patch.setattr(settings, "DECLARED", settings.DECLARED.copy())
        for name in [m for m in sys.modules if m.startswith("onnxopt_plugin_")]:
            patch.delitem(sys.modules, name)
        for name in [n for n, cls in registry._PASSES.items() if cls.__module__.startswith("onnxopt_plugin_")]:
            del registry._PASSES[name]  # of the surrounding module of tests, whose plugin is forgotten
        yield
        for name in [m for m in sys.modules if m.startswith("onnxopt_plugin_")]:
            del sys.modules[name]  # its passes are forgotten now: whoever wants them imports it again


@pytest.fixture(scope="module", autouse=True)
def registry_of_the_module() -> Iterator[None]:
    """No module of tests sees what another registered, whichever process runs them."""
    with registry_restored():
        yield


@pytest.fixture
def registry_as_it_was() -> Iterator[None]:
    """Forget what a test registers."""
    with registry_restored():
        yield
