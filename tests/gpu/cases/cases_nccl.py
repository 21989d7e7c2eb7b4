"""What amem does about NCCL itself: its own suspend and resume, and what it need not keep of its buffers."""

import itertools
import re
import time

from cases import times
from harness import Failure, MIB, Skip
from registry import case

REFUSED = "amem refuses ncclCommSuspend"

# NCCL_ALGO; a tree is for all-reduces alone.
ALGORITHMS = {"Ring": "ring", "Tree": "ring;allreduce:tree"}
# Between hosts alone, with one GPU each. What goes by the network NCCL receives in memory of the host.
PAT = "ring;allgather:pat;reducescatter:pat"
PROTOCOLS = ("LL", "LL128", "Simple")
KEPT_ALL = "saves all of NCCL's buffers"
LEAST_MIB = 20  # per pause and rank: two connections' LL128 and Simple
# PyTorch's programs, and what each must drop. Windows and symmetric kernels take no receive buffers: there it is shown that
# nothing of theirs is taken for one.
KINDS = {"registered": LEAST_MIB, "captured": LEAST_MIB, "window": 0, "symmetric_kernels": 0}
SAID = re.compile(r"AMEM_NCCL_SCRATCH: (\d+) MiB of NCCL's receive buffers are not copied")


def dropped(finished):
    """MiB that each pause of each rank has dropped, by the shims' own word."""
    return [int(mib) for mib in SAID.findall(finished.err.read_text(errors="replace"))]


class Proof:
    """Runs whose dropped bytes come back spoilt, and what came of them."""

    environment = {"AMEM_NCCL_SCRATCH": "prove", "AMEM_LOG": "info"}

    def __init__(self):
        self.pauses = self.verified = 0
        self.least = None

    def add(self, finished, what, at_least=LEAST_MIB):
        """MiB that its last pauses dropped. At least so many in each, or nothing is proven."""
        mib = dropped(finished)
        if not mib or min(mib) < at_least:
            raise Failure(f"{what}: {min(mib, default=0)} MiB dropped in a pause, {at_least} are there at least: nothing is proven")
        self.pauses += len(mib)
        if at_least > 0:
            self.least = min(mib if self.least is None else [*mib, self.least])
        self.verified += finished.report().get("verified", 0)
        return max(mib)


@case(330)
def nccl_scratch(bench):
    """All collectives, algorithms and protocols, with what is dropped spoilt after each pause."""
    bench.needs_peers()
    proof = Proof()
    arguments = ("--cycles", bench.cycles, "--pause", "inside", "--max-bytes", 16 * MIB, "--in-place")
    for mode, algorithm, protocol in itertools.product(("process", "threads"), ALGORITHMS, PROTOCOLS):
        env = {**proof.environment, "NCCL_ALGO": ALGORITHMS[algorithm], "NCCL_PROTO": protocol}
        proof.add(bench.nccl_cycle("--mode", mode, *arguments, env=env).wait(120), f"{mode}, {algorithm}, {protocol}")
    pat = proof.add(bench.nccl_cycle("--hosts", bench.ranks, *arguments, env={**proof.environment, "NCCL_ALGO": PAT}).wait(120), "PAT", 0)
    return (f"{proof.pauses} pauses of ranks, {proof.least} MiB or more spoilt in each (PAT, one GPU a host: {pat} MiB); "
            f"{proof.verified} collectives verified")


@case(300)
def nccl_scratch_kinds(bench):
    """The same with registered buffers, captured graphs, windows and symmetric kernels."""
    bench.needs_peers()
    proof, kinds = Proof(), []
    for kind, at_least in KINDS.items():
        script = bench.torch_script("nccl_kinds.py", kind, "--cycles", bench.cycles, env=proof.environment)
        try:
            proof.add(script.wait(120), kind, at_least)
        except Skip as why:  # NCCL has no such kind
            kinds.append(f"{kind} skipped: {why}")
            continue
        kinds.append(kind)
    return f"{proof.pauses} pauses of ranks, {proof.least} MiB or more spoilt in each that has any; {', '.join(kinds)}"


def pause_to_its_end(broker, program, rest_s):
    """An operator pauses again and again until the program has ended, so long apart. How often."""
    pauses = 0
    while program.running():
        try:
            broker.amemctl("pause", "train")
            broker.amemctl("resume", "train")
            pauses += 1
            time.sleep(rest_s)  # or the program comes no further than to its next call of the driver
        except Failure:
            time.sleep(1)
            if program.running():  # else it has come to its end meanwhile, and the group with it
                raise
    return pauses


@case(300)
def nccl_scratch_threads(bench):
    """One process with a rank on each GPU, paused while NCCL makes its buffers: scratch is dropped in every pause."""
    bench.needs_peers()
    broker = bench.broker()
    shown = []
    for mode in ("threads", "single"):
        program = bench.nccl_cycle("--mode", mode, "--comms", 4, "--cycles", bench.few, "--pause", "recreate", "--max-bytes",
                                   MIB, "--no-memory-checks", env=Proof.environment)
        broker.wait_group("train", 1, programs=[program])
        pauses = pause_to_its_end(broker, program, 0.05)
        finished = program.wait(60)
        report = finished.report()
        for line in finished.err.read_text(errors="replace").splitlines():
            if KEPT_ALL in line:
                raise Failure(f"{mode}: {line}")
        if max(dropped(finished), default=0) < LEAST_MIB:
            raise Failure(f"{mode}: nothing was dropped in {pauses} pauses")
        shown.append(f"{mode}: {pauses} pauses, {max(dropped(finished))} MiB spoilt at most, {report['verified']} collectives verified")
    return "; ".join(shown)


@case(200)
def nccl_suspend(bench):
    """ncclCommSuspend: refused with slabs; without them it works, also beside an operator's pauses."""
    # NCCL takes 4 s for one there and back.
    arguments = ("--cycles", bench.few, "--pause", "suspend", "--max-bytes", MIB)
    alone = bench.nccl_cycle(*arguments, shim=False).wait(60).report()  # skips itself where NCCL has none
    refused = bench.nccl_cycle(*arguments).wait_any(60)
    if refused.code == 0 or REFUSED not in refused.err.read_text(errors="replace"):
        raise Failure(f"with slabs it ended with {refused.code} and did not say that it is refused")
    broker = bench.broker()
    program = bench.nccl_cycle("--paused-ms", 600, *arguments, env={"AMEM_SHIM_WITHOUT": "slabs"})
    broker.wait_group("train", bench.ranks, programs=[program])
    pauses = pause_to_its_end(broker, program, 0.2)
    report = program.wait(60).report()
    if pauses < 3:
        raise Failure(f"only {pauses} pauses beside {bench.few} cycles")
    return f"without amem {times(alone)}; under amem {times(report)}, {report['verified']} collectives verified beside {pauses} pauses"
