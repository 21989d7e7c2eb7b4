"""The build tree that the tests are about, and how they run commands."""
import pathlib
import subprocess

import pytest


def pytest_addoption(parser):
    parser.addoption("--build-dir", required=True, help="build directory")


@pytest.fixture
def build(request):
    return pathlib.Path(request.config.getoption("--build-dir")).resolve()


@pytest.fixture
def run():
    def run(*command, status=0, **options):
        """What the command prints, errors too; it must end with this status, and within two minutes."""
        done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
                              stdin=subprocess.DEVNULL, check=False, **options)
        assert done.returncode == status, f"{command} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    return run
