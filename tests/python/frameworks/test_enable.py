"""amem.enable(): what it does, what it says, and what is left where something is missing. On the simulated driver, with the stand-ins
of fake_frameworks and fake_vllm."""
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Mapping

import pytest
from scripts import FAILS
from sim_node import Build, Node, eventually, patience

HERE = os.path.dirname(os.path.abspath(__file__))
BEGIN = FAILS + """
import logging, os, subprocess, sys
import amem

def child(script="import amem; print(amem.stats().group, amem.stats().scope)"):
    "What a process says that this one starts."
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()

AMEM = {name: value for name, value in os.environ.items() if name.startswith(("AMEM", "LD_PRELOAD", "NCCL"))}

def changed():
    return {name: value for name, value in os.environ.items() if name.startswith(("AMEM", "LD_PRELOAD", "NCCL"))
            and AMEM.get(name) != value}
"""
NOTHING = "no framework that amem knows is imported yet. Memory of this scope is still brokered"
STAYS = "amem: no framework is switched on: "
STILL = '. Memory of the scope regions is still brokered, in the group "job"'


class Program:
    def __init__(self, node: Node, build: Build) -> None:
        self.node, self.build = node, build

    def __call__(self, script: str, group: str | None = "job", scope: str = "regions",
                 env: Mapping[str, str] | None = None, fakes: str = "fake_frameworks") -> list[str]:
        """The lines of amem's that it wrote to stderr; it must end well."""
        launcher = [*self.node.launcher(group)[:-1], "--scope", scope, "--"] if group else []
        paths = [os.path.join(self.build.directory, "python"), os.path.join(HERE, fakes)]
        done = subprocess.run([*launcher, sys.executable, "-c", BEGIN + textwrap.dedent(script)], text=True, capture_output=True,
                              env=self.node.env({"PYTHONPATH": ":".join(paths), **(env or {})}), timeout=patience(120))
        assert done.returncode == 0, done.stderr[-3000:]
        return [line for line in done.stderr.splitlines() if "amem: " in line]


@pytest.fixture
def program(node: Node, build: Build) -> Program:
    return Program(node, build)


# ---- what it says ----
def test_one_line_says_what_is_on(program: Program) -> None:
    """Twice called, it says nothing twice."""
    assert program("""
    found = amem.enable()
    assert found == amem.enable() == amem.enable(require=True)
    assert (found.on, found.group, found.scope, found.frameworks) == (True, "job", "regions", ())
    """) == [f'amem: on: group "job", scope regions, {NOTHING}']


@pytest.mark.parametrize("setup", [
    "logging.basicConfig(level=logging.INFO)",
    "log = logging.getLogger('amem')\nlog.setLevel(logging.INFO)\nlog.addHandler(logging.StreamHandler())"])
def test_a_program_with_a_log_has_the_line_there(program: Program, setup: str) -> None:
    [line] = program(f"{setup}\namem.enable()")
    assert line.endswith(f'amem: on: group "job", scope regions, {NOTHING}')


def test_a_log_that_would_not_show_it(program: Program) -> None:
    assert len(program("logging.basicConfig(level=logging.WARNING)\namem.enable()")) == 1


# ---- what is missing ----
def test_without_the_preload_the_job_runs_and_what_it_starts_is_in_the_group(program: Program) -> None:
    """NCCL_CUMEM_ENABLE and the runtime directory are those of environment()."""
    [line] = program("""
    fails("libamem_shim.so is not loaded in this process. Start the process with `amemctl run", amem.enable, group="mine", require=True)
    import megatron.core.distributed, megatron.core.optimizer
    before = megatron.core.distributed.DistributedDataParallel.offload_grad_buffers
    found = amem.enable(group="mine", scope="heap")
    assert (found.on, found.group, found.scope, found.frameworks) == (False, "mine", "off", ())
    assert megatron.core.distributed.DistributedDataParallel.offload_grad_buffers is before
    assert changed().items() >= amem.environment("mine", "heap").items() - {("AMEM_RUNTIME_DIR", AMEM["AMEM_RUNTIME_DIR"])}, changed()
    assert child() == "mine heap", child()
    amem.enable()
    """, group=None)
    assert re.match(r"amem: amem is off in this process \(pid \d+\): libamem_shim.so is not loaded in this process. Start the process with", line)
    assert line.endswith('. The process runs without amem. Processes that it starts from now on are in the group "mine"')


def test_without_a_broker_nothing_changes(bare_node: Node, build: Build) -> None:
    for group in ("job", None):
        [line] = Program(bare_node, build)("""
        fails("amemd does not run here: there is no socket", amem.enable, require=True)
        assert not amem.enable().on and changed() == {}
        fails("amemd does not run here: there is no socket", amem.enable, require=True)
        """, group=group)
        assert re.match(r"amem: amem is off in this process \(pid \d+\): amemd does not run here: there is no socket", line)


def test_a_broker_that_has_left_its_socket(bare_node: Node, build: Build) -> None:
    bare_node.start_broker().kill()
    [line] = Program(bare_node, build)("assert not amem.enable().on and changed() == {}")
    assert "left the socket" in line or "cannot reach amemd" in line


def test_a_broker_that_comes_later(bare_node: Node, build: Build, tmp_path: pathlib.Path) -> None:
    """Each call tries again, and a line that it has written is not written again."""
    was_off = tmp_path / "off"

    def start() -> None:
        eventually(was_off.exists, what="the program has found no amemd")
        bare_node.start_broker()

    starter = threading.Thread(target=start)
    starter.start()
    off, on = Program(bare_node, build)("""
    import pathlib, time
    assert not amem.enable().on and not amem.enable().on and changed() == {}
    pathlib.Path(os.environ["WAS_OFF"]).touch()
    end = time.monotonic() + 30
    while not amem.enable(group="later").on and time.monotonic() < end:
        time.sleep(0.1)
    found = amem.enable(require=True)
    assert found.on and found.group == "later", found
    assert child().startswith("later")
    """, env={"WAS_OFF": str(was_off)})
    starter.join()
    assert "amemd does not run here: there is no socket" in off and on == f'amem: on: group "later", scope regions, {NOTHING}'


def test_turned_off(program: Program) -> None:
    [line] = program("assert not amem.enable().on and changed() == {}", env={"AMEM_DISABLE": "1"})
    assert "AMEM_DISABLE=1 or AMEM_ENABLE=0 turns amem off in this process" in line


# ---- group and scope ----
def test_another_group(program: Program) -> None:
    """Before the first allocation; what it starts is in it, too."""
    assert program("""
    assert amem.enable(group="other").group == "other" == amem.group()
    assert child() == "other regions"
    """) == [f'amem: on: group "other", scope regions, {NOTHING}']


def test_a_group_of_another_owner(program: Program) -> None:
    [line] = program("""
    fails('"job@1234" names a group of another owner', amem.enable, group="job@1234", require=True)
    found = amem.enable(group="job@1234")
    assert (found.on, found.group, found.scope) == (False, "job", "regions") and changed() == {}
    """)
    assert line.startswith(STAYS + '"job@1234" names') and STILL in line
    [line] = program("assert not amem.enable().on", group=None, env={"AMEM_GROUP": "job@1234"})
    assert '"job@1234" names a group of another owner, and a process can only join groups of its own user. Remove' in line


def test_a_scope_that_this_process_does_not_have(program: Program) -> None:
    """It is fixed at the start."""
    [line] = program("""
    fails("this process has the scope regions, and a scope cannot change after the start", amem.enable, scope="heap", require=True)
    assert not amem.enable(scope="heap").on
    assert child() == "job heap"
    """)
    assert line.startswith(STAYS) and STILL in line and "`amemctl run --scope heap`" in line


def test_a_group_that_comes_too_late(program: Program) -> None:
    """The process has joined another one with its first allocation."""
    [line] = program("""
    import torch
    with amem.region("early"):
        made = torch.Tensor(1 << 20)
    fails("group", amem.enable, group="other", require=True)
    assert not amem.enable(group="other").on and amem.group() == "job"
    assert child() == "other regions"
    """)
    assert line.startswith(STAYS) and STILL in line


def test_what_can_be_no_group_or_scope(program: Program) -> None:
    """An error of the program's, with or without `require`."""
    assert program("""
    fails("is not a valid group name", amem.enable, group=".")
    fails('"all" is not a valid scope. Use nccl, regions or heap', amem.enable, scope="all")
    assert amem.enable().on
    """) == [f'amem: on: group "job", scope regions, {NOTHING}']


def test_processes_without_a_name_for_their_group_choose_it(program: Program) -> None:
    """As this one has. The hook library of torch_memory_saver stays what is preloaded."""
    hook = os.path.join(program.build.directory, "dropin", "torch_memory_saver_hook_mode_preload.abi3.so")
    program("""
    assert amem.enable().group.startswith("tms-")
    assert changed().keys() <= {"NCCL_CUMEM_ENABLE"}, changed()
    """, group=None, env={"LD_PRELOAD": hook})


# ---- frameworks ----
MEGATRON = """
import megatron.core.distributed, megatron.core.optimizer
model = megatron.core.distributed.DistributedDataParallel()
model.offload_grad_buffers()
assert model.copied == 0
"""


def test_frameworks_that_are_imported(program: Program) -> None:
    assert program("""
    import megatron.core.distributed, megatron.core.optimizer
    assert amem.enable().frameworks == ("megatron",)
    """ + textwrap.indent(MEGATRON, "    ")) == ['amem: on: group "job", scope regions, switched on: megatron-core']


def test_frameworks_that_are_imported_later(program: Program) -> None:
    """The loader is the one that Python would have."""
    assert program("""
    amem.enable()
    import importlib.machinery, megatron.core.optimizer
    assert amem.enable().frameworks == ()                  # one part is missing still
    """ + textwrap.indent(MEGATRON, "    ") + """
    assert amem.enable().frameworks == ("megatron",)
    for module in (megatron.core.optimizer, megatron.core.distributed):
        assert type(module.__loader__) is importlib.machinery.SourceFileLoader
        assert module.__spec__.loader is module.__loader__ and module.__file__
    """) == [f'amem: on: group "job", scope regions, {NOTHING}', "amem: on for megatron-core, too"]


def test_a_framework_that_has_moved_a_function(program: Program) -> None:
    """The job runs without amem; whoever requires it gets the error from the import."""
    late = "amem.enable()\nimport megatron.core.optimizer, megatron.core.distributed"
    early = "import megatron.core.optimizer, megatron.core.distributed\namem.enable()"
    moved = {"FAKE_MEGATRON_MOVED": "1"}
    for script in (late, early):
        line = program(script + "\nassert amem.enable().frameworks == ()", env=moved)[-1]
        assert "megatron-core is not switched on and runs without amem: " in line
        assert "has no offload_grad_buffers(), which amem needs" in line
    program("""
    amem.enable(require=True)
    import megatron.core.optimizer
    fails("has no offload_grad_buffers(), which amem needs", __import__, "megatron.core.distributed")
    """, env=moved)


def test_a_scope_that_leaves_a_frameworks_memory_on_the_gpu(program: Program) -> None:
    [line] = program("import megatron.core.distributed, megatron.core.optimizer\nassert amem.enable().on", scope="nccl")
    assert "scope nccl, no framework is switched on. Memory of this scope is still brokered. megatron-core is not switched on" in line
    assert "the scope of this process is 'nccl', with which its memory stays on the GPU" in line


def test_an_import_that_fails_is_tried_again(program: Program, tmp_path: pathlib.Path) -> None:
    program(f"""
    sys.path.insert(0, {str(tmp_path)!r})
    from amem import _imports
    come = []
    assert not _imports.when_imported(["late.part"], lambda: come.append(1))
    os.mkdir({str(tmp_path / 'late')!r})
    open({str(tmp_path / 'late' / '__init__.py')!r}, "w").close()
    for text in ("raise ImportError('not now')", "value = 1"):
        with open({str(tmp_path / 'late' / 'part.py')!r}, "w") as file:
            file.write(text + "   #" * len(text))
        assert come == []
        try:
            import late.part
        except ImportError:
            pass
    assert come == [1] and late.part.value == 1
    assert _imports.when_imported(["late.part"], come.clear)
    """)


def test_an_import_that_has_begun_before(program: Program, tmp_path: pathlib.Path) -> None:
    """In another thread. Its end is seen at the next import, or by enable(). One that fails is awaited again."""
    (tmp_path / "early").mkdir()
    for name in ("early/__init__.py", "other.py", "another.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "early" / "part.py").write_text("""
import builtins
builtins.begun.set()
assert builtins.go_on.wait(60)
if builtins.bad:
    raise ImportError("not now")
""")
    program(f"""
    import builtins, threading
    from amem import _imports
    sys.path.insert(0, {str(tmp_path)!r})

    def load():
        try:
            import early.part
        except ImportError:
            pass

    come = []
    for builtins.bad, other in ((True, "other"), (False, "another")):
        builtins.begun, builtins.go_on = threading.Event(), threading.Event()
        thread = threading.Thread(target=load)
        thread.start()
        assert builtins.begun.wait(60)
        assert not _imports.are_imported(["early.part"])
        assert not _imports.when_imported(["early.part"], lambda bad=builtins.bad: come.append(bad))
        __import__(other)
        assert come == [], come
        builtins.go_on.set()
        thread.join()
        _imports.look()
    assert sorted(come) == [False, True] and _imports.are_imported(["early.part"]), come
    """)


def test_two_threads_that_import_and_enable(program: Program) -> None:
    """One imports what the other, in enable(), waits for: the one does not wait for enable()."""
    program("""
    import threading
    from amem import _enable

    amem.enable()
    with _enable._lock:                      # as another call of enable() has it
        thread = threading.Thread(target=lambda: (__import__("megatron.core.distributed"), __import__("megatron.core.optimizer")))
        thread.start()
        thread.join(20)
        assert not thread.is_alive(), "the import waits for enable()"
        assert _enable._state.on == []
    assert amem.enable().frameworks == ("megatron",)
    """)


# ---- by the environment ----
VLLM = """
from vllm import LLM

def engine(**options):
    return LLM(model="m", enable_sleep_mode=True, **options)

def worker(llm):
    return llm.core.model_executor.vllm_config.parallel_config.worker_cls
"""


def test_vllm_by_the_environment(program: Program) -> None:
    """Its entry point calls amem.enable(), in the engine's processes too. These say it in their log alone."""
    assert program(VLLM + """
if __name__ == "__main__":
    llm = engine(tensor_parallel_size=2)
    assert worker(llm) == "amem.vllm.OptionalWorker"
    llm.sleep(1)
    with amem.Broker() as broker:
        [group] = broker.groups()
        assert sum(tag.resident_bytes for tag in group.tags) == 0
    llm.wake_up()
""", scope="heap", fakes="fake_vllm", env={"AMEM_ON": "1"}) == ['amem: on: group "job", scope heap, switched on: vLLM']


def test_vllm_by_a_call(program: Program) -> None:
    for before, later in (("", "import vllm.engine.arg_utils\n"), ("import vllm.engine.arg_utils\n", "")):
        program(before + "assert amem.enable().on\n" + later + VLLM + """
assert worker(engine()) == "amem.vllm.OptionalWorker"
assert worker(LLM(model="m")) == "vllm.v1.worker.gpu_worker.Worker"
assert amem.enable().frameworks == ("vllm",)
""", scope="heap", fakes="fake_vllm")


def test_vllm_that_has_moved_a_function_sleeps_without_amem(program: Program) -> None:
    lacks = {"FAKE_VLLM_LACKS": "vllm.v1.executor.abstract:Executor.wake_up"}
    script = "import vllm.engine.arg_utils\namem.enable()\n" + VLLM
    [line] = [each for each in program(script + """
config = vllm.engine.arg_utils.EngineArgs(model="m", enable_sleep_mode=True).create_engine_config()
assert config.parallel_config.worker_cls == "vllm.v1.worker.gpu_worker.Worker"
""", scope="heap", fakes="fake_vllm", env=lacks) if "is not switched on" in each]
    assert "vLLM is not switched on and runs without amem: " in line and "has no wake_up(), which amem needs" in line
    program(VLLM + """fails("has no wake_up(), which amem needs", engine)""", scope="heap", fakes="fake_vllm",
            env={**lacks, "AMEM_ON": "require"})


def test_an_engine_that_cannot_be_served_sleeps_without_amem(program: Program) -> None:
    """Its options say something else."""
    script = VLLM + 'options = dict(model="m", enable_sleep_mode=True, sleep_mode_backend="criu")\n'
    newest = {"FAKE_VLLM_VERSION": "0.33.0"}
    lines = program(script + """
from vllm.engine.arg_utils import EngineArgs
config = EngineArgs(**options).create_engine_config()
assert config.parallel_config.worker_cls == "vllm.v1.worker.gpu_worker.Worker" and config.model_config.sleep_mode_backend == "criu"
assert "VLLM_WORKER_MULTIPROC_METHOD" not in os.environ and "AMEM_VLLM_SLEEP" not in os.environ
""", scope="heap", fakes="fake_vllm", env={**newest, "AMEM_ON": "1"})
    assert [each for each in lines if "this engine sleeps without amem: two sleep-mode backends" in each]
    program(script + """fails("two sleep-mode backends", LLM, **options)""", scope="heap", fakes="fake_vllm",
            env={**newest, "AMEM_ON": "require"})


def test_an_engine_in_trls_process_leaves_alone(program: Program) -> None:
    program("""
import types
sys.modules["trl"] = types.ModuleType("trl")
""" + VLLM + """
assert worker(engine()) == "amem.vllm.OptionalWorker" and os.environ["AMEM_VLLM_SLEEP"] == "tags"
""", fakes="fake_vllm", env={"AMEM_ON": "1"})


def test_a_value_of_the_environment_that_means_nothing(program: Program) -> None:
    program(VLLM + """fails("AMEM_ON=yes is not supported. Use 1 or require", engine)""", fakes="fake_vllm", env={"AMEM_ON": "yes"})
    assert program(VLLM + "engine()", fakes="fake_vllm", env={"AMEM_ON": "0"}) == []


def test_sglang_by_the_environment(program: Program) -> None:
    """Beside what its entry point does in any case."""
    paths = ":".join(os.path.join(*each) for each in ((program.build.directory, "dropin"), (program.build.directory, "python"),
                                                      (HERE, "fake_frameworks")))
    script = "from sglang.srt.plugins import load_plugins\nload_plugins()\nload_plugins()"
    assert program(script, env={"AMEM_ON": "1", "PYTHONPATH": paths}) == [
        'amem: on: group "job", scope regions, switched on: SGLang']
    assert program(script, env={"PYTHONPATH": paths}) == []
