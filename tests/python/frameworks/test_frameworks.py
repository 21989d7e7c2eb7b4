"""amem's modules for DeepSpeed, SGLang, slime, Miles and verl, on the simulated driver. The frameworks are those of fake_frameworks; NCCL is
the one of the simulated driver; shim, broker, modules and the distribution torch_memory_saver are real."""
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
HOOK = "torch_memory_saver_hook_mode_preload.abi3.so"
BEGIN = FAILS + """
import ctypes, logging, os, sys, types
import torch
import amem

logging.basicConfig(format="%(name)s: %(message)s")
MIB = 1 << 20

def here():
    "The tags of which this process has memory on the GPU."
    return {each.tag for each in amem.stats().brokered if each.resident_bytes}

class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_byte * 128)]

def communicator():
    torch.driver()
    nccl, name, made = ctypes.CDLL("libnccl.so.2"), Id(), ctypes.c_void_p()
    assert nccl.ncclGetUniqueId(ctypes.byref(name)) == 0
    assert nccl.ncclCommInitRank(ctypes.byref(made), 1, name, 0) == 0
    return made

def memory(tag, size=2 * MIB):
    with amem.region(tag):
        made = torch.Tensor(size)
    made.fill(len(tag))
    return made
"""


class Job:
    """Runs scripts in the group job: by the hook library of the distribution, or by amemctl run."""

    def __init__(self, node: Node, build: Build) -> None:
        self.node, self.build = node, build

    def __call__(self, script: str, hook: bool = True, dropin: bool = True, env: Mapping[str, str | None] | None = None) -> str:
        """What it wrote to stderr; it must end well."""
        paths = [os.path.join(self.build.directory, "dropin")] if dropin else []
        paths += [os.path.join(self.build.directory, "python"), os.path.join(HERE, "fake_frameworks")]
        variables = self.node.env({"PYTHONPATH": ":".join(paths), **({"AMEM_GROUP": "job"} if hook else {}), **(env or {})})
        if hook:
            variables["LD_PRELOAD"] = os.path.join(self.build.directory, "dropin", HOOK)
        variables["SCRIPT"] = BEGIN + textwrap.dedent(script)
        variables = {name: value for name, value in variables.items() if value is not None}
        done = subprocess.run([sys.executable, "-c", BEGIN + textwrap.dedent(script)], text=True, env=variables,
                              capture_output=True, timeout=patience(120))
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stderr


@pytest.fixture
def job(node: Node, build: Build) -> Job:
    return Job(node, build)


# ---- SGLang ----
SGLANG = """
def started(enable=True):
    from sglang.srt.plugins import load_plugins
    from sglang.srt.utils import torch_memory_saver_adapter
    load_plugins()
    return torch_memory_saver_adapter.TorchMemorySaverAdapter.create(enable)

def engine():
    saver = started()
    from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager
    kept = [memory(tag) for tag in ("kv_cache", "weights", "cuda_graph")]
    return SchedulerWeightUpdaterManager(memory_saver_adapter=saver), kept, communicator()

def asked(*tags):
    return types.SimpleNamespace(tags=list(tags) or None)

ALL = {"kv_cache", "weights", "cuda_graph", "nccl"}
"""


def test_sglang_releases_ncclls_memory_with_the_last_of_the_rest(job: Job) -> None:
    job(SGLANG + """
manager, kept, _ = engine()
before = [each.sum() for each in kept]
assert here() == ALL, here()
for _ in range(2):
    assert manager.release_memory_occupation(asked()) == "released" and here() == set(), here()
    assert manager.resume_memory_occupation(asked()) == "resumed" and here() == ALL
    manager.release_memory_occupation(asked("kv_cache"))
    assert here() == ALL - {"kv_cache"}
    manager.release_memory_occupation(asked("weights"))
    assert here() == {"cuda_graph"}
    manager.resume_memory_occupation(asked("weights"))       # new weights may come by NCCL
    assert here() == ALL - {"kv_cache"}
    manager.resume_memory_occupation(asked("kv_cache"))
    assert here() == ALL
assert [each.sum() for each in kept] == before
""")


def test_sglang_whose_nccl_memory_is_the_drivers_own(job: Job) -> None:
    """A process that is a group by itself."""
    job(SGLANG + """
manager, kept, _ = engine()
assert here() == ALL - {"nccl"}
manager.release_memory_occupation(asked())
assert here() == set()
manager.resume_memory_occupation(asked())
assert here() == ALL - {"nccl"}
""", env={"AMEM_GROUP": None})


def test_sglang_that_is_busy_keeps_ncclls_memory(job: Job) -> None:
    job(SGLANG + """
manager, kept, _ = engine()
manager.idle = False
fails("only when server is idle", manager.release_memory_occupation, asked())
assert here() == ALL
""")


def test_sglang_with_pipeline_stages(job: Job) -> None:
    """A stage sends the request on when it has carried it out. So its tensor parallel ranks are one, and NCCL's memory stays."""
    job(SGLANG + """
from amem import _saver
manager, kept, _ = engine()
manager.tp_cpu_group = "the stage"

def gather(into, mine, group):
    assert group == "the stage"
    into[:] = [mine, mine]

torch.distributed = types.SimpleNamespace(get_world_size=lambda group=None: 2 if group else 4, all_gather_object=gather)
asked, pause, resume = [], _saver._pause, _saver._resume

def alone(call):
    def called(*arguments, ranks=None, **options):
        asked.append(ranks)
        call(*arguments, **options)
    return called

_saver._pause, _saver._resume = alone(pause), alone(resume)
manager.release_memory_occupation(asked_for := types.SimpleNamespace(tags=None))
assert here() == {"nccl"}, here()
manager.resume_memory_occupation(asked_for)
assert here() == ALL
[(name, count)] = set(asked)
assert len(asked) == 6 and count == 2 and len(name) <= 63, asked
""")


def test_sglang_fails_early(job: Job) -> None:
    job(SGLANG + """fails("has no release_memory_occupation(), which amem needs", started)""", env={"FAKE_SGLANG_MOVED": "1"})


@pytest.mark.parametrize("version", ["0.5.14", "0.5.24", "0.6.0", "0.0.0.dev0"])
def test_sglang_of_a_version_that_was_not_tried(job: Job, version: str) -> None:
    job(SGLANG + WARNED + f"""
manager, kept, _ = engine()
manager.release_memory_occupation(asked())
assert here() == set()
manager.resume_memory_occupation(asked())
assert here() == ALL
warned("this is SGLang {version}. amem was tried with 0.5.15 to 0.5.23.")
assert "SchedulerWeightUpdaterManager.release_memory_occupation" in said.getvalue()
""", env={"FAKE_SGLANG_VERSION": version})


def test_sglang_without_a_broker(bare_node: Node, build: Build) -> None:
    for hook in (True, False):  # also in the process that only starts the others
        Job(bare_node, build)(SGLANG + """fails("amemd does not run here: there is no socket", started)""", hook=hook)


def test_sglang_with_another_memory_saver(job: Job) -> None:
    """The original in a process that has the shim; the original without amem is as it was."""
    original = """
saver = types.ModuleType("torch_memory_saver")
saver.torch_memory_saver = object()
sys.modules["torch_memory_saver"] = saver
"""
    said = job(SGLANG + original + """
for _ in range(2):
    assert started() is saver.torch_memory_saver
""", env={"AMEM_ON": "1"})
    assert said.count("SGLang's torch_memory_saver is the original, and amem leaves it as it is") == 1, said
    job(SGLANG + original + """fails("is the original", started)""", env={"AMEM_ON": "require"})
    job(SGLANG + original + """assert started() is saver.torch_memory_saver""", hook=False, dropin=False,
        env={"FAKE_SGLANG_VERSION": "0.9.0"})


def test_sglang_without_its_memory_saver_is_as_it_was(job: Job) -> None:
    job(SGLANG + """assert started(enable=False) is None""", env={"FAKE_SGLANG_VERSION": "0.9.0"})


# ---- slime and Miles ----
SLIME = """
import importlib
import amem.slime
name = os.environ["NAME"]
actors = importlib.import_module(f"{name}.backends.megatron_utils.actor")
groups = importlib.import_module(f"{name}.utils.reloadable_process_group")
"""


@pytest.mark.parametrize("name", ["slime", "miles"])
def test_a_trainer_that_sleeps_keeps_its_process_groups(job: Job, name: str) -> None:
    """Its update of weights runs with NCCL alone."""
    job(SLIME + """
amem.slime.megatron_init(None)
actor, model, _ = actors.MegatronTrainRayActor(), torch.Tensor(4 * MIB), communicator()
model.fill(7)
before, during = model.sum(), []
assert here() == {"heap", "nccl"}
for _ in range(3):
    actor.sleep()
    assert here() == set(), here()
    actor.update_weights(lambda: during.append(here()))
    assert here() == set(), here()
    actor.wake_up()
    assert here() == {"heap", "nccl"} and model.sum() == before
assert during == [{"nccl"}] * 3 and groups.made == []
""", env={"NAME": name, "TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "1"})


@pytest.mark.parametrize("name", ["slime", "miles"])
def test_an_actor_sleeps_while_its_critic_trains(job: Job, name: str) -> None:
    """Both roles get one environment, so they are one group of a node. A role sleeps and wakes alone: its ranks share NCCL's memory with
    each other, and not with the other role."""
    job(SLIME + """
import subprocess
role = os.environ.get("ROLE", "critic")
amem.slime.megatron_init(None)
actor, model, _ = actors.MegatronTrainRayActor(), torch.Tensor(4 * MIB), communicator()
model.fill(7)
before = model.sum()

def turn():
    actor.sleep()
    assert here() == set(), here()
    actor.wake_up()
    assert here() == {"heap", "nccl"} and model.sum() == before

if role == "actor":
    print("here", flush=True)
    while sys.stdin.readline():
        turn()
        print("done", flush=True)
    sys.exit()

other = subprocess.Popen([sys.executable, "-c", os.environ["SCRIPT"]], env={**os.environ, "ROLE": "actor"}, text=True,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert other.stdout.readline() == "here\\n"
for _ in range(2):
    turn()                                       # the other trains meanwhile
    actor.sleep()
    other.stdin.write("\\n")
    other.stdin.flush()
    assert other.stdout.readline() == "done\\n"   # while this one sleeps
    assert here() == set(), here()
    actor.wake_up()
other.stdin.close()
assert other.wait(60) == 0
""", env={"NAME": name, "TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "1", "AMEM_TIMEOUT": "5"})


def test_slime_fails_early(job: Job) -> None:
    """But not for a version that was not tried."""
    whole = {"NAME": "slime", "TMS_INIT_ENABLE": "1"}
    job(SLIME + """fails("has no group of several processes", amem.slime.megatron_init)""", env={**whole, "AMEM_GROUP": None})
    job(SLIME + """fails("AMEM_GROUP", amem.slime.megatron_init)""", env={"NAME": "slime"})
    job(SLIME + """
del actors.destroy_process_groups
fails("slime.backends.megatron_utils.actor has no destroy_process_groups() of", amem.slime.megatron_init)
""", env=whole)
    job(SLIME + """
sys.modules["torch_memory_saver"].torch_memory_saver = object()
fails("the original torch_memory_saver", amem.slime.megatron_init)
""", env=whole)
    job(SLIME + WARNED + """
import importlib.metadata
importlib.metadata.version = lambda name: "0.4.0"
amem.slime.megatron_init()
warned("this is slime 0.4.0. amem was tried with 0.3.")
""", env=whole)
    job(SLIME + WARNED + """
import importlib.metadata

def version(name):
    raise importlib.metadata.PackageNotFoundError(name)

importlib.metadata.version = version  # as in a checkout
amem.slime.megatron_init()
warned("this is slime of an unknown version. amem was tried with 0.3.")
""", env=whole)
    job("""
import amem.slime
fails("this process has not imported slime or Miles, so amem cannot be switched on for it", amem.slime.megatron_init)
""")


def test_slime_with_a_megatron_that_amem_does_not_know(job: Job) -> None:
    """slime asks for itself alone."""
    said = job("import megatron.core.distributed, megatron.core.optimizer" + SLIME + """
amem.slime.megatron_init()
assert amem.enable().frameworks == ("slime",)
fails("has no offload_grad_buffers(), which amem needs", amem.enable, require=True)
""", env={"NAME": "slime", "TMS_INIT_ENABLE": "1", "FAKE_MEGATRON_MOVED": "1"})
    assert "switched on: slime. megatron-core is not switched on and runs without amem: " in said
    assert "has no offload_grad_buffers(), which amem needs" in said


# ---- verl ----
VERL = """
import asyncio
import verl
from verl.workers import engine_workers
from verl.workers.engine import base
from verl.workers.engine.fsdp import transformer_impl as fsdp
from verl.workers.engine.megatron import transformer_impl as megatron
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import MegatronOptimizer

class Module:
    "As FSDP: parameters are parts of others."
    def __init__(self):
        self.part = torch.Tensor(2 * MIB)
        self.part.fill(11)

    def parameters(self):
        return [types.SimpleNamespace(data=types.SimpleNamespace(_local_tensor=self.part))]

    def buffers(self):
        return []

class Adam:
    def __init__(self):
        self.state = {}

    def step(self):
        self.state = self.state or {"part": {"exp_avg": torch.Tensor(2 * MIB), "step": 1}}
        self.state["part"]["exp_avg"].fill(1)
        return self.state["part"]["exp_avg"].sum()

    def state_dict(self):
        return self.state

    def load_state_dict(self, saved):
        "As torch: the moments are new tensors."
        self.state = {"part": {"exp_avg": torch.Tensor(2 * MIB), "step": 1}}
        self.state["part"]["exp_avg"].fill(5)

def step(engine):
    with base.BaseEngineCtx(engine, "train"):
        return engine.optimizer.step()
"""


@pytest.mark.parametrize("engine", ["fsdp.FSDPEngine(Module(), Adam())", "fsdp.FSDPEngine(Module(), Adam(), staged=True)",
                                    "megatron.MegatronEngine([DistributedDataParallel()], MegatronOptimizer())"])
def test_verls_trainer_leaves_by_tags(job: Job, engine: str) -> None:
    job(VERL + f"""
import amem.verl.external_lib
engine, _ = {engine}, communicator()
worker = engine_workers.ActorRolloutRefWorker(engine)
sent = [engine.module.part.sum()] if isinstance(engine, fsdp.FSDPEngine) else []
engine.to("cpu")
assert here() == {{"nccl"}}, here()
before = step(engine)
assert here() == {{"nccl", "verl.params.0"}}, here()  # they stay for the update of weights
for _ in range(3):
    assert asyncio.run(worker.update_weights(1)) == "updated"
    assert worker.sent == sent and here() == set(), here()
    with base.BaseEngineCtx(engine, "eval"):
        assert "verl.params.0" in here(), here()
    assert {{"nccl", "verl.params.0"}} <= here(), here()  # they stay for the training step
    with base.BaseEngineCtx(engine, "train"):
        assert "nccl" in here() and any("params" in each for each in here())
        engine.optimizer.step()
        assert any("optimizer" in each for each in here()), here()
    assert here() == {{"nccl", "verl.params.0"}}, here()
assert fsdp.copied == []
""", env={"AMEM_SCOPE": "regions"})


ENGINES = pytest.mark.parametrize("engine", ["fsdp.FSDPEngine(Module(), Adam())",
                                             "megatron.MegatronEngine([DistributedDataParallel()], MegatronOptimizer())"])
OFFLOADED = """
import amem.verl.external_lib
worker = engine_workers.ActorRolloutRefWorker(engine)
step(engine)
asyncio.run(worker.update_weights(1))
assert here() == set(), here()
"""
PAUSED_FAILS = {"AMEM_SCOPE": "regions", "AMEM_GATE": "20s"}  # what reads memory that is paused fails, instead of waiting


@ENGINES
def test_a_verl_checkpoint_leaves_nothing_behind(job: Job, engine: str) -> None:
    """The engine wakes right after it. The optimizer, too, is saved and loaded while it is offloaded."""
    job(VERL + f"""
engine = {engine}
""" + OFFLOADED + """
first = engine.optimizer.step()
engine.to("cpu")
for _ in range(2):
    engine.save_checkpoint("checkpoints")
    assert here() == set(), here()
    step(engine)
    engine.save_checkpoint("checkpoints")  # as verl does after a step, whose parameters stay for the update of weights
    assert here() == set(), here()
    engine.load_checkpoint("checkpoints")
    assert here() - {"verl.params.0"} == set(), here()
    asyncio.run(worker.update_weights(2))
    assert here() == set(), here()
state = engine.optimizer.state_dict()
assert here() == set() and fsdp.copied == [], (here(), fsdp.copied)
""", env=PAUSED_FAILS)


@pytest.mark.parametrize("optimizer", [True, False])
@ENGINES
def test_a_verl_checkpoint_in_another_thread(job: Job, engine: str, optimizer: bool) -> None:
    """Several at once, too, and while this thread trains."""
    job(VERL + f"""
import threading, time
engine, optimizer = {engine}, {optimizer}
""" + """
import amem.verl.external_lib
engine.to("cpu", optimizer=optimizer)

def save(errors):
    try:
        engine.save_checkpoint("checkpoints")
    except BaseException as error:
        errors.append(error)

original, torch.Tensor.sum = torch.Tensor.sum, lambda self: (time.sleep(0.05), original(self))[1]
for trains in (False, True):
    errors = []
    threads = [threading.Thread(target=save, args=(errors,)) for _ in range(3)]
    for each in threads:
        each.start()
        time.sleep(0.03)  # the next one begins while this one reads
    if trains:
        with base.BaseEngineCtx(engine, "eval"):
            pass
    for each in threads:
        each.join()
    assert errors == [] and here() - {"verl.params.0"} == set(), (errors, here())
engine.to("cpu")
assert here() == set(), here()
""", env=PAUSED_FAILS)


def test_a_verl_checkpoint_on_a_full_disk(job: Job) -> None:
    """Everything leaves again, and verl's error comes out."""
    job(VERL + """
engine = fsdp.FSDPEngine(Module(), Adam())
""" + OFFLOADED + """
engine.checkpoint_manager.full = True
fails("No space left on device", engine.save_checkpoint, "checkpoints")
assert here() == set() and engine.checkpoint_manager.saved, here()
step(engine)
fails("No space left on device", engine.save_checkpoint, "checkpoints")
assert here() == set() and fsdp.copied == [], (here(), fsdp.copied)
""", env=PAUSED_FAILS)


def test_verl_copies_a_model_that_is_offloaded(job: Job) -> None:
    job(VERL + """
engine = megatron.MegatronEngine([DistributedDataParallel()], MegatronOptimizer())
_ = communicator()
""" + OFFLOADED + """
from verl.utils import megatron_utils
saved = megatron_utils.copy_megatron_model_to_cpu(engine.module)
assert here() == set(), here()
with base.BaseEngineCtx(engine, "eval"):
    for each in engine.module[0].parameters():
        each.fill(99)
engine.to("cpu")
megatron_utils.restore_megatron_model_from_cpu(engine.module, saved)
assert "verl.params.0" not in here(), here()
with base.BaseEngineCtx(engine, "eval"):
    assert engine.module[0].params[0].sum() == saved[0].sum()
assert megatron_utils.cleared and set(megatron_utils.cleared) == set(engine.module)
""", env=PAUSED_FAILS)


def test_a_verl_update_that_offloads_nothing_itself(job: Job) -> None:
    """Through a checkpoint engine, verl does not call the engine's to("cpu")."""
    job(VERL + """
engine = fsdp.FSDPEngine(Module(), Adam())
sent = [engine.module.part.sum()]
""" + OFFLOADED + """
for _ in range(2):
    asyncio.run(worker.update_weights(2, mode="nccl"))
    assert worker.sent == sent and here() == set(), here()
    step(engine)
""", env=PAUSED_FAILS)


def test_verls_torchtitan_engine(job: Job) -> None:
    job(VERL + """
from verl.workers.engine.torchtitan.transformer_impl import TorchTitanEngine
engine = TorchTitanEngine([Module(), Module()], Adam())
sent = [each.part.sum() for each in engine.module]
""" + OFFLOADED + """
for _ in range(2):
    assert worker.sent == sent and fsdp.copied == []
    engine.load_checkpoint("checkpoints")
    assert here() == set(), here()
    step(engine)
    asyncio.run(worker.update_weights(1))
    assert here() == set(), here()
""", env=PAUSED_FAILS)


def test_verl_moves_what_amem_cannot(job: Job) -> None:
    """All of the model or of the optimizer that has it, and a warning says how much. An engine that amem does not know: the same."""
    said = job(VERL + """
import amem.verl.external_lib

class Quantized(torch.Tensor):
    pass

engine = fsdp.FSDPEngine(Module(), Adam())
engine.module.part = Quantized(2 * MIB)
engine.optimizer.state = {"part": {"exp_avg": Quantized(MIB), "step": 1}}
for _ in range(2):
    step(engine)
    assert here() == set(), here()
assert fsdp.copied.count(engine.optimizer) == 3 and fsdp.copied.count(engine.module) == 3, "the first load was before amem could know"
asyncio.run(engine_workers.ActorRolloutRefWorker(engine).update_weights())
engine.save_checkpoint("checkpoints")
assert here() == set(), here()

class Other(fsdp.FSDPEngine):
    def to(self, *arguments, **options):
        pass

for _ in range(2):
    with base.BaseEngineCtx(Other(Module(), Adam()), "eval"):
        pass
""", env=PAUSED_FAILS)
    assert said.count("amem cannot move 2097152 bytes of the type Quantized, so verl itself moves the memory of verl.params.0") == 1, said
    assert said.count("amem cannot move 1048576 bytes of the type Quantized, so verl itself moves the memory of verl.optimizer.") == 1, said
    assert said.count("amem does not know verl's engine Other, which moves its memory itself") == 1, said


def test_verls_gradients_leave_with_the_parameters(job: Job) -> None:
    """As a module's to("cpu") does, if verl keeps them between steps."""
    job(VERL + """
import amem.verl.external_lib
engine, grad = fsdp.FSDPEngine(Module(), Adam()), torch.Tensor(4 * MIB)
grad.fill(3)
before = grad.sum()
engine.module.parameters = lambda: [types.SimpleNamespace(data=engine.module.part, grad=grad)]
engine.to("cpu")
assert here() == set() and sum(each.paused_bytes for each in amem.stats().brokered) == 6 * MIB, amem.stats()
with base.BaseEngineCtx(engine, "eval"):
    assert grad.sum() == before
""", env=PAUSED_FAILS)


def test_verl_that_is_imported_later(job: Job) -> None:
    """verl's engines cannot be imported yet when its awaited modules have been, because their package is still imported."""
    job("amem.enable()" + VERL + """
engine = fsdp.FSDPEngine(Module(), Adam())
step(engine)
assert here() == {"verl.params.0"} and fsdp.copied == [], (here(), fsdp.copied)
""", env={"AMEM_SCOPE": "regions"})


def test_a_verl_without_an_engine_that_can_be_imported(job: Job) -> None:
    job("""
import verl.workers.engine
import verl.workers.engine_workers
for engine in ("fsdp", "megatron"):
    sys.modules["verl.workers.engine." + engine + ".transformer_impl"] = None  # as if it were not there
fails("verl has no engine here that amem knows", amem.enable, require=True)
""")
    job("""
import verl.workers.engine
import verl.workers.engine_workers
name = "verl.workers.engine.fsdp.transformer_impl"
del sys.modules[name], verl.workers.engine.BaseEngineCtx
fails(name + " cannot be imported: cannot import name 'BaseEngineCtx'", amem.enable, require=True)
""")


def test_verls_engines_have_tags_of_their_own(job: Job) -> None:
    job(VERL + """
import amem.verl.external_lib
one, other = (fsdp.FSDPEngine(Module(), Adam()) for _ in range(2))
for each in (one, other):
    step(each)
    assert here() == {"verl.params.%d" % (0 if each is one else 2)}, here()  # what stayed of the other has left
with base.BaseEngineCtx(one, "eval"):
    assert here() == {"verl.params.0"}, here()
assert here() == {"verl.params.0"}, here()
other.to = lambda *_, **__: None  # a model that verl does not offload
with base.BaseEngineCtx(other, "eval"):
    assert here() == set(), here()
del other.to
step(one)
asyncio.run(engine_workers.ActorRolloutRefWorker(other).update_weights())
assert here() == set(), here()
""")


def test_after_a_verl_step_that_fails_the_parameters_leave(job: Job) -> None:
    job(VERL + """
import amem.verl.external_lib
engine = fsdp.FSDPEngine(Module(), Adam())
try:
    with base.BaseEngineCtx(engine, "train"):
        raise ValueError
except ValueError:
    assert here() == set(), here()
""", env={"AMEM_SCOPE": "regions"})


def test_a_worker_whose_other_engine_stays_keeps_ncclls_memory(job: Job) -> None:
    job(VERL + """
import amem.verl.external_lib
engine, _ = fsdp.FSDPEngine(Module(), Adam()), communicator()
worker = engine_workers.ActorRolloutRefWorker(engine)
worker.ref = types.SimpleNamespace(engine=types.SimpleNamespace(is_param_offload_enabled=False))
asyncio.run(worker.update_weights())
assert here() == {"nccl"}, here()
""")


def test_verl_fails_early(job: Job) -> None:
    """But not for a version that was not tried."""
    job(VERL + WARNED + """
import amem.verl.external_lib
warned("this is verl 0.10.0. amem was tried with 0.9.")
""", env={"FAKE_VERL_VERSION": "0.10.0"})
    job(VERL + """
del fsdp.load_fsdp_optimizer
fails("verl.workers.engine.fsdp.transformer_impl has no load_fsdp_optimizer(), which amem needs", amem.enable, require=True)
said = amem.enable().text
assert "verl is not switched on and runs without amem: verl.workers.engine.fsdp.transformer_impl has no load_fsdp_optimizer()" in said
fsdp.offload_fsdp_model_to_cpu(3)
assert fsdp.copied == [3]
""")
    job(VERL + """
import amem.verl.external_lib
engine = fsdp.FSDPEngine(Module(), Adam())
engine.to("cpu")
assert fsdp.copied[0] is engine.module, "verl copies, as without amem"
fails("libamem_shim.so is not loaded", amem.enable, require=True)
""", hook=False)


@pytest.mark.parametrize("gone, said", [
    ("fsdp.FSDPEngine.save_checkpoint", "verl.workers.engine.fsdp.transformer_impl.FSDPEngine has no save_checkpoint(), which amem needs."),
    ("fsdp.FSDPEngine", "verl.workers.engine.fsdp.transformer_impl has no FSDPEngine, which amem needs."),
    ("deepspeed.runtime.engine.DeepSpeedEngine.load_checkpoint", "deepspeed.runtime.engine.DeepSpeedEngine has no load_checkpoint(), which"),
])
def test_a_reader_that_is_gone(job: Job, gone: str, said: str) -> None:
    """The framework runs without amem, and the sentence has the version."""
    version = "This is DeepSpeed 0.19.6" if "deepspeed" in gone else "This is verl 0.9.1"
    job((DEEPSPEED if "deepspeed" in gone else VERL) + f"""
del {gone}
fails({said!r}, amem.enable, require=True)
fails({version!r}, amem.enable, require=True)
assert "is not switched on and runs without amem" in amem.enable().text
""", env=PAUSED_FAILS)


def test_without_verl_its_module_changes_nothing(job: Job) -> None:
    job("""
import amem.verl
assert "verl" not in sys.modules and "amem.verl.external_lib" not in sys.modules
""", hook=False)


# ---- DeepSpeed ----
DEEPSPEED = """
from deepspeed.runtime.zero.offload_config import OffloadDeviceEnum, OffloadStateTypeEnum as State
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
import deepspeed.runtime.engine

OPENRLHF = [State.optim_states, State.contiguous_grad_buffer, State.hp_params, State.lp_grads]
"""


@pytest.mark.parametrize("stage, ours, theirs", [("DeepSpeedZeroOptimizer", {"hp_params", "optim_states"}, ["contiguous_grad_buffer", "lp_grads"]),
                                                 ("DeepSpeedZeroOptimizer_Stage3", {"hp_params", "lp_grads", "optim_states"},
                                                  ["contiguous_grad_buffer"])])
def test_deepspeeds_states_leave_by_tags(job: Job, stage: str, ours: set[str], theirs: list[str]) -> None:
    job(DEEPSPEED + f"""
amem.enable()
zero = {stage}()
ours = {{"deepspeed." + each + ".0" for each in {ours}}}
for _ in range(3):
    zero.step()
    before = zero.sums()
    zero.offload_states(include=OPENRLHF, device=OffloadDeviceEnum.cpu, pin_memory=True, non_blocking=True)
    assert here() == set() and zero.offloaded_states == set(OPENRLHF), (here(), zero.offloaded_states)
    assert zero.copied.pop() == {theirs}
    zero.offload_states(include=OPENRLHF)  # a second time: there is nothing to do
    assert zero.copied.pop() == sorted(each.name for each in OPENRLHF)
    zero.reload_states(non_blocking=True)
    assert here() == ours and zero.offloaded_states == set(), (here(), zero.offloaded_states)
    assert zero.copied.pop() == {theirs} and zero.sums() == before
zero.offload_states()
assert "deepspeed.lp_params.0" in {{each.tag for each in amem.stats().brokered}} and here() == set(), here()
zero.reload_states()
assert zero.sums() == before
""", env={"AMEM_SCOPE": "regions"})


@pytest.mark.parametrize("stage", ["DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3"])
def test_deepspeed_saves_while_its_states_are_offloaded(job: Job, stage: str, tmp_path: pathlib.Path) -> None:
    """As OpenRLHF does after each step. Whatever reads or writes the states brings them, and they leave again."""
    job(DEEPSPEED + f"""
from deepspeed.runtime.engine import DeepSpeedEngine
amem.enable(require=True)
zero, folder = {stage}(), {str(tmp_path)!r}
""" + """
engine = DeepSpeedEngine(zero)
zero.step()
for include in (OPENRLHF, None):
    before = zero.sums()
    zero.offload_states(include)
    left = here()
    assert engine.save_checkpoint(folder) and here() == left, here()
    fails("No space left on device", engine.save_checkpoint, "/dev", "full")
    assert here() == left and zero.offloaded_states >= set(OPENRLHF), here()
    state = zero.state_dict()["single_partition_of_fp32_groups"][0]
    assert state.device.type == "cpu" and state.sum() == before[0] and here() == left, here()
    zero.reload_states()
    assert zero.sums() == before
    zero.single_partition_of_fp32_groups[0].fill(50)
    zero.optimizer.state["flat"]["exp_avg"].fill(50)
    zero.offload_states(include)
    engine.load_checkpoint(folder)
    assert here() == left, here()
    assert engine.save_16bit_model(folder) and len(engine.module_state_dict()) == 1 and here() == left
    zero.reload_states()
    assert zero.sums() == before
zero.offload_states(OPENRLHF)
zero.step()
assert zero.sums() == before and not zero.offloaded_states - {State.contiguous_grad_buffer, State.lp_grads}
""", env=PAUSED_FAILS)


def test_deepspeed_saves_in_another_thread(job: Job, tmp_path: pathlib.Path) -> None:
    """Several at once, too, and while this thread reloads the states."""
    job(DEEPSPEED + f"folder = {str(tmp_path)!r}" + """
import pickle, threading
amem.enable(require=True)
zero = DeepSpeedZeroOptimizer()
engine = deepspeed.runtime.engine.DeepSpeedEngine(zero)
zero.step()
before = zero.sums()
for reloads in (False, True):
    zero.offload_states(OPENRLHF)
    threads = [threading.Thread(target=engine.save_checkpoint, args=(folder, str(each))) for each in range(3)]
    for each in threads:
        each.start()
    if reloads:
        zero.reload_states()
    for each in threads:
        each.join()
    assert here() == ({"deepspeed.hp_params.0", "deepspeed.optim_states.0"} if reloads else set()), here()
    for each in range(3):
        saved = pickle.loads(open(folder + "/" + str(each), "rb").read())
        assert saved[1]["single_partition_of_fp32_groups"][0].sum() == before[0]
assert zero.sums() == before
""", env=PAUSED_FAILS)


def test_states_that_cannot_leave_again_stay(job: Job, tmp_path: pathlib.Path) -> None:
    """The checkpoint counts more. The next offload tries again."""
    said = job(DEEPSPEED + f"folder = {str(tmp_path)!r}" + """
import amem.frameworks.phases as phases
amem.enable(require=True)
zero = DeepSpeedZeroOptimizer()
engine = deepspeed.runtime.engine.DeepSpeedEngine(zero)
zero.step()
before = zero.sums()
zero.offload_states([State.hp_params])

def refuse(*arguments):
    raise amem.ResourceExhaustedError("the pool is full")

phases.take, take = refuse, phases.take
assert engine.save_checkpoint(folder)
assert here() == {"deepspeed.hp_params.0"}, here()
phases.take = take
zero.offload_states([State.hp_params])
phases.take = refuse
fails("No space left on device", engine.save_checkpoint, "/dev", "full")  # its error counts
assert here() == {"deepspeed.hp_params.0"}, here()
phases.take = take
zero.offload_states([State.hp_params])
assert here() == set(), here()
zero.reload_states()
assert zero.sums() == before
""", env=PAUSED_FAILS)
    assert "deepspeed.hp_params.0 came back to be read, and cannot leave again: the pool is full" in said, said


def test_a_module_that_is_switched_on_twice(job: Job) -> None:
    job(DEEPSPEED + VERL + """
from amem.frameworks._known import known
from megatron.core.optimizer import MegatronOptimizer
for name in ("deepspeed", "megatron", "verl"):
    for _ in range(2):
        known()[name].install()
for each in (MegatronOptimizer.offload_to_cpu, DistributedDataParallel.offload_grad_buffers,
             deepspeed.runtime.engine.DeepSpeedEngine.save_checkpoint, DeepSpeedZeroOptimizer.state_dict, fsdp.FSDPEngine.save_checkpoint,
             fsdp.offload_fsdp_optimizer, base.BaseEngineCtx.__enter__):
    assert each._amem and not hasattr(each.__wrapped__, "_amem"), each
""", env=PAUSED_FAILS)
    job(SLIME + """
for _ in range(2):
    amem.slime.megatron_init()
    assert actors.destroy_process_groups is groups.destroy_process_groups is amem.slime._paused
""", env={"NAME": "slime", "TMS_INIT_ENABLE": "1"})
    job("""
import amem.sglang
from sglang.srt.plugins.hook_registry import HookRegistry
called = []
HookRegistry.register = lambda *arguments: called.append(arguments)
for _ in range(2):
    amem.sglang.register()
assert len(called) == len(set(called)) == 3, called
""")


@pytest.mark.parametrize("library", ["pickle", "deepspeed.runtime.zero.offload_config"])
def test_a_framework_that_is_half_loaded(job: Job, library: str) -> None:
    """A library that it imports calls amem.enable(). amem waits for the rest."""
    said = job(f"""
import importlib.abc
sys.modules.pop("pickle", None)

class Caller(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == {library!r}:
            sys.meta_path.remove(self)
            assert amem.enable(require=True).frameworks == () and "deepspeed.runtime.engine" in sys.modules

sys.meta_path.insert(0, Caller())
import deepspeed.runtime.engine
""" + DEEPSPEED + """
assert amem.enable().frameworks == ("deepspeed",)
zero = DeepSpeedZeroOptimizer()
zero.step()
zero.offload_states(OPENRLHF)
assert here() == set() and zero.copied == [["contiguous_grad_buffer", "lp_grads"]], (here(), zero.copied)
""", env=PAUSED_FAILS)
    assert "on for DeepSpeed, too" in said, said


def test_a_framework_that_lacks_a_module(job: Job) -> None:
    said = job(DEEPSPEED + """
sys.modules["deepspeed.runtime.zero.stage3"] = None  # as if it were not there
assert amem.enable().frameworks == ()
zero = DeepSpeedZeroOptimizer()
zero.offload_states()
assert len(zero.copied[0]) == 5 and here() == set()
""", env=PAUSED_FAILS)
    assert ("DeepSpeed is not switched on and runs without amem: ModuleNotFoundError: import of deepspeed.runtime.zero.stage3 halted; "
            "None in sys.modules. This is DeepSpeed 0.19.6") in said, said


def test_deepspeed_moves_what_amem_cannot(job: Job) -> None:
    said = job(DEEPSPEED + """
amem.enable(require=True)

class Quantized(torch.Tensor):
    pass

zero = DeepSpeedZeroOptimizer()
zero.step()
zero.optimizer.state["flat"]["exp_avg"] = Quantized(2 * MIB)
zero.offload_states(OPENRLHF)
assert zero.copied == [["contiguous_grad_buffer", "lp_grads", "optim_states"]], zero.copied
""", env=PAUSED_FAILS)
    assert "cannot move 2097152 bytes of the type Quantized, so DeepSpeed itself moves the memory of deepspeed.optim_states.0" in said, said


def test_deepspeeds_optimizers_have_tags_of_their_own(job: Job) -> None:
    """An optimizer without state yet, one whose states DeepSpeed keeps on the CPU, and another place than the CPU's memory are DeepSpeed's."""
    job(DEEPSPEED + """
amem.enable()
one, other = DeepSpeedZeroOptimizer(), DeepSpeedZeroOptimizer()
for each in (one, other):
    each.offload_states([State.hp_params, State.optim_states])
    assert each.copied == [["optim_states"]], each.copied
other.reload_states()
assert here() == {"deepspeed.hp_params.1"}, here()
one.reload_states()
one.step()
one.offload_states([State.optim_states], OffloadDeviceEnum.nvme)
assert one.copied[-1] == ["optim_states"] and here() == {"deepspeed.hp_params.0", "deepspeed.hp_params.1"}, (one.copied, here())
""", env={"AMEM_SCOPE": "regions"})


def test_deepspeed_fails_early(job: Job) -> None:
    job(DEEPSPEED + """
del DeepSpeedZeroOptimizer_Stage3.reload_states, DeepSpeedZeroOptimizer.reload_states
fails("DeepSpeedZeroOptimizer has no reload_states(), which amem needs", amem.enable, require=True)
assert "DeepSpeed is not switched on and runs without amem" in amem.enable().text
zero = DeepSpeedZeroOptimizer()
zero.offload_states()
assert len(zero.copied[0]) == 5 and here() == set()
""")
    job(DEEPSPEED + """
theirs = DeepSpeedZeroOptimizer.offload_states, DeepSpeedZeroOptimizer.reload_states
del DeepSpeedZeroOptimizer.offload_states, DeepSpeedZeroOptimizer.reload_states  # as in an older version
amem.enable(require=True)
DeepSpeedZeroOptimizer.offload_states, DeepSpeedZeroOptimizer.reload_states = theirs  # which stage 3 of the stand-in calls
DeepSpeedZeroOptimizer_Stage3().offload_states()
assert not here() and "deepspeed.hp_params.0" in {each.tag for each in amem.stats().brokered}
""", env={"AMEM_SCOPE": "regions"})


def test_states_return_if_deepspeed_fails(job: Job) -> None:
    job(DEEPSPEED + """
amem.enable()
zero = DeepSpeedZeroOptimizer()
zero.step()
before, zero.copied = zero.sums(), None
fails("'NoneType' object has no attribute 'append'", zero.offload_states)
assert here() == {"deepspeed.hp_params.0", "deepspeed.lp_params.0", "deepspeed.optim_states.0"}, here()
assert zero.sums() == before and zero.offloaded_states == set()
""", env={"AMEM_SCOPE": "regions"})
