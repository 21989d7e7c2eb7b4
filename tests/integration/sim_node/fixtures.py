"""Fixtures of tests on a simulated node, and the logs of all processes with every failure. A conftest imports them."""
from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from sim_node.node import Build, Node
from sim_node.stage import start_stage


ROOT = pathlib.Path(__file__).parents[3]


def has_add_on(name: str) -> bool:
    """Whether this tree has that add-on of addons/where.txt."""
    lines = map(str.split, (ROOT / "addons" / "where.txt").read_text(encoding="utf-8").splitlines())
    return (ROOT / next(words[1] for words in lines if words[0] == name)).exists()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("add_on"):
        if not has_add_on(mark.args[0]):
            pytest.skip(f"this tree has no add-on {mark.args[0]}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--build-dir", default=os.environ.get("BUILD_DIR", "build/release"),
                     help="build tree under test (default: $BUILD_DIR, else build/release)")


@pytest.fixture(scope="session")
def build(request: pytest.FixtureRequest) -> Iterator[Build]:
    build = Build(request.config.getoption("--build-dir"))
    yield build
    build.close()


@pytest.fixture
def bare_node(request: pytest.FixtureRequest, build: Build, tmp_path: pathlib.Path) -> Iterator[Node]:
    """A simulated node without a broker."""
    node = Node(build, str(tmp_path))
    if request.node.get_closest_marker("next_broker"):
        node.settings["AMEM_HOLDER"] = "auto"
    yield node
    node.close()


def install(node: Node) -> str:
    """A copy of amemd, with its holder beside it, that a test may replace. Its path."""
    folder = os.path.join(node.dir, "bin")
    os.mkdir(folder)
    for name in ("amemd", "amem-holder"):
        shutil.copy(node.build.program(name), folder)
    return os.path.join(folder, "amemd")


@pytest.fixture
def installed(bare_node: Node) -> str:
    """amemd's path on a node on which it may be replaced. It serves."""
    path = install(bare_node)
    bare_node.start_broker(program=path)
    return path


@pytest.fixture
def node_with(bare_node: Node) -> Iterator[Callable[..., Node]]:
    """Makes the simulated node with a broker of these flags, which must live through the test and end cleanly."""
    def with_flags(*flags: str) -> Node:
        bare_node.start_broker(*flags)
        return bare_node

    yield with_flags
    broker = bare_node.broker
    assert broker.alive(), f"amemd died: {broker.wait()}"
    for child in bare_node.children:
        if child is not broker and child.alive():
            child.kill()
    assert broker.terminate() == 0


@pytest.fixture
def node(node_with: Callable[..., Node]) -> Node:
    """A simulated node with a broker, likewise."""
    return node_with()


@pytest.fixture
def stage(bare_node: Node) -> Iterator[Callable[..., Node]]:
    """Starts amemd with a stage of one GPU, with these flags and settings."""
    def start(*flags: str, **settings: Any) -> Node:
        return start_stage(bare_node, *flags, **settings)

    yield start
    assert bare_node.broker.alive()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    report = (yield).get_result()
    if not report.failed or not isinstance(item, pytest.Function) or "tmp_path" not in item.funcargs:
        return
    logs = item.funcargs["tmp_path"]
    assert isinstance(logs, pathlib.Path)
    for path in sorted(logs.glob("*.log")):
        lines = [line if len(line) < 400 else line[:400] + "..."
                 for line in path.read_text(errors="replace").splitlines()]
        cut = [f"... {len(lines) - 120} lines before"] if len(lines) > 120 else []
        report.sections.append((path.name, "\n".join(cut + lines[-120:])))
