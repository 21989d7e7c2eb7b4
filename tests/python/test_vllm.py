"""Engines that sleep by amem, on the simulated driver. vLLM is the one of fake_vllm, with the interface of 0.26.0 or, where a
test says so, of 0.24.0; shim, broker and plugin are real."""
import os
import subprocess
import sys
import textwrap

import pytest
from scripts import FAILS
from sim_node import patience

HERE = os.path.dirname(os.path.abspath(__file__))
BEGIN = FAILS + """
import amem
from vllm import LLM, SamplingParams

def engine(**options):
    return LLM(model="m", enable_sleep_mode=True, worker_cls="amem.vllm.Worker", **options)

def tokens(llm):
    return llm.generate([{"prompt_token_ids": [1, 2, 3]}], SamplingParams(max_tokens=8))[0].outputs[0].token_ids

def resident():
    "Bytes on the GPU by tag, of the whole group."
    with amem.Broker() as broker:
        [group] = [each for each in broker.groups() if each.name == "vllm"]
        return {tag.tag: tag.resident_bytes for tag in group.tags if tag.resident_bytes}
"""
ALL = {"weights": 2 << 20, "kv_cache": 4 << 20, "heap": 2 << 20}


class Vllm:
    """Runs scripts with an engine in them, in the group vllm."""

    def __init__(self, node, build):
        self.node, self.build = node, build

    def environment(self, more=None):
        return self.node.env({"PYTHONPATH": ":".join([os.path.join(self.build.directory, "python"),
                                                      os.path.join(HERE, "fake_vllm")]), **(more or {})})

    def __call__(self, script, scope="heap", group="vllm", env=None):
        """What it printed; it must end well."""
        launcher = [*self.node.launcher(group)[:-1], "--scope", scope, "--"] if group else []
        done = subprocess.run([*launcher, sys.executable, "-c", BEGIN + textwrap.dedent(script)], text=True,
                              env=self.environment(env), capture_output=True, timeout=patience(120))
        with open(self.node.log_file("vllm"), "a") as log:
            log.write(done.stdout + done.stderr)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout


@pytest.fixture
def vllm(node, build):
    return Vllm(node, build)


@pytest.mark.parametrize("size", [1, 2])
def test_level_1_keeps_weights_and_drops_the_cache(vllm, size):
    """Everything leaves, also what is in no pool, and comes back at the same addresses."""
    vllm(f"""
    llm = engine(tensor_parallel_size={size})
    before, sums = tokens(llm), llm.collective_rpc("sums")
    there = {{tag: {size} * bytes for tag, bytes in {ALL}.items()}}
    assert resident() == there, resident()
    for _ in range(2):
        llm.sleep(1)
        assert resident() == {{}}, resident()
        assert llm.core.is_sleeping()
        llm.wake_up()
        assert resident() == there
        for (weights, cache), (same, other) in zip(llm.collective_rpc("sums"), sums):
            assert weights == same and cache != other
        assert tokens(llm) == before
    """)


def test_level_2_drops_the_weights_too(vllm):
    vllm("""
    llm = engine()
    before, [[weights, _]] = tokens(llm), llm.collective_rpc("sums")
    llm.sleep(2)
    with amem.Broker() as broker:
        assert broker.status().pool.used_bytes <= 2 << 20, broker.status().pool  # of the workspace alone
    fails("wake the tag weights first", llm.wake_up, ["kv_cache"])
    assert resident() == {}
    llm.wake_up(["weights"])
    assert "kv_cache" not in resident() and len(resident()) == 2, resident()
    assert llm.core.is_sleeping()
    llm.collective_rpc("reload_weights")
    llm.wake_up(["kv_cache"])
    assert llm.collective_rpc("sums")[0][0] == weights
    assert tokens(llm) == before
    """)


def test_level_2_without_new_weights_is_zeros(vllm):
    vllm("""
    llm = engine()
    llm.sleep(2)
    llm.wake_up()
    worker = llm.core.model_executor.worker
    data = worker.weights.read()
    assert any(data[:64]) and not any(data[64:])  # the buffer that vLLM saves, and nothing else
    """)


@pytest.mark.parametrize("order", ["weights kv_cache", "kv_cache weights"])
def test_wake_in_parts(vllm, order):
    vllm(f"""
    first, second = {order.split()!r}
    llm = engine(tensor_parallel_size=2)
    before = tokens(llm)
    llm.sleep(1)
    llm.wake_up([first])
    assert second not in resident() and len(resident()) == 2, resident()
    llm.wake_up([second])
    assert len(resident()) == 3 and not llm.core.is_sleeping()
    assert tokens(llm) == before
    """)


def test_level_0_leaves_memory_alone(vllm):
    vllm("""
    llm = engine()
    before, there = tokens(llm), resident()
    llm.sleep(0)
    assert llm.core.is_sleeping() and resident() == there
    llm.wake_up(["scheduling"])
    assert tokens(llm) == before
    """)


def test_what_cannot_be_leaves_the_engine_as_it_was(vllm):
    vllm("""
    llm = engine(tensor_parallel_size=2)
    before = tokens(llm)
    fails("no sleep level 3", llm.sleep, 3)
    llm.wake_up()                                    # awake: vLLM says so in its log
    fails("no tag wieghts to wake", llm.wake_up, ["wieghts"])
    assert not llm.core.is_sleeping() and tokens(llm) == before
    llm.sleep(1)
    llm.sleep(2)                                     # asleep: likewise
    fails("no tag wieghts to wake", llm.wake_up, ["wieghts"])
    assert llm.core.is_sleeping() and resident() == {}
    llm.wake_up()
    assert tokens(llm) == before
    """)


def test_an_engine_that_cannot_sleep_goes_on(bare_node, build):
    """The pool has no room for the weights. Both workers fail; the next call gets its own answers."""
    bare_node.start_broker("--pool-size", "2MiB")
    Vllm(bare_node, build)("""
    llm = engine(tensor_parallel_size=2)
    before = tokens(llm)
    for _ in range(2):
        fails("a pool.size of", llm.sleep, 1)
        assert not llm.core.is_sleeping()
        assert tokens(llm) == before
    """)


def test_an_engine_that_cannot_sleep_after_its_requests_goes_on(bare_node, build):
    """It was to sleep when they have ended."""
    bare_node.start_broker("--pool-size", "2MiB")
    Vllm(bare_node, build)("""
    llm = engine()
    before = tokens(llm)
    slept = llm.sleep(1, mode="wait")
    assert llm.core.is_sleeping() and resident()
    llm.core.drained.set_result(None)
    fails("a pool.size of", slept.result, 0)
    assert not llm.core.is_sleeping()
    assert tokens(llm) == before
    """)


def test_what_torch_keeps_for_later_is_not_copied(vllm):
    vllm("""
    import torch
    from vllm import _worker
    llm = engine()
    there = resident()
    torch.cuda.kept.append(_worker.Block(32 << 20))
    torch.cuda.kept[0].write(bytes(range(1, 255)) * 10000)
    llm.sleep(1)
    with amem.Broker() as broker:
        assert broker.status().pool.used_bytes <= 4 << 20, broker.status().pool
    llm.wake_up()
    assert resident() == there
    """)


def test_buffers_of_a_sleep_that_failed_are_forgotten(vllm):
    """Those that vLLM saves for level 2: a later wake must not bring them back over newer ones."""
    vllm("""
    from amem import _vllm_worker
    llm = engine()
    pause = _vllm_worker._rank.pause

    def refused(*args, **options):
        raise amem.UnavailableError("no broker")

    _vllm_worker._rank.pause = refused
    fails("no broker", llm.sleep, 2)
    _vllm_worker._rank.pause = pause
    llm.core.model_executor.worker.weights.write(b"newer")
    before = llm.collective_rpc("sums")[0][0]
    llm.sleep(1)
    llm.wake_up()
    assert llm.collective_rpc("sums")[0][0] == before
    """)


def test_memory_that_another_engine_takes_meanwhile_is_no_failure(vllm):
    """vLLM finds less free memory than before the sleep."""
    vllm("""
    from vllm import _worker
    llm = engine()
    before = tokens(llm)
    real, asked = _worker.free_memory, []

    def less():
        asked.append(True)
        return real()[0] - (len(asked) << 30), 1 << 40

    _worker.free_memory = less
    llm.sleep(1)
    assert len(asked) == 2 and llm.core.is_sleeping() and resident() == {}
    llm.wake_up()
    assert tokens(llm) == before
    """)


def test_pools_nest(vllm):
    vllm("""
    from vllm import _worker
    llm = engine()
    allocator = _worker.get_mem_allocator_instance()
    assert allocator.get_current_usage() == 6 << 20
    there, blocks = resident(), []
    with allocator.use_memory_pool("runtime"):
        blocks.append(_worker.Block(2 << 20))
        with allocator.use_memory_pool("kv_cache"):
            blocks.append(_worker.Block(4 << 20))
        blocks.append(_worker.Block(2 << 20))
    assert resident() == {**there, "runtime": 4 << 20, "kv_cache": there["kv_cache"] + (4 << 20)}, resident()
    """)


def test_an_engine_that_cannot_wake_sleeps_on(vllm):
    """Another process has taken the GPU's memory."""
    vllm("""
    import ctypes
    llm = engine()
    before = tokens(llm)
    llm.sleep(1)
    import subprocess, sys
    other = subprocess.Popen([sys.executable, "-c", "import ctypes, sys; c = ctypes.CDLL('libcuda.so.1'); "
        "x = ctypes.c_void_p(); c.cuInit(0); c.cuDevicePrimaryCtxRetain(ctypes.byref(x), 0); c.cuCtxSetCurrent(x); "
        "a = ctypes.c_uint64(); print(c.cuMemAlloc_v2(ctypes.byref(a), ctypes.c_size_t(89 << 20)), flush=True); "
        "sys.stdin.read()"], env={k: v for k, v in __import__("os").environ.items() if k != "LD_PRELOAD"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "0\\n"
    fails("free", llm.wake_up)
    assert llm.core.is_sleeping() and resident() == {}
    other.communicate("")
    llm.wake_up()
    assert tokens(llm) == before
    """)


def test_beside_an_operator(vllm):
    """An engine that an operator has paused does not sleep; one that sleeps may be resumed, and wakes."""
    vllm("""
    llm = engine()
    before = tokens(llm)
    with amem.Broker() as broker:
        broker.pause("vllm")
        fails("Resume it first", llm.sleep, 1)
        assert resident() == {}           # the operator's pause stands
        broker.resume("vllm")
        assert not llm.core.is_sleeping() and tokens(llm) == before
        llm.sleep(1)
        fails("paused", broker.pause, "vllm")
        broker.resume("vllm")
        llm.wake_up()
        assert tokens(llm) == before
        broker.pause("vllm")              # its cache is kept
        broker.resume("vllm")
        assert tokens(llm) == before
    """)


def test_an_operators_pause_keeps_the_cache(vllm):
    vllm("""
    llm = engine()
    tokens(llm)
    sums = llm.collective_rpc("sums")
    with amem.Broker() as broker:
        broker.pause("vllm")
        broker.resume("vllm")
    assert llm.collective_rpc("sums") == sums
    """)


def test_the_cache_may_leave_first(vllm):
    vllm("""
    llm = engine(tensor_parallel_size=2)
    before = tokens(llm)
    for _ in range(2):
        llm.sleep(1)
        assert resident() == {}
        llm.wake_up()
        assert tokens(llm) == before
    llm.sleep(2)
    llm.wake_up(["weights"])
    llm.collective_rpc("reload_weights")
    llm.wake_up(["kv_cache"])
    assert tokens(llm) == before
    """, env={"AMEM_VLLM_CACHE_FIRST": "1"})
    with open(vllm.node.log_file("amemd")) as log:
        assert sum("pause of tag kv_cache took" in line for line in log) == 3


def test_the_interface_before_backends(vllm):
    vllm("""
    import vllm
    llm = engine()
    before = tokens(llm)
    llm.sleep(1)
    assert resident() == {}
    llm.wake_up()
    assert tokens(llm) == before
    """, env={"FAKE_VLLM_VERSION": "0.24.0"})


@pytest.mark.parametrize("size", [1, 2])
def test_an_engine_in_a_trainers_process_leaves_alone(vllm, size):
    """By its environment, without an option: the rest of the process has its memory, and runs on."""
    vllm(f"""
    llm = LLM(model="m", enable_sleep_mode=True, tensor_parallel_size={size})
    before, sums, there = tokens(llm), llm.collective_rpc("sums"), resident()
    rest = {{"heap": there["heap"]}}
    llm.sleep(1)
    assert resident() == rest, resident()
    llm.wake_up()
    assert resident() == there and llm.collective_rpc("sums")[0][0] == sums[0][0]
    llm.sleep(2)
    assert resident() == rest
    fails("wake the tag weights first", llm.wake_up, ["kv_cache"])
    llm.wake_up(["weights"])
    assert "kv_cache" not in resident() and len(resident()) == 2
    llm.collective_rpc("reload_weights")
    llm.wake_up(["kv_cache"])
    assert resident() == there and tokens(llm) == before
    """, env={"AMEM_VLLM_SLEEP": "tags"})


def test_an_engine_in_a_trainers_process_that_cannot_sleep_goes_on(bare_node, build):
    bare_node.start_broker("--pool-size", "2MiB")
    Vllm(bare_node, build)("""
    llm = LLM(model="m", enable_sleep_mode=True, tensor_parallel_size=2)
    before, there = tokens(llm), resident()
    for _ in range(2):
        fails("a pool.size of", llm.sleep, 1)
        assert not llm.core.is_sleeping() and resident() == there and tokens(llm) == before
    """, env={"AMEM_VLLM_SLEEP": "tags"})


def test_the_switch_of_the_environment(vllm):
    vllm("""
    llm = LLM(model="m", enable_sleep_mode=True)
    llm.sleep(1)
    assert resident() == {}, resident()
    """, env={"AMEM_VLLM_SLEEP": "all"})
    vllm("""
    llm = LLM(model="m")                            # nothing of it sleeps
    assert llm.core.model_executor.vllm_config.parallel_config.worker_cls == "vllm.v1.worker.gpu_worker.Worker"
    """, env={"AMEM_VLLM_SLEEP": "all"})
    vllm("""fails("AMEM_VLLM_SLEEP=some: all or tags", LLM, model="m", enable_sleep_mode=True)""", env={"AMEM_VLLM_SLEEP": "some"})


# ---- early errors ----
def test_an_unknown_version(vllm):
    for version in ("0.27.0", "0.19.1", "1.26.0", "0.0.0.dev1"):
        vllm("""fails("amem knows the sleep mode of vLLM 0.20 to 0.26; this is", engine)""",
             env={"FAKE_VLLM_VERSION": version})


def test_without_a_shim(vllm):
    vllm("""fails("libamem_shim.so is not loaded: start vLLM with `amemctl run", engine)""", group=None)


def test_with_a_scope_that_leaves_the_model_on_the_gpu(vllm):
    vllm("""fails("amem's scope is 'nccl'", engine)""", scope="nccl")


def test_turned_off(vllm):
    vllm("""fails("amem's scope is 'off'", engine)""", env={"AMEM_DISABLE": "1"})


def test_without_a_broker(bare_node, build):
    Vllm(bare_node, build)("""fails("amemd does not run here: there is no socket", engine)""")


def test_with_sleep_mode_off(vllm):
    vllm("""fails("add --enable-sleep-mode", LLM, worker_cls="amem.vllm.Worker")""")


def test_a_worker_without_a_session(bare_node, build):
    """Its broker has gone and left its socket."""
    bare_node.start_broker().kill()
    Vllm(bare_node, build)("""fails("no session with amemd", engine)""")


# ---- options ----
PARSE = """
import argparse
from vllm.engine.arg_utils import EngineArgs
from vllm.plugins import load_general_plugins

def parsed(*argv):
    load_general_plugins()
    return EngineArgs.from_cli_args(EngineArgs.add_cli_args(argparse.ArgumentParser()).parse_args(argv))
"""


def test_the_option(vllm):
    vllm(PARSE + """
config = parsed("--enable-sleep-mode", "--sleep-mode-backend", "amem").create_engine_config()
assert config.model_config.sleep_mode_backend == "amem"
assert config.parallel_config.worker_cls == "amem.vllm.Worker"
import os
assert os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
from vllm.v1.engine.core import EngineCore
core = EngineCore(config)
core.sleep(1)
assert resident() == {}, resident()
core.wake_up()
fails("add --enable-sleep-mode", parsed("--sleep-mode-backend", "amem").create_engine_config)
fails("--worker-cls other.Worker cannot be used with it",
      parsed("--enable-sleep-mode", "--worker-cls", "other.Worker", "--sleep-mode-backend", "amem").create_engine_config)
""")


def test_vllm_without_amem_is_as_it_was(vllm):
    """No shim, no broker, any version: nothing is asked of it."""
    for version in ("0.26.0", "0.33.0"):
        vllm(PARSE + """
for argv in ([], ["--enable-sleep-mode"], ["--enable-sleep-mode", "--sleep-mode-backend", "cumem"]):
    config = parsed(*argv).create_engine_config()
    assert config.model_config.sleep_mode_backend == "cumem"
    assert config.parallel_config.worker_cls == "vllm.v1.worker.gpu_worker.Worker"
import os
assert "VLLM_WORKER_MULTIPROC_METHOD" not in os.environ
llm = LLM(enable_sleep_mode=True)
before = tokens(llm)
llm.sleep(3)
llm.wake_up(["nothing"])
llm.wake_up()
assert tokens(llm) == before
import sys
assert "amem._vllm_worker" not in sys.modules
""", group=None, env={"FAKE_VLLM_VERSION": version})


def test_registering_never_fails(vllm):
    out = vllm("""
    import sys, logging, types
    import amem.vllm
    sys.modules["vllm.engine.arg_utils"] = types.ModuleType("changed")
    amem.vllm.register()
    """)
    assert out == ""


def test_the_entry_point_names_it(build):
    pyproject = os.path.join(HERE, "..", "..", "client", "python", "pyproject.toml")
    with open(pyproject) as file:
        text = file.read()
    assert '[project.entry-points."vllm.general_plugins"]\namem = "amem.vllm:register"\n' in text
    import amem.vllm

    assert callable(amem.vllm.register) and amem.vllm.WORKER == "amem.vllm.Worker"
