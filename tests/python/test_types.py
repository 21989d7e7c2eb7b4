"""The package's types, checked by mypy."""
import os
import shutil
import subprocess
import sys

import pytest


def test_mypy_strict(build):
    here = os.path.dirname(os.path.abspath(__file__))
    config = os.path.join(here, "..", "..", "client", "python", "pyproject.toml")
    mypy = [shutil.which("mypy")]
    if mypy == [None]:
        found = subprocess.run([sys.executable, "-m", "mypy", "--version"], capture_output=True)
        if found.returncode != 0:
            pytest.skip("mypy is not installed (deploy/deps.sh installs it)")
        mypy = [sys.executable, "-m", "mypy"]
    package = os.path.join(build.directory, "python")
    done = subprocess.run([*mypy, "--strict", "--config-file", config, "--cache-dir", os.devnull, "-p", "amem"],
                          cwd=package, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    dropin = os.path.join(build.directory, "dropin")
    done = subprocess.run([*mypy, "--strict", "--config-file", config, "--cache-dir", os.devnull, "-p", "torch_memory_saver"],
                          cwd=dropin, env={**os.environ, "MYPYPATH": package}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    module = os.path.join(here, "made_up", "amem_made_up.py")  # what a distribution of somebody else has
    done = subprocess.run([*mypy, "--strict", "--follow-imports", "silent", "--cache-dir", os.devnull, module],
                          env={**os.environ, "MYPYPATH": package}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
