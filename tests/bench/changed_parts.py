"""The parts of the benchmark about pauses that copy only what changed, and about what is left in the pool for that. See
bench_parts.py."""

import grp
import json
import os
import shutil
import subprocess

from bench_parts import GIB, ceiling, part
from harness import Failure, Skip, tail
from heap_parts import Holder, operate
from results import from_report, row

MIB = 1 << 20
HANDLE = 20 * MIB
NOBODY = 65534


def phases(done, *names):
    """Milliseconds of these phases of an operation, together."""
    return sum(int(each["us"]) for each in done["times"] if each["phase"] in names) / 1000


def heap_save(done):
    return next(each for each in done["saves"] if each["tag"] == "heap")


def phase_rows(name, work, pauses):
    """The phases of amem's pauses, of their `done` messages: what a pause is made of."""
    for each, names in (("quiesce", ("quiesce",)), ("save", ("save",)), ("release and drop", ("release", "drop"))):
        yield row(name, f"{work}: {each}", "amem", [phases(done, *names) for done in pauses])


def driver_alone(machine, size, handle):
    """Milliseconds that the driver takes for so many bytes in handles of one size, by what is done with them."""
    machine.bench.stop_broker()
    text = machine.run([machine.program("amem_handle_bench"), size // MIB, machine.runs, handle // MIB])
    report = json.loads(text.splitlines()[0])  # of the device's own memory
    gib = size // handle * handle / GIB
    return {work: {each: value if each == "n" else value * gib for each, value in figure.items()}
            for work, figure in report["ms_per_gib"].items()}


@part(gpus=1, limit=400)
def unchanged(machine):
    """Pauses that find most bytes in the pool, in one allocation and in pieces of 20 MiB, against a plain copy and the driver alone."""
    size = machine.heap_bytes
    for pieces, what in ((1, "one allocation"), (size // HANDLE, "pieces of 20 MiB")):
        name = f"unchanged, {size / GIB:g} GiB in {what}"
        broker = machine.bench.broker_with(f"{machine.pool_gib(size // GIB + 4)}GiB")
        handle = HANDLE if pieces > 1 else size
        holder = Holder(machine, "heap", pieces * handle, pieces=pieces)
        for percent in (0, 10):
            pauses = []
            for number in range(machine.runs + 2):
                if number > 1 and percent:
                    holder.ask(f"change {percent}")
                _, done = operate(broker, "pause", "heap")
                operate(broker, "resume", "heap")
                if number > 1:
                    pauses.append(done[-1])
            machine.keep[f"{name}, {percent} %"] = pauses[-1]
            holder.ask("check")
            save = heap_save(pauses[-1])
            work = f"pause, {percent} % of blocks changed"
            yield row(name, work, "amem", [int(done["elapsed_us"]) / 1000 for done in pauses],
                      note=f"{int(save['copied_bytes']) // MIB} of {int(save['kept_bytes']) // MIB} MiB copied")
            yield from phase_rows(name, work, pauses)
        holder.end()
        yield from_report(name, "unmap, release and free", "the driver alone",
                          driver_alone(machine, pieces * handle, handle)["unmap and close"], note=f"handles: {pieces}")
    yield from ceiling(machine, f"unchanged, {size / GIB:g} GiB", 1, size, {"pause": "out"})


@part(gpus=1, limit=500)
def training(machine):
    """15 GiB in pieces of 20 MiB that change as a whole between two pauses, against a plain copy and the driver alone."""
    pieces = machine.rank_bytes // HANDLE
    size = pieces * HANDLE
    name = f"training, {size / GIB:g} GiB in pieces of 20 MiB"
    broker = machine.bench.broker(pool_gib=machine.pool_gib(size // GIB + 4))
    holder = Holder(machine, "heap", size, pieces=pieces)
    pauses = []
    # At least as many as pass from one pause that takes hashes to the next.
    for number in range(max(machine.runs, 9) + 1):
        holder.ask("change")
        _, done = operate(broker, "pause", "heap")
        operate(broker, "resume", "heap")
        if number > 0:
            pauses.append(done[-1])
    holder.ask("check")
    holder.end()
    machine.keep[name] = pauses
    for what, hashed in (("", False), (" that takes hashes", True)):
        some = [done for done in pauses if heap_save(done)["hashed"] == hashed]
        if some:
            yield row(name, f"pause{what}", "amem", [int(done["elapsed_us"]) / 1000 for done in some])
            yield from phase_rows(name, f"pause{what}", some)
    yield from_report(name, "close and free", "the driver alone", driver_alone(machine, size, HANDLE)["close"], note=f"handles: {pieces}")
    yield from ceiling(machine, name, 1, size, {"pause": "out"})


@part(gpus=1, limit=60)
def free_beside_copy(machine):
    """Whether the driver unmaps and frees memory while a copy of other memory runs."""
    machine.bench.stop_broker()
    size = machine.heap_bytes // 2
    report = json.loads(machine.run([machine.program("amem_handle_bench"), "beside", size // MIB, machine.runs, HANDLE // MIB]))
    for work, figure in report["ms"].items():
        yield from_report(f"free beside a copy, 2 x {size // MIB} MiB, handles of {HANDLE // MIB} MiB", work, "the driver alone", figure)


class OtherUser:
    """Runs programs as the user nobody, from copies that this user can read. Raises Skip if this machine does not allow it."""

    def __init__(self, machine):
        if os.geteuid() != 0 or shutil.which("setpriv") is None:
            raise Skip("only root can run a process as another user, and with setpriv")
        try:
            self.group = grp.getgrgid(NOBODY).gr_name
        except KeyError:
            raise Skip(f"no group has the number {NOBODY}") from None
        self.prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        for folder in (machine.bench.root, machine.folder):
            folder.chmod(0o755)
        self.folder = machine.folder / "for-others"
        libraries = machine.prefix / "lib"
        for path in (*(machine.program(name) for name in ("amemctl", "amem_memory_bench")), *libraries.glob("*.so*"),
                     *libraries.glob("bundled/*")):
            self.copy(path, machine.prefix)
        self.environment = {"AMEM_SHIM": str(self.folder / "lib" / "libamem_shim.so")}
        # Takes nothing, and ends.
        tried = subprocess.run([*self.prefix, self.program("amem_memory_bench"), "crowd", "--bytes", str(1 << 40)], check=False,
                               env=machine.bench.environment, text=True, stdin=subprocess.DEVNULL, capture_output=True)
        if tried.returncode != 0:
            raise Skip(f"user {NOBODY} cannot use the GPU: {tried.stderr.strip() or f'status {tried.returncode}'}")

    def copy(self, path, top):
        copy = self.folder / path.relative_to(top)
        for folder in reversed([folder for folder in copy.parents if folder.is_relative_to(self.folder)]):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o755)
        shutil.copyfile(path, copy)
        copy.chmod(0o755)

    def program(self, name):
        return self.folder / "bin" / name

    def settings(self):
        """A broker's: this user may use it, and has no smaller share of it."""
        return ["--sockets-group", self.group, "--quotas-pool", "none"]

    @staticmethod
    def admit(broker):
        for folder in (broker.folder, broker.runtime):
            folder.chmod(0o755)


def pause_next_to_retained(machine, retain, size, pieces, user):
    """The `done` message of a pause of a group next to another that has just been resumed, after one that is not counted, and the
    bytes that were retained of the other. The pool has space for one of them only, or for one of each owner's."""
    pool = -(-(size + size // 16) // (64 * MIB)) * 64 * (2 if user else 1)
    broker = machine.bench.broker_with(f"{pool}MiB", "--pool-retain", retain, *(user.settings() if user else []))
    if user:
        user.admit(broker)
    first = Holder(machine, "first", size, pieces=pieces)
    second = Holder(machine, "second", size, pieces=pieces, user=user)
    for _ in range(2):
        for verb in ("pause", "resume"):
            operate(broker, verb, "first")
        retained = int(broker.group("first")["retained_bytes"])
        _, done = operate(broker, "pause", "second")
        operate(broker, "resume", "second")
    for holder in (first, second):
        holder.ask("check")
        holder.end()
    return done[-1], retained


@part(gpus=1, limit=590)
def retained_elsewhere(machine):
    """Pauses of a group while retained bytes of another fill the pool, of one owner or of two; against pool.retain = "off"."""
    pieces = machine.heap_bytes // 2 // HANDLE
    size = pieces * HANDLE
    name = f"retained of another group, 2 x {size // MIB} MiB"
    for work in ("pause, one owner", "pause, two owners"):
        user = OtherUser(machine) if work.endswith("two owners") else None
        pauses = {"auto": [], "off": []}
        for _ in range(machine.runs):  # in turns: what the machine does meanwhile falls on both
            for retain, of_broker in pauses.items():
                done, retained = pause_next_to_retained(machine, retain, size, pieces, user)
                if (retained >= size * 9 // 10) != (retain == "auto"):
                    raise Failure(f"{work}, pool.retain = {retain}: {retained // MIB} MiB of {size // MIB} were retained")
                of_broker.append(done)
        machine.bench.stop_broker()
        machine.keep[f"{name}: {work}"] = pauses
        for who, of_broker in (("amem", pauses["auto"]), ("amem, pool.retain off", pauses["off"])):
            yield row(name, work, who, [int(done["elapsed_us"]) / 1000 for done in of_broker],
                      note=f"{sum(heap_save(done)['hashed'] for done in of_broker)} of them took hashes")


@part(gpus=1, limit=590)
def one_byte(machine):
    """Cycles after each of which one byte has changed, at random: whether every byte is right after the resume."""
    size = min(machine.heap_bytes, GIB)
    name = f"one byte of {size / GIB:g} GiB"
    cycles = 20 if machine.quick else 200
    print(f"  one_byte: --seed {machine.seed}", flush=True)
    broker = machine.bench.broker(pool_gib=machine.pool_gib(size // GIB + 4))
    holder = Holder(machine, "heap", size)
    copied = []
    for cycle in range(cycles + 1):
        seed = machine.seed + cycle
        if cycle > 0:  # the first one copies everything
            holder.ask(f"flip {seed}")
        _, done = operate(broker, "pause", "heap")
        operate(broker, "resume", "heap")
        if cycle > 0:
            copied.append(int(heap_save(done[-1])["copied_bytes"]) / 1024)
        try:
            holder.ask("check")
        except Failure as miss:
            yield row(name, "cycles", "amem", [cycle], unit="cycles", note=f"1 miss, --seed {machine.seed}")
            raise Failure(f"flip {seed}, in cycle {cycle}: {miss}\n{tail(machine.folder / 'heap.err', 1)}") from None
    holder.end()
    yield row(name, "cycles", "amem", [cycles], unit="cycles", note=f"0 misses, --seed {machine.seed}")
    yield row(name, "copied by a pause", "amem", copied, unit="KiB")
