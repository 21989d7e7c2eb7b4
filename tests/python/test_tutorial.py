"""docs/tutorial.md: its commands as they stand, in their order, print what the page says."""
import os
import pathlib
import socket
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import pasted  # noqa: E402
from sim_node.child import patience  # noqa: E402
from sim_node.node import Build  # noqa: E402

PAGE = ROOT / "docs" / "tutorial.md"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_its_commands_print_what_it_says(build: Build, tmp_path: pathlib.Path) -> None:
    """But for the first, which builds: that is README's, and this is a tree that is built."""
    assert pasted.blocks(PAGE.read_text(encoding="utf-8"))[0].commands == "./deploy/try.sh --sim\n"
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "release").symlink_to(os.path.abspath(build.directory))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AMEM_", "LD_", "PYTHON"))}
    environment.update(PATH=f"{os.path.dirname(sys.executable)}:{environment['PATH']}", PYTHONDONTWRITEBYTECODE="1",
                       TUTORIAL_PORT=str(free_port()))
    assert pasted.paste(PAGE, tmp_path, environment, patience(60), first=1) >= 10


@pytest.mark.parametrize("expected, printed", [
    ("a … c\n", "a b c\n"), ("a…\n", "a\n"), ("…\nlast …\n", "one\ntwo\nlast 3\n"), ("…\nlast\n", "last\n"), ("", ""),
    ("a    … b\n", "a  1    b\n")])
def test_what_varies(expected: str, printed: str) -> None:
    assert pasted.matches(expected, printed)


@pytest.mark.parametrize("expected, printed", [
    ("a … c\n", "a b d\n"), ("a\n", "a\nb\n"), ("a\nb\n", "a\n"), ("a … c\n", "a\nc\n"), ("", "a\n"), ("a.c\n", "abc\n")])
def test_what_is_different(expected: str, printed: str) -> None:
    assert not pasted.matches(expected, printed)


def test_what_a_terminal_shows() -> None:
    assert pasted.seen("\rtrain  save\x1b[K\rtrain  drop\x1b[K\r\x1b[Ktrain: \x1b[32mpaused\x1b[0m in 3 ms\r\n") == "train: paused in 3 ms\n"


def test_a_page_that_is_wrong_is_found(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.md"
    for text, why in (("```sh\necho a\n```\n", "but printed:\na\n"), ("```sh\nfalse\n```\n", "ended with 1"),
                      ("```sh\nsleep 60\n```\n", "has not ended within 1 s"), ("```sh\nexit 0\n```\n", "has not ended when bash did"),
                      ("```sh\necho a\n```\n```text\na\n```\n```sh\necho b\n```\n```text\nc\n```\n", "page.md:8: is to print:\nc\n")):
        page.write_text(text)
        with pytest.raises(pasted.Different) as different:
            pasted.paste(page, tmp_path, dict(os.environ), 1)
        assert why in str(different.value)
