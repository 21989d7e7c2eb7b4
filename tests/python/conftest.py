"""Fixtures of the Python package's tests: the package of the build tree, a simulated node, a shim that only takes
notes."""
import contextlib
import ctypes
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "integration"))

from sim_node.child import eventually, patience  # noqa: E402
from sim_node.fixtures import bare_node, build, node, node_with, pytest_addoption, pytest_runtest_makereport  # noqa: E402
from sim_node.node import Build  # noqa: E402

__all__ = ["bare_node", "build", "node", "node_with", "pytest_addoption", "pytest_runtest_makereport"]


def pytest_configure(config: pytest.Config) -> None:
    # Before the tests are read, which import the package.
    package = os.path.join(os.path.abspath(config.getoption("--build-dir")), "python")
    assert os.path.isdir(package), f"{package} is not there: build it, or name the build tree with --build-dir"
    sys.path.insert(0, package)


class Shim:
    """The fake shim, in this process as if it had been preloaded."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        self.library.fake_notes.restype = ctypes.c_char_p

    @property
    def notes(self) -> list[str]:
        """The calls so far, in order."""
        return str(self.library.fake_notes(), "utf-8").splitlines()

    def note(self, text: str) -> None:
        """For others whose calls are to be seen in order with the shim's."""
        self.library.fake_note(text.encode())

    def answer(self, code: int, text: str = "", for_tag: str = "") -> None:
        """What all calls give from now on; with `for_tag`, only pause and resume of that tag."""
        self.library.fake_answer(int(code), text.encode(), for_tag.encode())

    def stats(self, json: str) -> None:
        self.library.fake_stats(json.encode())

    def group(self, name: str) -> None:
        self.library.fake_group(name.encode())

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Pauses and resumes wait in the shim meanwhile, before they are noted."""
        self.library.fake_hold(1)
        try:
            yield
        finally:
            self.library.fake_hold(0)

    def called(self) -> None:
        """Returns when a call waits there."""
        eventually(self.library.fake_inside, what="a call has come to the shim")


def fake_shim_path(build: Build) -> str:
    return os.path.join(build.directory, "lib", "libfake_shim.so")


@pytest.fixture
def shim(build: Build) -> Iterator[Shim]:
    from amem import _shim

    fake = Shim(fake_shim_path(build))
    _shim._find.cache_clear()  # it may have been asked before the library was there
    fake.library.fake_reset()
    yield fake
    fake.library.fake_reset()


class Python:
    """Python processes with the package, on the simulated node when there is one."""

    def __init__(self, build: Build) -> None:
        self.build = build

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("AMEM_", "LD_"))}
        env["PYTHONPATH"] = os.path.join(self.build.directory, "python")
        env.update(more or {})
        return env

    def run(self, script: str, env: Mapping[str, str] | None = None, deadline: float = 60) -> str:
        """What the script printed; it must end well."""
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=self.environment(env),
                              capture_output=True, text=True, timeout=patience(deadline))
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def python(build: Build) -> Python:
    return Python(build)
