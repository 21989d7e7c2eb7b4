"""messages.py is what client/python/write_messages.py makes of broker.proto."""
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROTO = ROOT / "proto" / "amem" / "v1" / "broker.proto"

Change = Callable[[str, str], tuple[str | pathlib.Path, ...]]


def write(*arguments: str | os.PathLike[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-B", ROOT / "client" / "python" / "write_messages.py", *arguments],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)


@pytest.fixture
def changed(tmp_path: pathlib.Path) -> Change:
    """Writes a broker.proto in which something stands in another's place; gives the options that name it and its module."""
    def change(old: str, new: str) -> tuple[str | pathlib.Path, ...]:
        text = PROTO.read_text(encoding="utf-8")
        assert text.count(old) == 1
        (tmp_path / "broker.proto").write_text(text.replace(old, new), encoding="utf-8")
        return "--proto", tmp_path / "broker.proto", "--module", tmp_path / "messages.py"

    return change


def test_it_is_up_to_date() -> None:
    done = write("--check")
    assert done.returncode == 0, done.stdout


def test_a_change_of_the_schema_is_found_and_written(changed: Change, tmp_path: pathlib.Path) -> None:
    options = changed("message PoolStatus {\n", "message PoolStatus {\n  repeated Form forms = 90;  // as \"they\" come\n")
    module = tmp_path / "messages.py"
    module.write_text((ROOT / "client" / "python" / "amem" / "messages.py").read_text(encoding="utf-8"), encoding="utf-8")
    done = write("--check", *options)
    assert done.returncode == 1 and "run client/python/write_messages.py" in done.stdout
    assert write(*options).returncode == 0
    assert write("--check", *options).returncode == 0
    written = module.read_text(encoding="utf-8").split("class PoolStatus:")[1]
    assert written.startswith('\n    """The pinned host memory for saved bytes.\n\n    Attributes:\n'
                              '        forms: as "they" come\n')
    assert written.split('"""\n\n')[1].startswith("    forms: tuple[Form, ...]\n    configured_bytes: int\n")


@pytest.mark.parametrize("old, new, why", [
    ("  string error = 5; ", "  double error = 5; ", "PoolStatus.error has a type that write_messages.py does not support"),
    ("  string error = 5; ", "  optional string error = 5; ", "PoolStatus.error has a type that write_messages.py does not support"),
    ("  string error = 5; ", "  // or so\n  string error = 5; ", "PoolStatus.error has a comment above it and one behind it"),
    ("// A GPU of the node.\n", "// A GPU \\ of the node.\n", "the comment of DeviceStatus cannot be part of a docstring"),
])
def test_what_it_cannot_write_is_refused(changed: Change, tmp_path: pathlib.Path, old: str, new: str, why: str) -> None:
    done = write(*changed(old, new))
    assert done.returncode == 1 and why in done.stdout
    assert not (tmp_path / "messages.py").exists()
