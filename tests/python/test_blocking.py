"""broker.py and cluster.py are what client/python/write_blocking.py makes of the coroutines."""
import pathlib
import shutil
import subprocess
import sys

import pytest

CLIENT = pathlib.Path(__file__).resolve().parents[2] / "client" / "python"
SOURCES = {"_broker.py": "broker.py", "_cluster.py": "cluster.py"}


def write(*arguments: str | pathlib.Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-B", CLIENT / "write_blocking.py", *arguments], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=60)


def test_they_are_up_to_date() -> None:
    done = write("--check")
    assert done.returncode == 0, done.stdout


@pytest.fixture
def package(tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of what is written, and from what."""
    (tmp_path / "aio").mkdir()
    for source, module in SOURCES.items():
        shutil.copy(CLIENT / "amem" / "aio" / source, tmp_path / "aio")
        shutil.copy(CLIENT / "amem" / module, tmp_path)
    return tmp_path


def change(package: pathlib.Path, source: str, old: str, new: str) -> None:
    path = package / "aio" / source
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize("source", SOURCES)
def test_a_change_of_a_coroutine_is_found_and_written(package: pathlib.Path, source: str) -> None:
    change(package, source, "    async def status(self)", "    async def wait_for(self, first: int,\n                       second: int) -> None:\n"
           "        await self.close()\n\n    async def status(self)")
    done = write("--check", "--package", package)
    assert done.returncode == 1 and "run client/python/write_blocking.py" in done.stdout
    assert write("--package", package).returncode == 0
    assert write("--check", "--package", package).returncode == 0
    assert ("    def wait_for(self, first: int,\n                 second: int) -> None:\n        self.close()\n"
            in (package / SOURCES[source]).read_text(encoding="utf-8"))


def test_a_sentence_that_differs_must_be_there(package: pathlib.Path) -> None:
    change(package, "_broker.py", "Prepares swap().", "Makes swap() ready.")
    done = write("--package", package)
    assert done.returncode == 1 and "has no longer: Prepares swap()" in done.stdout


@pytest.mark.parametrize("module", SOURCES.values())
def test_nothing_of_a_coroutine_is_left(module: str) -> None:
    text = (CLIENT / "amem" / module).read_text(encoding="utf-8")
    for word in ("async", "await", "Awaitable", "coroutine", "event loop", "amem.aio._"):
        assert word not in text.replace(f"makes this file of amem/aio/_{module}", ""), word
