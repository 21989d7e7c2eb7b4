"""examples/turns: the commands of its page as they stand, with fake_vllm on the simulated driver."""
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))

import pasted  # noqa: E402
from sim_node.child import patience  # noqa: E402
from sim_node.node import Build  # noqa: E402

FAKE = pathlib.Path(__file__).resolve().parent / "fake_vllm"
EXAMPLE = ROOT / "examples" / "turns"
SERVERS = 3
# One server fits on the GPU, two do not.
SIZES = {"FAKE_VLLM_WEIGHTS_MIB": "16", "FAKE_VLLM_CACHE_MIB": "56", "AMEM_SIM_MEMORY": "128MiB", "AMEM_SIM_DEVICES": "1"}


def free_ports() -> int:
    """The first of as many ports in a row as there are servers."""
    for _ in range(100):
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            first = int(one.getsockname()[1])
        try:
            for port in range(first, first + SERVERS):
                with socket.socket() as each:
                    each.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            continue
        return first
    raise AssertionError("no free ports")


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Where the page's commands run: its files, with a smaller pool and a margin for a small GPU, and a `vllm` that stands in."""
    copy = tmp_path / "examples" / "turns"
    copy.mkdir(parents=True)
    (copy / "serve.sh").symlink_to(EXAMPLE / "serve.sh")
    text = (EXAMPLE / "amemd.toml").read_text().replace('size = "96GiB"', 'size = "256MiB"')
    text = text.replace('start_idle = "60s"', 'start_idle = "3s"')
    (copy / "amemd.toml").write_text(text + 'margin = "8MiB"\n')
    programs = tmp_path / "bin"
    programs.mkdir()
    vllm = programs / "vllm"
    vllm.write_text(f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(FAKE)!r})\nfrom vllm.entrypoints.cli.main import main\nsys.exit(main())\n")
    vllm.chmod(0o755)
    for name in ("run", "gpus"):
        (tmp_path / name).mkdir(mode=0o700)
    return tmp_path


@pytest.fixture
def environment(build: Build, folder: pathlib.Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AMEM_", "LD_", "PYTHON"))}
    built = os.path.abspath(build.directory)
    return {**kept, **SIZES, "PATH": f"{folder}/bin:{built}/bin:{kept['PATH']}", "LD_LIBRARY_PATH": f"{built}/lib/sim", "PYTHONDONTWRITEBYTECODE": "1",
            "AMEM_SIM_DIR": str(folder / "gpus"), "AMEM_RUNTIME_DIR": str(folder / "run"), "PYTHONPATH": f"{built}/python"}


def test_its_commands_print_what_it_says(folder: pathlib.Path, environment: dict[str, str]) -> None:
    first = free_ports()
    page = folder / "page.md"
    text = re.sub(r"(?m)^   ", "", (EXAMPLE / "README.md").read_text()).replace("96 GiB", "256 MiB")  # its blocks are in a list
    page.write_text(re.sub(r"\b800([123])\b", lambda port: str(first + int(port[1]) - 1), text))
    assert pasted.paste(page, folder, {**environment, "FIRST_PORT": str(first)}, patience(120)) == 6
    assert [each for each in folder.glob("vllm-*.log")] != []


@pytest.fixture
def amemd(folder: pathlib.Path, environment: dict[str, str]) -> Iterator[None]:
    """Serves with the example's configuration."""
    environment["FIRST_PORT"] = str(free_ports())
    process = subprocess.Popen(["amemd", "--config", "examples/turns/amemd.toml"], cwd=folder, env=environment, stderr=subprocess.DEVNULL)
    try:
        subprocess.run(["amemctl", "wait", "pool"], env=environment, check=True, timeout=patience(60), stdout=subprocess.DEVNULL)
        yield
    finally:
        process.terminate()
        assert process.wait(30) == 0


def printed(environment: dict[str, str], *command: str) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patience(60)).stdout


def eventually(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + patience(30)
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def test_a_server_that_does_not_start_ends_the_others(folder: pathlib.Path, environment: dict[str, str], amemd: None) -> None:
    vllm = folder / "bin" / "vllm"
    vllm.write_text(vllm.read_text().replace("import sys\n", "import sys\nif 'bad' in sys.argv: sys.exit('no such model')\n"))
    done = subprocess.run(["examples/turns/serve.sh", "good", "bad"], cwd=folder, env=environment, capture_output=True, text=True,
                          timeout=patience(100))
    assert done.returncode == 1 and "serve.sh: vllm-2 has ended, see vllm-2.log" in done.stderr, done.stderr
    assert "no such model" in (folder / "vllm-2.log").read_text()
    eventually(lambda: printed(environment, "amemctl", "groups", "-o", "name") == "", "the first server has ended")


def test_a_client_that_gives_up_still_brings_its_server_a_turn(folder: pathlib.Path, environment: dict[str, str], amemd: None) -> None:
    """And the server answers the next one."""
    with subprocess.Popen(["examples/turns/serve.sh", "one", "two"], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as servers:
        late = threading.Timer(patience(100), servers.terminate)  # ends its output
        late.start()
        try:
            assert servers.stdout is not None
            assert any("all take turns" in line for line in servers.stdout)
            ask = ["curl", "-s", f"localhost:{environment['FIRST_PORT']}/v1/completions", "-d", '{"prompt": "a", "max_tokens": 2}']
            assert subprocess.run(["amemctl", "ready", "vllm-1"], env=environment, timeout=60, stdout=subprocess.DEVNULL).returncode == 5
            assert printed(environment, *ask, "-m", "0.1") == ""  # less than grace
            eventually(lambda: "group vllm-1 is ready" in printed(environment, "amemctl", "ready", "vllm-1"), "it has its turn")
            assert "token_ids" in printed(environment, *ask)
        finally:
            late.cancel()
            servers.terminate()


def test_every_setting_of_the_table_is_in_its_file() -> None:
    rows = re.findall(r"(?m)^\| `(amemd\.toml|serve\.sh)` \| `([^`]+)` \|", (EXAMPLE / "README.md").read_text())
    assert len(rows) == 7
    for file, setting in rows:
        assert setting.rpartition(".")[2] in (EXAMPLE / file).read_text(), setting


def test_the_configuration_is_valid(environment: dict[str, str]) -> None:
    done = subprocess.run(["amemd", "--config", EXAMPLE / "amemd.toml", "--check-config"], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert 'max_hold = "5m"' in done.stdout or 'max_hold = "300s"' in done.stdout, done.stdout
