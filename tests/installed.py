"""The package as users have it: a wheel, built from the sdist, in an environment without the project's files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.samples import ROOT


class Place:
    """A folder with an environment: Python, the dependencies of onnxopt, and no onnxopt.

    `pip` uses no index: `onnxopt` is the wheel built from the project.
    """

    def __init__(self, folder: Path) -> None:
        wheels, home = folder / "wheels", folder / "venv"
        build = [sys.executable, "-m", "hatchling", "build", "-d", str(wheels), "-t"]
        subprocess.run([*build, "sdist"], cwd=ROOT, check=True, capture_output=True)
        (sdist,) = wheels.glob("*.tar.gz")
        shutil.unpack_archive(sdist, folder, filter="data")
        source = folder / sdist.name.removesuffix(".tar.gz")
        subprocess.run([*build, "wheel"], cwd=source, check=True, capture_output=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
        python = home / "bin" / "python"
        find = "import sysconfig; print(sysconfig.get_path('purelib'))"
        own = subprocess.run([python, "-c", find], check=True, capture_output=True, text=True).stdout.strip()
        packages = [
            path for path in sys.path if Path(path).name == "site-packages"
        ]  # whose own .pth files are not read
        Path(own, "packages.pth").write_text("".join(f"{path}\n" for path in packages))
        pip = home / "bin" / "pip"
        pip.write_text(f'#!/bin/sh\nexec "{python}" -m pip "$@"\n')
        pip.chmod(0o755)
        self.command = home / "bin" / "onnxopt"
        self.packages = Path(own)
        self.environment = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}
        self.environment |= {
            "PATH": f"{home / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(wheels),
            "PIP_FORCE_REINSTALL": "1",
            "PIP_NO_DEPS": "1",
            "PIP_NO_BUILD_ISOLATION": "0",  # which means that it is off
            "PIP_NO_COMPILE": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_ROOT_USER_ACTION": "ignore",
        }

    def run(self, script: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a shell script that ends with the first failing command."""
        words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        environment = self.environment | env
        return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("installed"))
