"""%amem in notebooks: with a stand-in for IPython on the stand-in for the shim, and in a real kernel on the simulated driver."""
from __future__ import annotations

import json
import os
import pathlib
import queue
import re
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import amem
from conftest import Shim
from sim_node import Node, eventually, patience
from sim_node.stage import MIB, Tenant, start_stage, turns

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "python.md"


class Rejected(Exception):
    """IPython's InputRejected."""


class Notebook:
    """As much of IPython's shell as the magic uses."""

    def __init__(self) -> None:
        self.events = self
        self.magics_manager = types.SimpleNamespace(magics={"line": {}})
        self.ast_transformers: list[Any] = []
        self.before: list[Callable[[Any], None]] = []

    def register_magic_function(self, function: Callable[[str], None], magic_kind: str, magic_name: str) -> None:
        self.magics_manager.magics[magic_kind][magic_name] = function

    def register(self, event: str, function: Callable[[Any], None]) -> None:
        assert event == "pre_run_cell"
        self.before.append(function)

    def unregister(self, event: str, function: Callable[[Any], None]) -> None:
        assert event == "pre_run_cell"
        self.before.remove(function)

    def run(self, cell: str) -> None:
        for function in self.before:
            function(types.SimpleNamespace(raw_cell=cell))
        for transformer in self.ast_transformers:
            transformer.visit(None)
        for line in cell.splitlines():
            if line.startswith("%amem"):
                self.magics_manager.magics["line"]["amem"](line.removeprefix("%amem").strip())


@pytest.fixture
def notebook(shim: Shim, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    errors = types.ModuleType("IPython.core.error")
    setattr(errors, "InputRejected", Rejected)
    for name, module in (("IPython", types.ModuleType("IPython")), ("IPython.core", types.ModuleType("IPython.core")),
                         ("IPython.core.error", errors)):
        monkeypatch.setitem(sys.modules, name, module)
    shim.stats(json.dumps({"group": "train", "rank_id": 1, "scope": "heap",
                           "brokered": [{"tag": "heap", "resident_bytes": 2 * MIB, "paused_bytes": 1 * MIB},
                                        {"tag": "w", "paused_bytes": 4 * MIB}],
                           "unbrokered": [{"kind": "pool", "bytes": MIB}, {"kind": "host", "bytes": 64 * MIB, "host": True}]}))
    shell = Notebook()
    amem.load_ipython_extension(shell)
    yield shell
    amem.unload_ipython_extension(shell)


@pytest.fixture
def shut(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the gate is, in its only element."""
    state = [False]
    monkeypatch.setattr(amem._shim, "is_shut", lambda: state[0])
    return state


def test_nothing_of_ipython_is_imported_before(python: Any) -> None:
    python.run("import amem, sys; assert amem.load_ipython_extension; assert not any('IPython' in name or '_notebook' in name for name in sys.modules)")


@pytest.mark.parametrize("cell", ("%amem", "%amem status"))
def test_the_status_is_one_line(notebook: Notebook, shut: list[bool], capsys: pytest.CaptureFixture[str], cell: str) -> None:
    notebook.run(cell)
    assert capsys.readouterr().out == "group train runs: 3 MiB on the GPU, 5 MiB paused\n"
    shut[0] = True
    notebook.run(cell)
    assert capsys.readouterr().out == "group train is paused: 3 MiB on the GPU, 5 MiB paused\n"


@pytest.mark.parametrize("pause, notes", (("%amem pause", "[]"), ("%amem pause --tag w", "[w]"), ("%amem pause --tag=w --tag v", "[w,v]")))
def test_the_next_cell_resumes_what_was_paused(notebook: Notebook, shim: Shim, shut: list[bool], capsys: pytest.CaptureFixture[str],
                                               pause: str, notes: str) -> None:
    notebook.run(pause)
    shut[0] = "tag" not in pause
    notebook.run("%amem status\n\n# of the GPU\n!nvidia-smi")
    assert shim.notes == [f"pause {notes} 0"], "this cell needs no GPU"
    capsys.readouterr()
    notebook.run("x = model(y)")
    assert shim.notes[1:] == [f"resume {notes} 0"]
    assert capsys.readouterr().out.startswith("amem: this cell has resumed the group that %amem pause had paused. group train ")
    notebook.run("x = model(y)")
    assert len(shim.notes) == 2 and capsys.readouterr().out == ""


def test_what_two_pauses_have_paused(notebook: Notebook, shim: Shim, shut: list[bool]) -> None:
    notebook.run("%amem pause --tag w\n%amem pause --tag v")
    notebook.run("1")
    assert shim.notes[-1] == "resume [w,v] 0"
    notebook.run("%amem pause --tag w\n%amem pause")
    shut[0] = True
    notebook.run("1")
    assert shim.notes[-1] == "resume [] 0"


def test_only_the_magics_own_pauses_are_resumed(notebook: Notebook, shim: Shim, shut: list[bool]) -> None:
    shut[0] = True  # somebody else has paused it
    notebook.run("1")
    shut[0] = False
    notebook.run("%amem pause")
    notebook.run("1")  # somebody else has resumed it
    notebook.run("%amem pause")
    notebook.run("%amem resume")
    notebook.run("1")
    assert shim.notes == ["pause [] 0", "pause [] 0", "resume [] 0"]


def test_an_error_is_one_line(notebook: Notebook, shim: Shim, capsys: pytest.CaptureFixture[str]) -> None:
    shim.answer(amem.Code.NOT_FOUND, "there is no tag 'x'. The tags are w")
    for cell in ("%amem pause --tag x", "%amem resume"):
        notebook.run(cell)
        said = capsys.readouterr()
        assert said.err == "amem: there is no tag 'x'. The tags are w\n" and said.out == ""
    notebook.run("1")
    assert len(shim.notes) == 2, "nothing was paused"
    for line in ("restart", "pause w", "pause --tag", "resume --tag w", "status now", "pause 'w", "pause --deep x"):
        notebook.run("%amem " + line)
        assert capsys.readouterr().err.startswith("amem: %amem takes pause [--tag TAG]"), line
    assert len(shim.notes) == 2


def test_a_cell_does_not_run_if_the_group_cannot_be_resumed(notebook: Notebook, shim: Shim, shut: list[bool],
                                                           monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("AMEM_RUNTIME_DIR", str(tmp_path))  # no broker
    notebook.run("%amem pause")
    shut[0] = True
    shim.answer(amem.Code.RESOURCE_EXHAUSTED, "GPU-1 has 8 MiB free, but 12 MiB are needed")
    with pytest.raises(Rejected) as rejected:
        notebook.run("x = model(y)")
    [line] = rejected.value._render_traceback_()  # type: ignore[attr-defined]
    assert line == "amem: the cell did not run, because the group is still paused: GPU-1 has 8 MiB free, but 12 MiB are needed"
    notebook.run("!nvidia-smi")
    shim.answer(amem.Code.OK)
    notebook.run("x = model(y)")
    assert shim.notes == ["pause [] 0", "resume [] 0", "resume [] 0"]


def test_it_can_be_unloaded(shim: Shim) -> None:
    shell = Notebook()
    for _ in range(2):
        amem.load_ipython_extension(shell)
        amem.load_ipython_extension(shell)
        assert len(shell.before) == len(shell.ast_transformers) == 1
        amem.unload_ipython_extension(shell)
        assert not shell.before and not shell.ast_transformers and not shell.magics_manager.magics["line"]


# ---- a real kernel -----------------------------------------------------------------------------------------------------------

SETUP = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
def must(result):
    assert result == 0, result
must(cuda.cuInit(0))
context = ctypes.c_void_p()
must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
must(cuda.cuCtxSetCurrent(context))
SIZE = 12 << 20
block = ctypes.c_uint64()
must(cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(SIZE)))
must(cuda.cuMemsetD8_v2(block, 7, ctypes.c_size_t(SIZE)))
def check():
    last = ctypes.create_string_buffer(16)
    must(cuda.cuMemcpyDtoH_v2(last, ctypes.c_uint64(block.value + SIZE - 16), ctypes.c_size_t(16)))
    assert last.raw == bytes([7]) * 16, last.raw
    return "right"
"""


class Kernel:
    """A kernel of its own group, and what its cells say."""

    def __init__(self, node: Node, name: str, folder: pathlib.Path, argv: Sequence[str] | None = None) -> None:
        from jupyter_client.manager import KernelManager

        with_shim: dict[str, str | None] = {"LD_PRELOAD": os.path.join(node.build.directory, "lib", "libamem_shim.so"), "AMEM_GROUP": name, "AMEM_SCOPE": "heap"}
        self.log = open(folder / f"{name}.log", "w", encoding="utf-8")
        self.manager = KernelManager(kernel_name="python3", connection_file=str(folder / f"{name}.json"))
        self.manager.kernel_spec.argv[:] = argv or [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        variables = {} if argv else with_shim
        variables |= {"PATH": f"{folder}/bin:{os.environ['PATH']}", "PYTHONPATH": os.path.join(node.build.directory, "python"),
                      "IPYTHONDIR": str(folder), "JUPYTER_DATA_DIR": str(folder)}
        self.manager.start_kernel(env=node.env(variables), stdout=self.log, stderr=self.log, cwd=str(folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=patience(60))

    def begin(self, cell: str) -> str:
        sent: str = self.client.execute(cell)
        return sent

    def said(self, sent: str, deadline: float = 60) -> str:
        """All that the cell has printed or shown, with an error's lines, when it has ended."""
        text, end = "", time.monotonic() + patience(deadline)
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=max(0.01, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"the cell has not ended in {deadline} s. So far: {text}") from None
            if message["parent_header"].get("msg_id") != sent:
                continue
            content = message["content"]
            kind = message["msg_type"]
            text += {"stream": content.get("text", ""), "execute_result": content.get("data", {}).get("text/plain", ""),
                     "error": "\n".join(content.get("traceback", []))}.get(kind, "")
            if kind == "status" and content["execution_state"] == "idle":
                return text

    def run(self, cell: str) -> str:
        return self.said(self.begin(cell))

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.log.close()


@pytest.fixture
def kernels(bare_node: Node, tmp_path: pathlib.Path) -> Iterator[Callable[..., Kernel]]:
    pytest.importorskip("jupyter_client", reason="jupyter_client is not installed (Debian: python3-jupyter-client)")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed (Debian: python3-ipykernel)")
    made: list[Kernel] = []

    def start(name: str, argv: Sequence[str] | None = None) -> Kernel:
        made.append(Kernel(bare_node, name, tmp_path, argv))
        assert made[-1].run(SETUP) == ""
        assert made[-1].run("%load_ext amem") == ""
        return made[-1]

    yield start
    for each in made:
        each.close()


def test_a_kernel_pauses_and_the_next_cell_resumes(bare_node: Node, kernels: Callable[..., Kernel]) -> None:
    bare_node.start_broker()
    kernel = kernels("notebook")
    assert kernel.run("%amem") == "group notebook runs: 12 MiB on the GPU, 0 B paused\n"
    assert kernel.run("%amem pause") == "group notebook is paused: 0 B on the GPU, 12 MiB paused\n"
    assert bare_node.ctl.state("notebook") == "paused"
    assert kernel.run("!true\n%amem status") == "group notebook is paused: 0 B on the GPU, 12 MiB paused\n"
    said = kernel.run("check()")
    assert said == "amem: this cell has resumed the group that %amem pause had paused. group notebook runs: 12 MiB on the GPU, 0 B paused\n'right'"
    assert kernel.run("check()") == "'right'"
    kernel.run("%amem pause")
    assert kernel.run("%amem resume") == "group notebook runs: 12 MiB on the GPU, 0 B paused\n"
    assert kernel.run("%amem pause --tag nothing").startswith("amem: ") and bare_node.ctl.state("notebook") == "running"
    assert kernel.run("%amem pause --tag heap") == "group notebook runs: 0 B on the GPU, 12 MiB paused\n"
    assert kernel.run("check()").endswith("12 MiB on the GPU, 0 B paused\n'right'")


def test_a_cell_that_cannot_resume_says_so_in_a_line(bare_node: Node, kernels: Callable[..., Kernel]) -> None:
    bare_node.settings["AMEM_SIM_MEMORY"] = "24MiB"
    bare_node.start_broker()
    kernel = kernels("notebook")
    kernel.run("%amem pause")
    other = Tenant(bare_node, "other", 12 * MIB)
    said = kernel.run("check()")
    assert said.startswith("amem: the cell did not run, because the group is still paused: ") and "\n" not in said, said
    assert "are needed" in said, said
    other.free(other.block)
    other.puppet.kill()
    eventually(lambda: bare_node.ctl.group("other") is None, what="the other one is gone")
    assert kernel.run("check()").endswith("'right'")


def test_idle_kernels_leave_the_gpu_to_the_one_that_works(bare_node: Node, kernels: Callable[..., Kernel]) -> None:
    """By a stage with the policy demand, as docs/python.md says. One that %amem has paused comes back at its turn."""
    start_stage(bare_node, policy="demand", grace="100ms", idle="300ms", memory=26 * MIB)
    first = kernels("first")
    first.run("%amem pause")
    second = kernels("second")
    said = first.run("check()")
    assert said == "amem: the group resumes at its turn in stage night. GPU work of this cell waits for it\n'right'", said
    assert second.run("check()") == "'right'"
    assert turns(bare_node)["first"]["turn"] == "idle"
    assert first.run("check()") == "'right'"


def test_the_page(bare_node: Node, kernels: Callable[..., Kernel], tmp_path: pathlib.Path) -> None:
    """Its kernel.json starts a kernel that is a group of its own, its magics work, and its stage is valid."""
    section = PAGE.read_text(encoding="utf-8").split("\n## In a notebook\n")[1].split("\n## ")[0]
    blocks = re.findall(r"(?ms)^ *```\w*\n(.*?)^ *```$", section)
    spec = json.loads(blocks[0])
    assert [line.split("#")[0].strip() for line in blocks[1].splitlines()] == ["%load_ext amem", "%amem pause", "%amem status", "%amem resume"]
    settings = dict(re.findall(r"(?m)^ *(\w+) = (\S+)", blocks[2]))
    start_stage(bare_node, memory=26 * MIB, **{name: json.loads(value) for name, value in settings.items()})
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to(sys.executable)
    (programs / "amemctl").symlink_to(bare_node.build.program("amemctl"))
    kernel = kernels("page", spec["argv"])
    name = f"kernel-{kernel.manager.provisioner.pid}"
    assert kernel.run("%amem pause") == f"group {name} is paused: 0 B on the GPU, 12 MiB paused\n"
    assert kernel.run("check()").endswith("'right'")
    assert kernel.run("%amem resume") == f"group {name} runs: 12 MiB on the GPU, 0 B paused\n"
    assert turns(bare_node)[name]["turn"] in ("runs", "idle")
