"""Engines that sleep by amem, on the simulated driver. vLLM is the one of fake_vllm, with the interface of 0.26.0 or, where a
test says so, of another version; shim, broker and plugin are real."""
import os
import pathlib
import subprocess
import sys
import textwrap
from collections.abc import Mapping

import pytest
from scripts import FAILS, WARNED
from sim_node import Build, Node, patience

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
SHAPES = ["0.20.0", "0.25.0", "0.26.0", "0.27.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"]  # fake_vllm has what differs
NEWEST = {"FAKE_VLLM_VERSION": "0.33.0"}
ON = {"AMEM_ON": "require"}
ALL = {"weights": 2 << 20, "kv_cache": 4 << 20, "heap": 2 << 20}


class Vllm:
    """Runs scripts with an engine in them, in the group vllm."""

    def __init__(self, node: Node, build: Build) -> None:
        self.node, self.build = node, build

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        return self.node.env({"PYTHONPATH": ":".join([os.path.join(self.build.directory, "python"),
                                                      os.path.join(HERE, "fake_vllm")]), **(more or {})})

    def __call__(self, script: str, scope: str = "heap", group: str | None = "vllm", env: Mapping[str, str] | None = None) -> str:
        """What it printed; it must end well."""
        launcher = [*self.node.launcher(group)[:-1], "--scope", scope, "--"] if group else []
        done = subprocess.run([*launcher, sys.executable, "-c", BEGIN + textwrap.dedent(script)], text=True,
                              env=self.environment(env), capture_output=True, timeout=patience(120))
        with open(self.node.log_file("vllm"), "a") as log:
            log.write(done.stdout + done.stderr)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout


@pytest.fixture
def vllm(node: Node, build: Build) -> Vllm:
    return Vllm(node, build)


@pytest.mark.parametrize("size, version", [(1, each) for each in SHAPES] + [(2, "0.26.0"), (2, "0.33.0")])
def test_level_1_keeps_weights_and_drops_the_cache(vllm: Vllm, size: int, version: str) -> None:
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
    """, env={"FAKE_VLLM_VERSION": version})


@pytest.mark.parametrize("version", SHAPES)
def test_level_2_drops_the_weights_too(vllm: Vllm, version: str) -> None:
    vllm("""
    llm = engine()
    before, [[weights, _]] = tokens(llm), llm.collective_rpc("sums")
    llm.sleep(2)
    with amem.Broker() as broker:
        assert broker.status().pool.used_bytes <= 2 << 20, broker.status().pool  # of the workspace alone
    llm.wake_up(["weights"])
    assert "kv_cache" not in resident() and len(resident()) == 2, resident()
    assert llm.core.is_sleeping()
    llm.collective_rpc("reload_weights")
    llm.wake_up(["kv_cache"])
    assert llm.collective_rpc("sums")[0][0] == weights
    assert tokens(llm) == before
    """, env={"FAKE_VLLM_VERSION": version})


@pytest.mark.parametrize("version", SHAPES)
def test_level_2_with_the_cache_first(vllm: Vllm, version: str) -> None:
    """Buffers, which lie among the weights, are restored when these are there."""
    vllm("""
    llm = engine()
    before, worker = tokens(llm), llm.core.model_executor.worker
    llm.sleep(2)
    llm.wake_up(["kv_cache"])
    assert "weights" not in resident() and len(resident()) == 2, resident()
    llm.wake_up(["weights"])
    data = worker.weights.read()
    assert any(data[:64]) and not any(data[64:])
    llm.collective_rpc("reload_weights")
    assert tokens(llm) == before
    """, env={"FAKE_VLLM_VERSION": version})


def test_level_2_without_new_weights_is_zeros(vllm: Vllm) -> None:
    vllm("""
    llm = engine()
    llm.sleep(2)
    llm.wake_up()
    worker = llm.core.model_executor.worker
    data = worker.weights.read()
    assert any(data[:64]) and not any(data[64:])  # the buffer that vLLM saves, and nothing else
    """)


@pytest.mark.parametrize("version", SHAPES)
@pytest.mark.parametrize("order", ["weights kv_cache", "kv_cache weights"])
def test_wake_in_parts(vllm: Vllm, order: str, version: str) -> None:
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
    """, env={"FAKE_VLLM_VERSION": version})


def test_level_0_leaves_memory_alone(vllm: Vllm) -> None:
    vllm("""
    llm = engine()
    before, there = tokens(llm), resident()
    llm.sleep(0)
    assert llm.core.is_sleeping() and resident() == there
    llm.wake_up(["scheduling"])
    assert tokens(llm) == before
    """)


def test_what_cannot_be_leaves_the_engine_as_it_was(vllm: Vllm) -> None:
    vllm("""
    llm = engine(tensor_parallel_size=2)
    before = tokens(llm)
    fails("3 is not a valid sleep level", llm.sleep, 3)
    llm.wake_up()                                    # awake: vLLM says so in its log
    fails("cannot wake the tag wieghts", llm.wake_up, ["wieghts"])
    assert not llm.core.is_sleeping() and tokens(llm) == before
    llm.sleep(1)
    llm.sleep(2)                                     # asleep: likewise
    fails("cannot wake the tag wieghts", llm.wake_up, ["wieghts"])
    assert llm.core.is_sleeping() and resident() == {}
    llm.wake_up()
    assert tokens(llm) == before
    """)


def test_an_engine_that_cannot_sleep_goes_on(bare_node: Node, build: Build) -> None:
    """The pool has no space for the weights. Both workers fail; the next call gets its own answers."""
    bare_node.start_broker("--pool-size", "2MiB")
    Vllm(bare_node, build)("""
    llm = engine(tensor_parallel_size=2)
    before = tokens(llm)
    for _ in range(2):
        fails("a pool.size of", llm.sleep, 1)
        assert not llm.core.is_sleeping()
        assert tokens(llm) == before
    """)


def test_an_engine_that_cannot_sleep_after_its_requests_goes_on(bare_node: Node, build: Build) -> None:
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


def test_what_torch_keeps_for_later_is_not_copied(vllm: Vllm) -> None:
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


def test_buffers_of_a_sleep_that_failed_are_forgotten(vllm: Vllm) -> None:
    """Those that vLLM saves for level 2: a later wake must not bring them back over newer ones."""
    vllm("""
    from amem.vllm import _worker
    llm = engine()
    pause = _worker._rank.pause

    def refused(*args, **options):
        raise amem.UnavailableError("no broker")

    _worker._rank.pause = refused
    fails("no broker", llm.sleep, 2)
    _worker._rank.pause = pause
    llm.core.model_executor.worker.weights.write(b"newer")
    before = llm.collective_rpc("sums")[0][0]
    llm.sleep(1)
    llm.wake_up()
    assert llm.collective_rpc("sums")[0][0] == before
    """)


def test_memory_that_another_engine_takes_meanwhile_is_no_failure(vllm: Vllm) -> None:
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


def test_pools_nest(vllm: Vllm) -> None:
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


def test_an_engine_that_cannot_wake_sleeps_on(vllm: Vllm) -> None:
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


def test_beside_an_operator(vllm: Vllm) -> None:
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


def test_an_operators_pause_keeps_the_cache(vllm: Vllm) -> None:
    vllm("""
    llm = engine()
    tokens(llm)
    sums = llm.collective_rpc("sums")
    with amem.Broker() as broker:
        broker.pause("vllm")
        broker.resume("vllm")
    assert llm.collective_rpc("sums") == sums
    """)


def test_the_cache_may_leave_first(vllm: Vllm) -> None:
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


# ---- what newer versions have ----
def test_a_wake_brings_all_tags_but_the_one_that_is_left(vllm: Vllm) -> None:
    vllm("""
    llm = engine(lora=True)
    before, there = tokens(llm), resident()
    assert there["runtime"] == 2 << 20
    worker = llm.core.model_executor.worker
    worker.adapter.write(b"an adapter")
    llm.sleep(2)                            # keeps it, unlike the weights
    assert resident() == {}
    llm.wake_up(["weights"])
    assert resident() == {tag: size for tag, size in there.items() if tag != "kv_cache"}, resident()
    assert worker.adapter.read(10) == b"an adapter"
    llm.collective_rpc("reload_weights")
    llm.wake_up(["kv_cache"])
    assert resident() == there and tokens(llm) == before
    """, env=NEWEST)


def test_a_pool_without_memory(vllm: Vllm) -> None:
    """vLLM has entered it, and nothing was allocated. The group has no memory of that tag."""
    vllm("""
    llm = engine(lora=False)
    before, there = tokens(llm), resident()
    assert "runtime" not in there
    for wake in ([None], [["weights"], ["kv_cache"]], [["kv_cache"], ["weights"]]):
        llm.sleep(1)
        assert resident() == {}
        for tags in wake:
            llm.wake_up(tags)
        assert resident() == there and tokens(llm) == before
    """, env=NEWEST)


@pytest.mark.parametrize("way", ["all", "tags"])
def test_the_cache_is_discarded_while_the_engine_is_paused(vllm: Vllm, way: str) -> None:
    """release_kv_cache_memory(), also before a sleep."""
    vllm("""
    llm = LLM(model="m", enable_sleep_mode=True, tensor_parallel_size=2)
    before, there = tokens(llm), resident()
    without = {tag: size for tag, size in there.items() if tag != "kv_cache"}
    fails("requires a completed pause", llm.release_kv_cache_memory)
    llm.sleep(0)
    llm.release_kv_cache_memory()
    assert resident() == without, resident()
    fails("memory to be resident", llm.release_kv_cache_memory)
    assert llm.wake_up(["kv_cache"]) is True
    assert resident() == there and tokens(llm) == before

    llm.sleep(0)
    llm.release_kv_cache_memory()
    llm.sleep(1)
    assert set(resident()) <= {"heap"}, resident()
    assert llm.wake_up(["weights"]) is False
    assert resident() == without
    llm.sleep(1)                            # again, with the cache paused
    assert set(resident()) <= {"heap"}, resident()
    llm.wake_up()
    assert resident() == there and tokens(llm) == before
    """, env={**NEWEST, **ON, "AMEM_VLLM_SLEEP": way})


@pytest.mark.parametrize("way", ["all", "tags"])
def test_a_sleep_that_fails_after_the_cache_was_discarded(bare_node: Node, build: Build, way: str) -> None:
    """The cache is paused still, and the weights are where they were."""
    bare_node.start_broker("--pool-size", "2MiB")
    Vllm(bare_node, build)("""
    llm = LLM(model="m", enable_sleep_mode=True, tensor_parallel_size=2)
    before, there = tokens(llm), resident()
    llm.sleep(0)
    llm.release_kv_cache_memory()
    without = resident()
    for _ in range(2):
        fails("a pool.size of", llm.sleep, 1)
        assert resident() == without, resident()
    llm.wake_up()
    assert resident() == there and tokens(llm) == before
    """, env={**NEWEST, **ON, "AMEM_VLLM_SLEEP": way})


def test_parameters_that_vllm_preserves_over_level_2(vllm: Vllm) -> None:
    vllm("""
    llm = engine(sleep_preserve_parameter_names=["table.*"])
    worker = llm.core.model_executor.worker
    table = worker.weights.read(64, 64)
    llm.sleep(2)
    llm.wake_up(["kv_cache"])
    llm.wake_up(["weights"])
    data = worker.weights.read()
    assert data[64:128] == table and any(data[:64]) and not any(data[128:])
    llm = None
    """, env=NEWEST)
    vllm("""
    llm = engine(sleep_preserve_parameter_names=["chair.*"])
    before = tokens(llm)
    fails("No parameter matches sleep retention: chair", llm.sleep, 2)
    assert not llm.core.is_sleeping() and tokens(llm) == before
    """, env=NEWEST)


@pytest.mark.parametrize("version", ["0.30.0", "0.33.0"])
@pytest.mark.parametrize("way", ["all", "tags"])
def test_ncclCommSuspend_is_not_called(vllm: Vllm, version: str, way: str) -> None:
    """It would be refused, and would fail the sleep."""
    vllm("""
    llm = LLM(model="m", enable_sleep_mode=True, enable_nccl_comm_suspend=True, tensor_parallel_size=2)
    before, there = tokens(llm), resident()
    llm.sleep(1)
    assert set(resident()) <= {"heap"}
    llm.wake_up()
    assert resident() == there and tokens(llm) == before
    """, env={"FAKE_VLLM_VERSION": version, **ON, "AMEM_VLLM_SLEEP": way})


def test_nccls_memory_leaves_with_the_pools(vllm: Vllm) -> None:
    """In a trainer's process, where vLLM was told to suspend its communicators. The tag is the stand-in's: no NCCL is here."""
    vllm("""
    from amem.vllm import _worker
    llm = LLM(model="m", enable_sleep_mode=True, enable_nccl_comm_suspend=True)
    asked = []
    pause, resume = _worker._rank.pause, _worker._rank.resume
    _worker._rank.pause = lambda tags, discard, **options: (asked.append((list(tags), list(discard))), pause(tags, discard=discard))
    llm.sleep(2)
    assert asked == [(["kv_cache", "nccl", "weights"], ["kv_cache", "weights"]), (["kv_cache", "weights"], ["kv_cache", "weights"])], asked
    llm.wake_up()
    """, env={**NEWEST, **ON, "AMEM_VLLM_SLEEP": "tags"})


@pytest.mark.parametrize("way", ["all", "tags"])
def test_offloaded_graphs(vllm: Vllm, way: str) -> None:
    """sleep_mode_offload_cudagraph: in a trainer's process they have a pool, else they leave with everything."""
    vllm(f"""
    llm = LLM(model="m", enable_sleep_mode=True, sleep_mode_offload_cudagraph=True)
    before, there, worker = tokens(llm), resident(), llm.core.model_executor.worker
    assert ("cudagraph" in there) == ({way!r} == "tags"), there
    llm.sleep(2)
    assert set(resident()) <= {{"heap"}}, resident()
    llm.wake_up(["weights"])
    assert "kv_cache" not in resident() and len(resident()) == len(there) - 1, resident()
    llm.collective_rpc("reload_weights")
    llm.wake_up(["kv_cache"])
    assert resident() == there and tokens(llm) == before
    if "cudagraph" in there:
        assert worker.graphs.read(7) == b"a graph"
    """, env={**NEWEST, **ON, "AMEM_VLLM_SLEEP": way})


def test_a_cache_that_a_nic_knows_leaves(vllm: Vllm, build: Build) -> None:
    """vLLM unregisters it before the pause looks what is registered, and waits for a transfer."""
    vllm("""
    import time
    from vllm import _worker
    llm = engine(connector=True)
    before, there, connector = tokens(llm), resident(), _worker.get_kv_transfer_group()
    with amem.Broker() as broker:
        broker.pause("vllm")
        assert resident() == {"kv_cache": there["kv_cache"]}    # an operator's pause leaves it where the NIC has it
        broker.resume("vllm")
    connector.transfers_until = time.monotonic() + 0.5
    llm.sleep(1)
    assert time.monotonic() >= connector.transfers_until and resident() == {}, resident()
    llm.wake_up(["weights"])
    llm.wake_up(["kv_cache"])
    assert connector.calls == ["restore", "unregister", "restore"] and tokens(llm) == before
    with amem.Broker() as broker:
        broker.pause("vllm")
        fails("Resume it first", llm.sleep, 1)                  # and it has not unregistered the cache
        broker.resume("vllm")
    assert connector.region is not None and tokens(llm) == before
    """, env={**NEWEST, "LD_LIBRARY_PATH": ":".join([build.sim_libraries, os.path.join(build.directory, "lib", "rdma"),
                                                     os.path.join(build.directory, "lib")])})


def test_a_cache_is_registered_again_when_a_sleep_fails(bare_node: Node, build: Build) -> None:
    bare_node.start_broker("--pool-size", "2MiB")
    Vllm(bare_node, build)("""
    from vllm import _worker
    llm = engine(connector=True)
    before, connector = tokens(llm), _worker.get_kv_transfer_group()
    fails("a pool.size of", llm.sleep, 1)
    assert connector.calls == ["restore", "unregister", "restore"] and connector.region is not None
    assert tokens(llm) == before
    """, env={**NEWEST, "LD_LIBRARY_PATH": ":".join([build.sim_libraries, os.path.join(build.directory, "lib", "rdma"),
                                                     os.path.join(build.directory, "lib")])})


def test_what_the_backend_says_of_itself(vllm: Vllm) -> None:
    vllm("""
    llm = engine()
    llm.sleep(0)
    llm.release_kv_cache_memory()
    backend = llm.core.model_executor.worker._sleep_mode_backend
    assert type(backend).__module__ == "amem.vllm._backend" and backend.state() == "SUSPENDED"
    llm.wake_up()
    assert backend.state() == "RUNNING"
    assert backend.is_supported() and backend.preserves_communicators() and backend.preserves_compiled_artifacts()
    assert backend.preserves_graphs_with_communicators() and not backend.supports_durable_storage()
    with amem.Broker() as broker:
        broker.pause("vllm")
        fails("Resume it first", llm.sleep, 1)
        broker.resume("vllm")
    assert backend.state() == "RUNNING"
    """, env=NEWEST)


@pytest.mark.parametrize("size", [1, 2])
def test_an_engine_in_a_trainers_process_leaves_alone(vllm: Vllm, size: int) -> None:
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
    llm.wake_up(["weights"])
    assert "kv_cache" not in resident() and len(resident()) == 2
    llm.collective_rpc("reload_weights")
    llm.wake_up(["kv_cache"])
    assert resident() == there and tokens(llm) == before
    """, env={**ON, "AMEM_VLLM_SLEEP": "tags"})


def test_an_engine_in_a_trainers_process_that_cannot_sleep_goes_on(bare_node: Node, build: Build) -> None:
    bare_node.start_broker("--pool-size", "2MiB")
    Vllm(bare_node, build)("""
    llm = LLM(model="m", enable_sleep_mode=True, tensor_parallel_size=2)
    before, there = tokens(llm), resident()
    for _ in range(2):
        fails("a pool.size of", llm.sleep, 1)
        assert not llm.core.is_sleeping() and resident() == there and tokens(llm) == before
    """, env={**ON, "AMEM_VLLM_SLEEP": "tags"})


def test_the_switch_of_the_environment(vllm: Vllm) -> None:
    vllm("""
    llm = LLM(model="m", enable_sleep_mode=True)
    llm.sleep(1)
    assert resident() == {}, resident()
    """, env=ON)
    vllm("""
    llm = LLM(model="m")                            # nothing of it sleeps
    assert llm.core.model_executor.vllm_config.parallel_config.worker_cls == "vllm.v1.worker.gpu_worker.Worker"
    """, env=ON)
    vllm("""fails("AMEM_VLLM_SLEEP=some is not supported. Use all, deep or tags", LLM, model="m", enable_sleep_mode=True)""",
         env={**ON, "AMEM_VLLM_SLEEP": "some"})


# ---- nothing stays ----
@pytest.fixture
def deep_vllm(bare_node: Node, build: Build) -> Vllm:
    """Each driver call of a checkpointed process waits."""
    bare_node.settings["AMEM_SIM_CHECKPOINT"] = "hang"
    bare_node.start_broker("--deep-enabled", "true")
    return Vllm(bare_node, build)


DEEP = """
    def is_deep():
        with amem.Broker() as broker:
            return [(each.name, each.deep) for each in broker.groups()] == [("vllm", True)]
"""


@pytest.mark.parametrize("size, version", [(1, "0.20.0"), (2, "0.26.0"), (2, "0.33.0")])
def test_a_deep_sleep(deep_vllm: Vllm, size: int, version: str) -> None:
    """vLLM asks the driver for the free memory after its pause, and waits for nothing."""
    deep_vllm(DEEP + f"""
    llm = engine(tensor_parallel_size={size})
    before, there = tokens(llm), resident()
    for level in (1, 2):
        llm.sleep(level)
        assert is_deep() and resident() == {{}}, resident()
        llm.wake_up(["weights"])
        assert not is_deep() and "kv_cache" not in resident()
        if level == 2:
            llm.collective_rpc("reload_weights")
        llm.wake_up(["kv_cache"])
        assert resident() == there and tokens(llm) == before
    """, env={"FAKE_VLLM_VERSION": version, "AMEM_VLLM_SLEEP": "deep"})


def test_what_leaves_a_part_is_not_deep(deep_vllm: Vllm) -> None:
    deep_vllm(DEEP + """
    llm = LLM(model="m", enable_sleep_mode=True)
    before = tokens(llm)
    llm.sleep(0)
    llm.release_kv_cache_memory()
    assert not is_deep()
    llm.sleep(1)
    assert is_deep()
    llm.wake_up()
    assert tokens(llm) == before
    """, env={**NEWEST, **ON, "AMEM_VLLM_SLEEP": "deep"})


def test_a_deep_sleep_that_is_not_allowed(vllm: Vllm) -> None:
    """The engine is awake, and serves."""
    vllm("""
    llm = LLM(model="m", enable_sleep_mode=True, tensor_parallel_size=2)
    before, there = tokens(llm), resident()
    for _ in range(2):
        fails("deep.enabled", llm.sleep, 1)
        assert not llm.core.is_sleeping() and resident() == there and tokens(llm) == before
    """, env={**ON, "AMEM_VLLM_SLEEP": "deep"})


# ---- early errors ----
@pytest.mark.parametrize("version", ["0.34.0", "1.2.0", "0.35.0.dev7+gabcdef", "0.19.1"])
def test_a_version_that_was_not_tried(vllm: Vllm, version: str) -> None:
    """It has all that amem needs, so it runs, with one warning."""
    vllm(WARNED + f"""
llm = LLM(model="m", enable_sleep_mode=True, tensor_parallel_size=2)
before = tokens(llm)
llm.sleep(1)
assert resident() == {{}}
llm.wake_up()
assert tokens(llm) == before
warned("this is vLLM {version}. amem was tried with 0.20 to 0.33.")
assert "Executor.sleep" in said.getvalue()
""", env={"FAKE_VLLM_VERSION": version, **ON})


@pytest.mark.parametrize("place, name", [
    ("vllm.v1.executor.abstract:Executor.wake_up", "wake_up"), ("vllm.v1.engine.core:EngineCore.resume_scheduler", "resume_scheduler"),
    ("vllm.v1.worker.gpu_worker:Worker.wake_up", "wake_up"), ("vllm.device_allocator.cumem:CuMemAllocator.use_memory_pool", "use_memory_pool")])
def test_a_function_that_was_moved(vllm: Vllm, place: str, name: str) -> None:
    """Also of a version that is known by its number."""
    owner = place.partition(":")[2].partition(".")[0]
    vllm(f"""
    try:
        LLM(model="m", enable_sleep_mode=True)
    except amem.FailedPreconditionError as error:
        assert f"has no {name}(), which amem needs" in str(error) and {owner!r} in str(error), error
        assert "amem does not support this version. Use an older version, or a newer amem" in str(error)
    else:
        raise SystemExit("it runs")
    """, env={**NEWEST, "FAKE_VLLM_LACKS": place, **ON})


def test_two_backends(vllm: Vllm) -> None:
    vllm("""
    fails("two sleep-mode backends are chosen: --sleep-mode-backend criu, and amem", LLM, model="m", enable_sleep_mode=True,
          sleep_mode_backend="criu")
    """, env={**NEWEST, **ON})


def test_without_a_shim(vllm: Vllm) -> None:
    vllm("""fails("vLLM cannot sleep by amem: libamem_shim.so is not loaded in process", engine)""", group=None)


def test_with_a_scope_that_leaves_the_model_on_the_gpu(vllm: Vllm) -> None:
    vllm("""fails("the scope of this process is 'nccl'", engine)""", scope="nccl")


def test_turned_off(vllm: Vllm) -> None:
    vllm("""fails("the scope of this process is 'off'", engine)""", env={"AMEM_DISABLE": "1"})


def test_without_a_broker(bare_node: Node, build: Build) -> None:
    Vllm(bare_node, build)("""fails("amemd does not run here: there is no socket", engine)""")


def test_with_sleep_mode_off(vllm: Vllm) -> None:
    vllm("""fails("Add --enable-sleep-mode", LLM, worker_cls="amem.vllm.Worker")""")


def test_a_worker_without_a_session(bare_node: Node, build: Build) -> None:
    """Its broker has gone and left its socket."""
    bare_node.start_broker().kill()
    Vllm(bare_node, build)("""fails("no session with amemd", engine)""")


# ---- what is not vLLM's own, and what amem cannot serve: the engine sleeps as without amem ----
PLAIN = WARNED + """
import os
def sleeps_by_itself(why, **options):
    llm = LLM(model="m", enable_sleep_mode=True, **options)
    before = tokens(llm)
    llm.sleep(1)
    assert llm.core.is_sleeping()
    llm.wake_up()
    assert tokens(llm) == before
    assert why in said.getvalue(), said.getvalue()
    return llm
"""
ASKED = {"AMEM_ON": "1"}


def test_an_allocator_that_somebody_has_replaced(vllm: Vllm) -> None:
    """Unsloth leaves the weights on the GPU, because they are the trainer's."""
    script = PLAIN + """
import types
from vllm._worker import CuMemAllocator
unsloth, seen = types.ModuleType("unsloth_zoo.vllm_utils"), []
unsloth.seen = seen
exec("def sleep(self, offload_tags=None): seen.append(offload_tags)", vars(unsloth))
CuMemAllocator.sleep = unsloth.sleep
"""
    vllm(script + """
sleeps_by_itself("unsloth_zoo.vllm_utils has replaced CuMemAllocator.sleep() of vLLM, and amem leaves that as it is")
assert len(seen) == 1, seen
""", env=ASKED)
    vllm(script + """
fails("unsloth_zoo.vllm_utils has replaced CuMemAllocator.sleep()", LLM, model="m", enable_sleep_mode=True)
""", env=ON)


def test_a_worker_class_of_somebody_else(vllm: Vllm) -> None:
    vllm(PLAIN + """
sleeps_by_itself("with the worker class vllm.v1.worker.gpu_worker.Worker, which amem leaves as it is",
                 worker_cls="vllm.v1.worker.gpu_worker.Worker")
""", env=ASKED)


def test_rays_workers_without_a_shim(vllm: Vllm) -> None:
    """Ray gives them an environment of their own."""
    vllm(PLAIN + """
llm = sleeps_by_itself("", distributed_executor_backend="ray")
assert llm.collective_rpc("own_calls") == [["sleep", "wake_up", "tags"]], llm.collective_rpc("own_calls")
assert os.environ["VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY"] == "AMEM_VLLM_"
""", env={**ASKED, "AMEM_VLLM_SLEEP": "tags"})
    vllm("""
fails("libamem_shim.so is not loaded in process", LLM, model="m", enable_sleep_mode=True, distributed_executor_backend="ray")
""", env=ON)


@pytest.mark.parametrize("version", ["0.24.0", "0.33.0"])
def test_a_socket_that_a_broker_has_left(bare_node: Node, build: Build, version: str) -> None:
    bare_node.start_broker().kill()
    os.unlink(os.path.join(bare_node.dir, "run", "control.sock"))  # a container may lack this one
    Vllm(bare_node, build)(PLAIN + """
llm = sleeps_by_itself("amem: this worker sleeps without amem: this vLLM worker has no session with amemd")
assert llm.collective_rpc("own_calls") == [["sleep", "wake_up", ""]], llm.collective_rpc("own_calls")
""", env={**ASKED, "FAKE_VLLM_VERSION": version})


def test_a_snapshot_of_an_engine(vllm: Vllm) -> None:
    """vllm.snapshot uses CRIU, which cannot save a session."""
    snapshot = """
    import types
    import __main__
    __main__.__spec__ = types.SimpleNamespace(name="vllm.snapshot.server")
    """
    vllm(snapshot + """
    fails("`vllm snapshot` cannot save a process that has a session with amemd", LLM, model="m", enable_sleep_mode=True)
    """, env=ASKED)
    vllm(snapshot + """
    LLM(model="m", enable_sleep_mode=True)
    """, group=None, env=ASKED)


# ---- several engines, several workers ----
@pytest.mark.parametrize("size", [1, 2])
def test_engines_of_one_group_do_not_wait_for_each_other(vllm: Vllm, size: int) -> None:
    """TRL's ranks, each with an engine; data parallelism of vLLM."""
    vllm(f"""
    import os, subprocess, sys
    size = {size}
    other = subprocess.Popen([sys.executable, "-c", '''
import sys
from vllm import LLM
llm = LLM(model="m", enable_sleep_mode=True, tensor_parallel_size=int(sys.argv[1]))
print("up", flush=True)
sys.stdin.read()
''', str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "up\\n"
    llm = LLM(model="m", enable_sleep_mode=True, tensor_parallel_size=size)
    before, there = tokens(llm), resident()
    for _ in range(2):
        llm.sleep(1)
        assert resident() == {{**there, "weights": there["weights"] // 2, "kv_cache": there["kv_cache"] // 2}}, resident()
        llm.wake_up()
        assert resident() == there and tokens(llm) == before
    other.communicate("")
    """, env={**ON, "AMEM_VLLM_SLEEP": "tags", "AMEM_TIMEOUT": "5s"})


def test_a_wake_that_fails_on_one_gpu_leaves_all_asleep(vllm: Vllm) -> None:
    """A second wake works."""
    vllm("""
    import os, subprocess, sys
    llm = LLM(model="m", enable_sleep_mode=True, tensor_parallel_size=2)
    before, there = tokens(llm), resident()
    rest = {"heap": there["heap"]}
    llm.sleep(1)
    assert resident() == rest
    other = subprocess.Popen([sys.executable, "-c", "import ctypes, sys; c = ctypes.CDLL('libcuda.so.1'); "
        "x = ctypes.c_void_p(); c.cuInit(0); c.cuDevicePrimaryCtxRetain(ctypes.byref(x), 1); c.cuCtxSetCurrent(x); "
        "a = ctypes.c_uint64(); print(c.cuMemAlloc_v2(ctypes.byref(a), ctypes.c_size_t(89 << 20)), flush=True); "
        "sys.stdin.read()"], env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "0\\n"
    for _ in range(2):
        fails("free", llm.wake_up)
        assert llm.core.is_sleeping() and resident() == rest, resident()
    other.communicate("")
    llm.wake_up()
    assert resident() == there and tokens(llm) == before
    """, env={**ON, "AMEM_VLLM_SLEEP": "tags"})


@pytest.mark.parametrize("way", ["all", "tags"])
@pytest.mark.parametrize("method, call", [("sleep", "cuMemcpyDtoHAsync"), ("wake_up", "cuMemcpyHtoDAsync")])
def test_a_worker_that_is_killed_in_a_sleep_or_wake(vllm: Vllm, tmp_path: pathlib.Path, method: str, call: str, way: str) -> None:
    """The other one says which rank ended in what, is awake, and runs on."""
    vllm(f"""
    import glob, multiprocessing, os, time
    os.environ["AMEM_SIM_FAULT_FILE"] = rules = {str(tmp_path / "rules")!r}

    def fault(rule):
        with open(rules + ".new", "w") as file:
            file.write(rule)
        os.rename(rules + ".new", rules)

    def ask(pipe, method, *arguments):
        pipe.send((method, arguments, {{}}))

    def answer():
        assert ours.poll(20), "the worker waits"
        good, answer = ours.recv()
        assert good, answer
        return answer

    fault("")
    llm = LLM(model="m", enable_sleep_mode=True, tensor_parallel_size=2)
    ours, theirs = pipes = llm.core.model_executor.pipes
    _, other = sorted(multiprocessing.active_children(), key=lambda each: each.name)
    before, method = tokens(llm), {method!r}
    if method == "wake_up":
        llm.sleep(1)
    fault("{call}:1:hold")
    for pipe in pipes:
        ask(pipe, "amem_call", method, (1,) if method == "sleep" else (), {{}})
    end = time.monotonic() + 20
    while len(glob.glob(rules + ".held.*")) < 2:
        assert time.monotonic() < end, "not both move bytes"
        time.sleep(0.05)
    other.kill()
    other.join()
    fault("")
    error = answer()
    if method == "wake_up":
        assert error == ""
    else:
        assert error.startswith("sleep: pause of ") and f"(pid {{other.pid}}) ended during save" in error, error
    ask(ours, "amem_come_back")
    assert answer() is None
    ask(ours, "execute", [1, 2, 3], 8)
    assert answer() == before
    """, env={**ON, "AMEM_VLLM_SLEEP": way})
    with open(vllm.node.log_file("vllm")) as file:
        said = file.read()
    assert ("amem: sleep failed: pause of " in said) == (method == "sleep"), said


def test_the_workers_of_an_engine_have_a_name(vllm: Vllm) -> None:
    """Equal in all of them, and in no other engine."""
    vllm("""
    import os, types
    from amem.vllm._worker import _engine

    def config(**sizes):
        return types.SimpleNamespace(**sizes)

    two = config(tensor_parallel_size=2)
    assert _engine(config(tensor_parallel_size=1), 0, "file:///a") is None
    name, count = _engine(two, 0, "file:///a")
    assert count == 2 and 1 <= len(name) <= 63
    assert _engine(two, 1, "file:///a") == (name, 2) and _engine(two, 0, "file:///b")[0] != name
    assert _engine(config(tensor_parallel_size=2, pipeline_parallel_size=2), 0, "file:///a") == (name, 4)
    # On two nodes: those of this one.
    assert _engine(config(tensor_parallel_size=4, local_world_size=2), 3, "tcp://h:1")[1] == 2

    def launched(rank):  # by torchrun, 4 ranks of 2 engines
        os.environ.update(RANK=str(rank), MASTER_ADDR="h", MASTER_PORT="1", LOCAL_WORLD_SIZE="4")
        return _engine(two, rank, "env://")

    assert launched(0) == launched(1) != launched(2) == launched(3) and launched(0)[1] == 2
    """)


def test_a_sleep_of_everything_waits_for_other_engines_requests(vllm: Vllm) -> None:
    """vLLM's data parallel engines end their requests at different times. A user's AMEM_TIMEOUT counts."""
    vllm("""
    import os
    from amem.vllm import _worker
    os.environ.pop("AMEM_TIMEOUT", None)
    asked, pause, resume = [], _worker._rank.pause, _worker._rank.resume

    def record(call):
        def called(*arguments, **options):
            asked.append(options.get("timeout"))
            call(*arguments, **options)
        return called

    _worker._rank.pause, _worker._rank.resume = record(pause), record(resume)
    llm = engine()
    llm.sleep(1)
    llm.wake_up(["weights"])
    os.environ["AMEM_TIMEOUT"] = "7s"
    llm.wake_up(["kv_cache"])
    assert asked[:2] == [1800, 1800] and set(asked[2:]) == {None}, asked
    """)


def test_a_sleep_of_everything_says_for_whom_it_waits(vllm: Vllm) -> None:
    """Two data parallel engines are in one group, and one of them still has requests. The log says it once."""
    vllm(WARNED + """
import subprocess, sys, time
other = subprocess.Popen([sys.executable, "-c", '''
import sys
from vllm import LLM
llm = LLM(model="m", enable_sleep_mode=True)
print("up", flush=True)
for line in sys.stdin:
    llm.sleep(1)
    llm.wake_up()
'''], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
assert other.stdout.readline() == "up\\n"
llm = LLM(model="m", enable_sleep_mode=True)
before = tokens(llm)
from amem.vllm import _worker
_worker._LONG = 0.5
pause, waited = _worker._rank.pause, []

def late(*arguments, **options):
    threading.Timer(1.5, lambda: (other.stdin.write("\\n"), other.stdin.flush())).start()
    pause(*arguments, **options)

import threading
for turn in range(2):
    _worker._rank.pause = late
    llm.sleep(1)
    llm.wake_up()
    assert tokens(llm) == before
    [line] = said.getvalue().splitlines()
    assert line.startswith("amem: this sleep has not ended after 0.5 s. All ranks of the group 'vllm' take part in it"), line
    assert "with AMEM_VLLM_SLEEP=tags, or with a group for each engine and trainer (AMEM_GROUP), each sleeps and wakes by itself" in line
other.stdin.close()
assert other.wait(60) == 0
""", env=ON)


def test_the_error_of_a_sleep_is_not_hidden(bare_node: Node, build: Build) -> None:
    """vLLM's scheduler may refuse to go on: with MoE models the other engines have not answered."""
    bare_node.start_broker("--pool-size", "2MiB")
    Vllm(bare_node, build)(WARNED + """
from vllm.v1.engine.core import EngineCore
def refuses(self):
    raise RuntimeError("pause is still in flight")
EngineCore.resume_scheduler = refuses
llm = engine()
fails("a pool.size of", llm.sleep, 1)
assert "the scheduler does not go on after a sleep that failed: pause is still in flight" in said.getvalue()
def died(self):
    raise RuntimeError("Executor failed.")
type(llm.core.model_executor.worker).amem_come_back = died
fails("a pool.size of", llm.core.model_executor.sleep, 1)
assert "not all workers are awake after a sleep that failed: amem_come_back: RuntimeError: Executor failed." in said.getvalue()
""")


# ---- pools ----
@pytest.mark.parametrize("version", ["0.26.0", "0.33.0"])
def test_pools_have_no_expandable_segments(vllm: Vllm, version: str) -> None:
    """vLLM's own allocator sees to that, because a NIC cannot register them."""
    vllm("""
    import contextlib, sys, types
    import torch
    seen = []
    torch.cuda.memory = types.SimpleNamespace(_set_allocator_settings=lambda text: seen.append(text.partition(":")[2]))

    @contextlib.contextmanager
    def non_expandable_allocations():
        seen.append("False")
        yield
        seen.append("True")

    if vllm_is_new:
        sys.modules["vllm.device_allocator.alloc_conf"] = types.SimpleNamespace(non_expandable_allocations=non_expandable_allocations)
    llm = engine(lora=True)
    assert seen == ["False", "True"] * 2, seen      # weights with the adapters within, and the cache
    """.replace("vllm_is_new", str(version == "0.33.0")),
         env={"FAKE_VLLM_VERSION": version, "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512,expandable_segments:True"})


def test_what_loading_has_freed_goes_back(vllm: Vllm) -> None:
    """Only after the pool: within another one PyTorch gives nothing back."""
    vllm(WARNED + """
logging.getLogger("vllm.amem").setLevel(logging.INFO)
from amem import _regions
from vllm import _worker
seen = []
_regions.give_back = lambda tag: seen.append((tag, _regions.is_inside())) or 4096
engine(lora=True)
assert seen == [("weights", False)], seen
assert "the pool weights has 4096 free bytes that stay on the GPU" in said.getvalue()
with _worker.get_mem_allocator_instance().use_memory_pool("runtime"):
    with _worker.get_mem_allocator_instance().use_memory_pool("weights"):
        pass
assert len(seen) == 1
""", env=NEWEST)


# ---- options ----
PARSE = """
import argparse
from vllm.engine.arg_utils import EngineArgs
from vllm.plugins import load_general_plugins

def parsed(*argv):
    load_general_plugins()
    return EngineArgs.from_cli_args(EngineArgs.add_cli_args(argparse.ArgumentParser()).parse_args(argv))
"""


@pytest.mark.parametrize("version", ["0.24.0", "0.26.0", "0.33.0"])
def test_the_option(vllm: Vllm, version: str) -> None:
    vllm(PARSE + """
config = parsed("--enable-sleep-mode", "--sleep-mode-backend", "amem").create_engine_config()
assert config.parallel_config.worker_cls == "amem.vllm.Worker"
import os
assert os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
from vllm.v1.engine.core import EngineCore
core = EngineCore(config)
assert getattr(config.model_config, "sleep_mode_backend", "amem") == "amem"
core.sleep(1)
assert resident() == {}, resident()
core.wake_up()
fails("Add --enable-sleep-mode", parsed("--sleep-mode-backend", "amem").create_engine_config)
fails("vLLM cannot sleep by amem with the worker class other.Worker, which amem leaves as it is",
      parsed("--enable-sleep-mode", "--worker-cls", "other.Worker", "--sleep-mode-backend", "amem").create_engine_config)
""", env={"FAKE_VLLM_VERSION": version})


def test_vllm_without_amem_is_as_it_was(vllm: Vllm) -> None:
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
assert "amem.vllm._worker" not in sys.modules
""", group=None, env={"FAKE_VLLM_VERSION": version})


def test_registering_never_fails(vllm: Vllm) -> None:
    out = vllm("""
    import sys, logging, types
    import amem.vllm
    sys.modules["vllm.engine.arg_utils"] = types.ModuleType("changed")
    amem.vllm.register()
    """)
    assert out == ""


def test_registering_twice_changes_nothing(vllm: Vllm) -> None:
    """vLLM asks by the name of its backend as soon as the plugin is loaded."""
    vllm("""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory
    from vllm.v1.engine.core import EngineCore
    from vllm.plugins import load_general_plugins
    import amem.vllm
    assert "amem" not in SleepModeBackendFactory._registry
    load_general_plugins()
    assert "amem" in SleepModeBackendFactory._registry
    once = EngineCore.sleep, EngineArgs.create_engine_config
    amem.vllm.register()
    assert (EngineCore.sleep, EngineArgs.create_engine_config) == once
    """, env=NEWEST)


def test_nobody_who_has_not_asked_is_warned(vllm: Vllm) -> None:
    vllm(WARNED + PARSE + """
parsed("--enable-sleep-mode").create_engine_config()
assert said.getvalue() == "", said.getvalue()
""", group=None, env={"FAKE_VLLM_LACKS": "vllm.v1.executor.abstract:Executor.wake_up"})


def test_the_entry_point_names_it(build: Build) -> None:
    pyproject = os.path.join(HERE, "..", "..", "..", "client", "python", "pyproject.toml")
    with open(pyproject) as file:
        text = file.read()
    assert '[project.entry-points."vllm.general_plugins"]\namem = "amem.vllm:register"\n' in text
    import amem.vllm

    assert callable(amem.vllm.register) and amem.vllm.WORKER == "amem.vllm.Worker"
