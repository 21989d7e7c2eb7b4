"""The parts of the benchmark about the memory of processes: kept, dense, of one GPU or of all at once. See bench_parts.py."""

import importlib.util
import json
import pathlib
import subprocess
import sys
import time

from bench_parts import GIB, ceiling, part
from harness import Failure, Skip, start
from results import row

SCRIPTS = pathlib.Path(__file__).resolve().parent


def operate(broker, *arguments):
    """amemctl pause, resume or swap: (milliseconds from its beginning in the broker to its end, the `done` messages).
    The time between the first message and the last is taken here, so it is that of a swap's both halves."""
    with subprocess.Popen([str(broker.ctl), "--json", *arguments], env=broker.environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        first, last, done, lead = None, None, [], 0
        for line in process.stdout:
            if not line.startswith("{"):
                continue
            last = time.monotonic()
            message = json.loads(line)
            if first is None:
                first, lead = last, int(message.get("elapsed_us", 0))
            if message.get("done"):
                done.append(message)
        errors = process.stderr.read()
        if process.wait(60) != 0 or not done:
            raise Failure(f"amemctl {' '.join(arguments)}: {errors.strip()}")
    return (last - first) * 1000 + lead / 1000, done


class Holder:
    """amem_memory_bench hold, under the shim, in a group, with as much on each of its GPUs, a process each; or crowd, without.
    `user`: an OtherUser, who runs it."""

    def __init__(self, machine, group, size, gpus=1, shim=True, work="hold", pieces=0, user=None):
        self.group = group
        self.processes = [self.start(machine, size, number, shim, work, pieces, user) for number in range(gpus)]
        self.expect("ready")

    def start(self, machine, size, gpu, shim, work, pieces, user):
        broker = machine.bench.broker()
        program, ctl = (user or machine).program("amem_memory_bench"), user.program("amemctl") if user else broker.ctl
        argv = [program, work, "--bytes", size, "--gpu", gpu, *(["--pieces", pieces] if pieces else [])]
        if shim:
            argv = [ctl, "run", "--group", self.group, "--scope", "heap", "--", *argv]
        if user:
            argv = [*user.prefix, *argv]
        with (machine.folder / f"{self.group}.err").open("ab") as log:
            return start(argv, {**broker.environment, **(user.environment if user else {})}, machine.bench.marker, text=True,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)

    def expect(self, answer):
        for gpu, process in enumerate(self.processes):
            line = process.stdout.readline().strip()
            if line != answer:
                raise Failure(f"{self.group}: the holder on GPU {gpu} said \"{line}\", not \"{answer}\"")

    def ask(self, what):
        """All at once: each looks at GiB."""
        for process in self.processes:
            process.stdin.write(what + "\n")
            process.stdin.flush()
        self.expect("ok")

    def end(self):
        for process in self.processes:
            process.stdin.write("end\n")
            process.stdin.close()
        for gpu, process in enumerate(self.processes):
            if process.wait(60) != 0:
                raise Failure(f"{self.group}: the holder on GPU {gpu} ended with {process.returncode}")


def swap_often(machine, broker, out_in, keep, holders):
    """Swaps to and fro: (milliseconds of each, who would go out and come in next). What goes out has changed each time."""
    times = []
    for _ in range(machine.runs + 1):
        holders[out_in[0]].ask("change")
        ms, done = operate(broker, "swap", *out_in)
        times.append(ms)
        machine.keep[keep] = done
        out_in = out_in[::-1]
    return times, out_in


def check_both(broker, holders, out_in):
    """Every byte of both; the second runs afterwards."""
    holders[out_in[0]].ask("check")
    operate(broker, "swap", *out_in)
    holders[out_in[1]].ask("check")


def pause_often(machine, name, size, gpus):
    """Milliseconds of each pause and resume of a group with a process on each of the GPUs, by verb; the first pause is among them."""
    broker = machine.bench.broker(pool_gib=machine.pool_gib(gpus * (size // GIB) + 4))
    holder = Holder(machine, "heap", size, gpus)
    times = {"pause": [], "resume": []}
    explained = {}
    for number in range(machine.runs + 1):
        if number > 0:
            holder.ask("change")  # else nothing need be copied
        for verb, taken in times.items():
            _, done = operate(broker, verb, "heap")
            taken.append(int(done[-1]["elapsed_us"]) / 1000)
            explained[verb] = done[-1]
        if not machine.quick or number in (0, machine.runs):
            holder.ask("check")
    machine.keep[name] = explained
    holder.end()
    return times


def pauses(machine, name, size, gpus):
    """First pause, later pauses and resumes of a group with a process on each of the GPUs, against plain copies by all of them."""
    times = pause_often(machine, name, size, gpus)
    yield row(name, "first pause", "amem", times["pause"][:1])
    yield row(name, "pause", "amem", times["pause"][1:])
    yield row(name, "resume", "amem", times["resume"][1:], note=f"first {times['resume'][0]:.1f}")
    yield from ceiling(machine, name, gpus, size, {"first pause": "out", "pause": "out", "resume": "in"})


def swap_two(machine, name, size, gpus):
    """Milliseconds of each swap of two groups with a process on each of the GPUs."""
    broker = machine.bench.broker(pool_gib=machine.pool_gib(2 * gpus * (size // GIB) + 8))
    holders = {group: Holder(machine, group, size, gpus) for group in ("one", "two")}
    operate(broker, "pause", "two")
    times, out_in = swap_often(machine, broker, ("one", "two"), name, holders)
    check_both(broker, holders, out_in)
    operate(broker, "resume", out_in[0])
    for holder in holders.values():
        holder.end()
    return times


def swaps(machine, name, size, gpus):
    """Swaps of two groups with a process on each of the GPUs, against plain copies by all of them, each way and both at once."""
    times = swap_two(machine, name, size, gpus)
    yield row(name, "swap", "amem", times[1:], note=f"first {times[0]:.1f}")
    yield from ceiling(machine, name, gpus, size, {"out alone": "out", "in alone": "in", "both at once": "both"})


@part(gpus=1, limit=115)
def heap(machine):
    """8 GiB of one process, dense, kept: first pause, later pauses, resumes, against a plain copy."""
    size = machine.heap_bytes
    yield from pauses(machine, f"heap, {size / GIB:g} GiB, dense", size, 1)


@part(gpus=2, limit=400)
def heap_all(machine):
    """The same with 15 GiB of a process on each GPU, all in one group."""
    size = machine.rank_bytes
    yield from pauses(machine, f"heap, {machine.gpus} ranks x {size / GIB:g} GiB, dense", size, machine.gpus)


@part(gpus=1, limit=200)
def record(machine):
    """1000 allocations of 2 MiB: pauses and resumes of a broker with a holder and its record, and of one without."""
    pieces, times = 1000, {}
    for holder in ("off", "required") * 3:  # in turns: what the machine does meanwhile falls on both
        broker = machine.bench.broker_with("8GiB", "--holder", holder)
        program = Holder(machine, "heap", pieces << 21, pieces=pieces)
        for number in range(machine.runs + 1):
            for verb in ("pause", "resume"):
                _, done = operate(broker, verb, "heap")
                if number > 0:
                    times.setdefault((verb, holder), []).append(int(done[-1]["elapsed_us"]) / 1000)
        program.ask("check")
        program.end()
    machine.bench.stop_broker()
    for (verb, holder), taken in times.items():
        yield row(f"heap, {pieces} x 2 MiB", verb, "amem" if holder == "required" else "amem without a holder", taken)


@part(gpus=1, limit=115)
def swap(machine):
    """16 GiB out and 16 GiB in on one GPU, two processes, against the longer of the two copies alone."""
    size = machine.swap_bytes
    yield from swaps(machine, f"swap, {size / GIB:g} GiB out, {size / GIB:g} GiB in", size, 1)


@part(gpus=2, limit=400)
def swap_all(machine):
    """The same with 15 GiB out and 15 GiB in on each GPU, of two groups with a process on each."""
    size = machine.rank_bytes
    yield from swaps(machine, f"swap, {machine.gpus} ranks x {size / GIB:g} GiB out, {size / GIB:g} GiB in", size, machine.gpus)


@part(gpus=1, limit=115)
def swap_full(machine):
    """The same where there is no space for both, so that one leaves in waves; against a pause, then a resume."""
    size = machine.swap_bytes
    name = f"swap without space, {size / GIB:g} GiB out, {size / GIB:g} GiB in"
    broker = machine.bench.broker(pool_gib=machine.pool_gib(2 * (size // GIB) + 8))
    holders = {"one": Holder(machine, "one", size)}
    operate(broker, "pause", "one")
    holders["two"] = Holder(machine, "two", size)
    crowd = Holder(machine, "crowd", 2 * GIB, shim=False, work="crowd")
    times, out_in = swap_often(machine, broker, ("two", "one"), "swap_full", holders)
    in_turn = []
    for _ in range(machine.runs):
        in_turn.append(operate(broker, "pause", out_in[0])[0] + operate(broker, "resume", out_in[1])[0])
        out_in = out_in[::-1]
    check_both(broker, holders, out_in)
    crowd.end()
    operate(broker, "resume", out_in[0])
    for holder in holders.values():
        holder.end()
    yield row(name, "swap", "amem", times[1:], note=f"first {times[0]:.1f}")
    yield row(name, "swap", "amem, a pause and then a resume", in_turn)


@part(gpus=1, limit=115)
def saver(machine):
    """torch_memory_saver with the same 8 GiB, where it is installed."""
    if importlib.util.find_spec("torch_memory_saver") is None:
        raise Skip("torch_memory_saver is not installed")
    name = f"heap, {machine.heap_bytes / GIB:g} GiB, dense"
    for who, how in (("torch_memory_saver, CPU backup", []), ("torch_memory_saver, CPU backup retained", ["--retain"])):
        text = machine.run([sys.executable, SCRIPTS / "saver_bench.py", "--bytes", machine.heap_bytes, "--runs", machine.runs, *how])
        report = json.loads([line for line in text.splitlines() if line.startswith("{")][-1])
        yield row(name, "first pause", who, report["pause_ms"][:1])
        yield row(name, "pause", who, report["pause_ms"][1:])
        yield row(name, "resume", who, report["resume_ms"][1:])
