"""A trainer's memory paused in phases, on the simulated driver. Megatron is the one of fake_frameworks; shim, broker and module are
real."""
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence

import pytest
from scripts import FAILS, WARNED
from sim_node import Build, Node, patience

HERE = os.path.dirname(os.path.abspath(__file__))
BEGIN = FAILS + """
import argparse, os, sys
import torch
import amem, amem.megatron
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import ChainedOptimizer, MegatronOptimizer

MIB = 1 << 20

def here():
    "MiB on the GPU by tag, of this process."
    found = {}
    for each in amem.stats().brokered:
        found[each.tag] = found.get(each.tag, 0) + each.resident_bytes // MIB
    return {tag: size for tag, size in found.items() if size and tag.startswith("megatron")}

def enter(context):
    with context:
        pass

ALL = {"megatron.grads": 4, "megatron.optimizer": 12}
model, optimizer = DistributedDataParallel(), MegatronOptimizer()
"""


class Trainer:
    """Runs scripts in the group train."""

    def __init__(self, node: Node, build: Build) -> None:
        self.node, self.build = node, build

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        # What reads memory that is paused fails, instead of waiting.
        return self.node.env({"AMEM_GATE": "20s", "PYTHONPATH": ":".join([os.path.join(self.build.directory, "python"),
                                                      os.path.join(HERE, "fake_frameworks")]), **(more or {})})

    def start(self, script: str, scope: str = "regions", group: str | None = "train", env: Mapping[str, str] | None = None,
              stdin: int | None = None, stdout: int | None = None) -> subprocess.Popen[str]:
        launcher = [*self.node.launcher(group)[:-1], "--scope", scope, "--"] if group else []
        return subprocess.Popen([*launcher, sys.executable, "-c", BEGIN + textwrap.dedent(script)], text=True,
                                env=self.environment(env), stdin=stdin, stdout=stdout, stderr=subprocess.PIPE)

    def __call__(self, script: str, scope: str = "regions", group: str | None = "train", env: Mapping[str, str] | None = None) -> None:
        with self.start(script, scope, group, env) as process:
            error = process.communicate(timeout=patience(120))[1]
            assert process.returncode == 0, error[-3000:]


@pytest.fixture
def trainer(node: Node, build: Build) -> Trainer:
    return Trainer(node, build)


@pytest.mark.parametrize("scope", ["regions", "heap"])
def test_losses_are_those_of_a_trainer_that_keeps_its_memory(trainer: Trainer, scope: str) -> None:
    """The first phase moves what the optimizer has then, the second what the first step has made."""
    trainer("""
    other, alone = MegatronOptimizer(), []
    for _ in range(4):
        alone.append(other.step())
    steps = []
    for number in range(4):
        with amem.megatron.offloaded(model, optimizer):
            assert here() == {}, here()
        assert here()["megatron.grads"] == 4
        steps.append(optimizer.step())
        assert here()["megatron.optimizer"] == (12 if number else 4), here()
        assert not any(model.buffers[0].grad_data.storage.read()), "gradients come back as zeros"
        model.buffers[0].grad_data.fill(number)
    assert steps == alone
    assert model.params[0].storage is model.buffers[0].param_data.storage
    """, scope=scope)


def test_parameters_leave_too_when_asked(trainer: Trainer) -> None:
    trainer("""
    optimizer.step()
    before = model.params[0].sum()
    with amem.megatron.offloaded(model, optimizer, params=True, nccl=True, late=False):
        assert here() == {}
    assert here() == {**ALL, "megatron.params": 2} and model.params[0].sum() == before
    """)


def test_parameters_of_the_model_stay_with_an_optimizer_that_holds_them(trainer: Trainer) -> None:
    trainer("""
    optimizer = MegatronOptimizer(model)
    before = model.params[0].sum()
    with amem.megatron.offloaded(model, optimizer):
        assert here() == {} and model.params[0].sum() == before
    """)


def test_nothing_moves_twice(trainer: Trainer) -> None:
    trainer("""
    optimizer.step()
    assert amem.megatron.prepare(model, optimizer, params=True) == 18 * MIB
    assert amem.megatron.prepare(model, optimizer, params=True) == 0
    assert here() == {**ALL, "megatron.params": 2}
    """)


@pytest.mark.parametrize("failures", [1, 2])
def test_moving_where_there_is_hardly_space(trainer: Trainer, failures: int) -> None:
    """A second try, when what torch keeps has gone; after that the tensor is where it was, with its bytes."""
    trainer(f"""
    before, resize, failed = optimizer.main.sum(), torch.Storage.resize_, []

    def refused(self, size):
        if size and len(failed) < {failures}:
            failed.append(size)
            raise torch.OutOfMemoryError("no space")
        resize(self, size)

    torch.Storage.resize_ = refused
    if {failures} == 1:
        assert amem.move([optimizer.main], "optimizer") == 4 * MIB
    else:
        fails('has no space for a tensor of 4194304 bytes in the region "optimizer"', amem.move, [optimizer.main], "optimizer")
    assert optimizer.main.sum() == before and len(failed) == {failures}
    assert amem.move([optimizer.main], "optimizer") == (0 if {failures} == 1 else 4 * MIB)
    assert optimizer.main.sum() == before
    """)


def test_what_touches_the_state_waits_for_it(trainer: Trainer) -> None:
    """Also within the phase, as a checkpoint does: the state comes back for it, and leaves again."""
    trainer("""
    optimizer.step()
    before = optimizer.main.sum()
    with amem.megatron.offloaded(model, optimizer):
        saved = optimizer.state_dict()["main"]
        assert saved.device.type == "cpu" and saved.sum() == before
        assert here() == {}, here()
        optimizer.load_state_dict({})
        assert here() == {}, here()
        optimizer.main.fill, kept = None, optimizer.main.fill
        fails("'NoneType' object is not callable", optimizer.load_state_dict, {})  # as when a disk is full
        assert here() == {}, here()
        optimizer.main.fill = kept
    assert optimizer.main.sum() != before and here() == ALL
    assert optimizer.state_dict()["main"].device.type == "cuda"
    """)


def test_a_read_in_another_thread(trainer: Trainer) -> None:
    """The phase begins after it."""
    trainer("""
    import threading
    optimizer.step()
    before, reading, go_on, found = optimizer.main.sum(), threading.Event(), threading.Event(), []
    original = MegatronOptimizer.state_dict

    def slow(self):
        reading.set()
        assert go_on.wait(60)
        found.append(here())
        return original(self)

    MegatronOptimizer.state_dict = slow
    with amem.megatron.offloaded(model, optimizer):
        reader = threading.Thread(target=lambda: found.append(optimizer.state_dict()["main"].sum()))
        reader.start()
        assert reading.wait(60)
        threading.Timer(0.3, go_on.set).start()
    with amem.megatron.offloaded(model, optimizer):
        assert here() == {}, here()
        reader.join()
    assert found[1] == before and found[0]["megatron.optimizer"] == 12, found
    """)


def test_a_scheduler_that_is_made_later(trainer: Trainer) -> None:
    """torch's schedulers wrap the optimizer's step, which must be a bound method, and mark it."""
    trainer("""
    import functools
    with amem.megatron.offloaded(model, optimizer):
        pass
    function = optimizer.step.__func__

    @functools.wraps(function)
    def counted(*arguments):
        counted.calls += 1
        return function.__get__(optimizer, type(optimizer))(*arguments)

    counted.calls, counted._wrapped_by_lr_sched = 0, True
    optimizer.step = counted
    with amem.megatron.offloaded(model, optimizer):
        pass
    assert optimizer.step()[0] and counted.calls == 1 and optimizer.step._wrapped_by_lr_sched
    """)


def test_a_state_of_a_type_that_cannot_be_moved(trainer: Trainer) -> None:
    """Megatron's own code moves it, and a warning says so."""
    trainer("""
    import io, logging
    said = io.StringIO()
    logging.getLogger("amem").addHandler(logging.StreamHandler(said))
    amem.enable(require=True)

    class Quantized(torch.Tensor):
        pass

    optimizer.step()
    optimizer.optimizer.state["main"]["exp_avg"] = Quantized(MIB)
    for number in range(2):
        optimizer.offload_to_cpu()
        assert optimizer.copied == 2 * number + 1 and here() == {}, here()
        optimizer.restore_from_cpu()
        assert optimizer.copied == 2 * number + 2
    assert said.getvalue().count("cannot move 1048576 bytes of the type Quantized, so Megatron itself moves") == 1, said.getvalue()
    """)


def test_without_waiting(trainer: Trainer) -> None:
    trainer("""
    with amem.megatron.offloaded(model, optimizer, wait=False) as paused:
        paused.result(60)
        assert here() == {}
    """)


def test_an_error_in_the_phase_comes_out_and_the_memory_comes_back(trainer: Trainer) -> None:
    trainer("""
    optimizer.step()
    def rollout():
        with amem.megatron.offloaded(model, optimizer, late=False):
            raise ValueError("no rollout")
    fails("no rollout", rollout)
    assert here() == ALL
    """)


def test_megatrons_own_functions_by_an_argument(trainer: Trainer) -> None:
    trainer("""
    parser = amem.megatron.add_arguments(argparse.ArgumentParser())
    assert parser.parse_args([]).rl_amem_offload_during_rollout is False
    model.offload_grad_buffers()
    assert model.copied == 1
    chosen = parser.parse_args(["--rl-amem-offload-during-rollout"])
    assert chosen.rl_offload_optimizer_during_inference and chosen.rl_amem_offload_during_rollout
    chained = ChainedOptimizer([optimizer, MegatronOptimizer()])
    for step in range(3):
        model.offload_grad_buffers()
        chained.offload_to_cpu()
        assert here() == {}, here()
        model.restore_grad_buffers()
        chained.restore_from_cpu()
        chained.step()
    assert here() == {"megatron.grads": 4, "megatron.optimizer": 24} and model.copied == 1 and optimizer.copied == 0
    """)


def said(rank: subprocess.Popen[str]) -> str:
    """Its next line."""
    assert rank.stdout is not None
    return rank.stdout.readline()


def begin_together(ranks: Sequence[subprocess.Popen[str]]) -> None:
    """All of them have memory, so all of them are asked."""
    assert [said(each) for each in ranks] == ["here\n"] * len(ranks), [each.communicate("")[1] for each in ranks]
    for each in ranks:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()


TOGETHER = """
    amem.megatron.prepare(model, optimizer)
    print("here", flush=True)
    sys.stdin.readline()
"""


def test_two_ranks_leave_together(trainer: Trainer) -> None:
    script = TOGETHER + """
    for _ in range(3):
        with amem.megatron.offloaded(model, optimizer):
            assert here() == {}
        optimizer.step()
    """
    ranks = [trainer.start(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
    begin_together(ranks)
    errors = [each.communicate(timeout=patience(120))[1] for each in ranks]
    assert [each.returncode for each in ranks] == [0, 0], errors


def test_a_rank_enters_alone(trainer: Trainer) -> None:
    """Ranks that share none of this memory need not enter together, as without amem."""
    script = TOGETHER + """
    optimizer.step()
    if os.environ["RANK"] == "0":
        with amem.megatron.offloaded(model, optimizer, timeout=5):
            assert here() == {}
        assert optimizer.step()[0] and here() == ALL
        print("goes on", flush=True)
    before = here()
    sys.stdin.readline()
    assert here() == before and before["megatron.grads"] == 4, before
    """
    ranks = [trainer.start(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"RANK": str(each)}) for each in range(2)]
    begin_together(ranks)
    assert said(ranks[0]) == "goes on\n", ranks[0].communicate("\n")[1]
    assert [each.communicate("\n", timeout=patience(60)) and each.returncode for each in ranks] == [0, 0]


def test_a_rank_that_dies_in_the_phase(trainer: Trainer) -> None:
    """The other goes on with its own memory."""
    script = """
    optimizer.step()
    before = optimizer.main.sum()
    amem.megatron.prepare(model, optimizer)
    print("here", flush=True)
    sys.stdin.readline()
    with amem.megatron.offloaded(model, optimizer):
        print("paused", flush=True)
        sys.stdin.readline()
    assert optimizer.state_dict()["main"].sum() == before and here() == ALL
    print("back", flush=True)
    """
    ranks = [trainer.start(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        begin_together(ranks)
        assert [said(each) for each in ranks] == ["paused\n"] * 2
        ranks[1].kill()
        ranks[1].wait()
        assert ranks[0].communicate("\n", timeout=patience(60))[0] == "back\n" and ranks[0].returncode == 0
    finally:
        for each in ranks:
            each.kill()
            each.communicate()


def test_beside_an_operator(trainer: Trainer) -> None:
    """Two controllers. What the operator has paused comes back by the operator alone; a phase that begins or ends meanwhile
    waits for that, as all GPU work does."""
    trainer("""
    import threading
    optimizer.step()
    before = optimizer.main.sum()
    amem.megatron.prepare(model, optimizer)
    with amem.Broker() as broker:
        def resume_later():
            assert {group.name: group.state.name for group in broker.groups()} == {"train": "PAUSED"}
            broker.resume("train")

        phase = amem.megatron.offloaded(model, optimizer)
        for step in (phase.__enter__, lambda: phase.__exit__(None, None, None)):
            broker.pause("train")
            later = threading.Timer(0.3, resume_later)
            later.start()
            step()
            later.join()
        assert here()["megatron.grads"] == 4 and optimizer.state_dict()["main"].sum() == before
    """)


def test_a_pool_that_is_too_small_leaves_everything_on_the_gpu(bare_node: Node, build: Build) -> None:
    bare_node.start_broker("--pool-size", "2MiB")
    Trainer(bare_node, build)("""
    optimizer.step()
    for _ in range(2):
        fails("a pool.size of", enter, amem.megatron.offloaded(model, optimizer))
        assert here() == ALL
        assert optimizer.step()[0]
    """)


# ---- early errors ----
def test_a_version_that_was_not_tried(trainer: Trainer) -> None:
    for version in ("0.18.0", "0.21.0", "1.19.0", "dev"):
        trainer(WARNED + f"""
with amem.megatron.offloaded(model, optimizer):
    pass
warned("this is megatron-core {version}. amem was tried with 0.19 to 0.20.")
assert "MegatronOptimizer.offload_to_cpu" in said.getvalue()
""", env={"FAKE_MEGATRON_VERSION": version})


def test_a_version_that_has_moved_the_hook(trainer: Trainer) -> None:
    trainer("""
    fails("megatron.core.distributed.DistributedDataParallel has no offload_grad_buffers(), which amem needs",
          enter, amem.megatron.offloaded(model, optimizer))
    DistributedDataParallel.offload_grad_buffers = lambda self, bucket: None
    fails("has the parameters (self, bucket), and amem needs", amem.enable, require=True)
    """, env={"FAKE_MEGATRON_MOVED": "1"})


def test_without_a_shim(trainer: Trainer) -> None:
    trainer("""
    fails("offload by amem: libamem_shim.so is not loaded in process", enter, amem.megatron.offloaded(model, optimizer))
    """, group=None)


def test_a_scope_that_leaves_it_on_the_gpu(trainer: Trainer) -> None:
    trainer("""fails("the scope of this process is 'nccl'", enter, amem.megatron.offloaded(model, optimizer))""", scope="nccl")


def test_other_models(trainer: Trainer) -> None:
    trainer("""
    fails("This model is a int", enter, amem.megatron.offloaded(3))
    fails("has registered its buffers with NCCL (--use-nccl-ub)", enter, amem.megatron.offloaded(DistributedDataParallel(registered=True)))
    """)
