"""The demonstration of deploy/try.sh and amem-demo: two groups take turns on two GPUs, and no byte is lost.

It starts amemd in a temporary directory, a group `train` and a group `rollout` of two ranks each, and swaps them. On the
simulated driver, the ranks run amem-workload, and the two groups together are larger than a GPU. On real GPUs, they run
amem_nccl_cycle, which runs NCCL's collectives in a loop and compares the results.

With --turns, three groups get requests, and amemd decides which of them runs. One fits on the simulated GPU.
"""

import argparse
import ctypes
import glob
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time

import try_turns
from try_node import MIB, Child, Failure, Node, Workload, deadline, last_line, mib

SWAPS = 3
RANKS = 2
DEVICES = 2
EXIT_RESOURCES = 7  # amemctl: the pool or a device is too small

# Simulated GPUs. Each group needs 2 x 160 allocations of 2 MiB and a little more: one fits on a GPU, two do not.
SIM_MEMORY_MIB = 512
SIM_ALLOCATIONS = 160
SIM_POOL_MIB = 1536


def say(text):
    print(text, flush=True)


class SimulatedGroup:
    """Ranks on the simulated driver. They execute commands."""

    def __init__(self, node, name):
        self.node = node
        self.name = name
        self.checksums = None
        self.verified = 0
        meeting = node.folder / f"meet-{name}"
        meeting.mkdir()
        command = [node.programs / "amem-workload", "--ranks", RANKS, "--rendezvous", meeting, "--communicators", 2,
                   "--allocations", SIM_ALLOCATIONS, "--bytes", 2 * MIB]
        self.ranks = [node.start(Workload, f"{name}-{r}", node.as_rank(name, *command, "--rank", r), RANK=str(r))
                      for r in range(RANKS)]
        for rank in self.ranks:
            rank.answer("start", 120)

    def all(self, command):
        for rank in self.ranks:
            rank.tell(command)
        return [rank.answer(command, 120) for rank in self.ranks]

    def work(self):
        """Runs collectives, which change the communicators' buffers, and checks each of them."""
        self.all("step 20")

    def verify(self):
        """Verifies every mapped byte, of this rank and of its peers."""
        count = sum(answer["bytes"] for answer in self.all("verify"))
        self.verified += count
        return f"{count:,} bytes verified, none wrong"

    def about_to_leave(self):
        self.checksums = [answer["checksums"] for answer in self.all("checksum")]

    def came_back(self):
        now = [answer["checksums"] for answer in self.all("checksum")]
        if now != self.checksums:
            raise Failure(f"{self.name}: the checksums of the memory were {self.checksums} before the pause and are {now} now")
        text = self.verify()
        self.work()
        self.verify()
        return f"checksums as before the pause, {text}; collectives continue"

    def stop(self):
        for rank in self.ranks:
            rank.tell("exit")
        for rank in self.ranks:
            if rank.wait(60) != 0:
                raise Failure(f"{rank.name} ended with status {rank.process.returncode}")

    def totals(self):
        return f"{self.verified:,} bytes"


class NcclGroup:
    """Ranks on real GPUs. They run NCCL's collectives in a loop and compare every result."""

    def __init__(self, node, name, nccl):
        self.node = node
        self.name = name
        self.progress_file = node.folder / f"{name}.progress"
        self.stop_file = node.folder / f"{name}.stop"
        command = [node.programs / "amem_nccl_cycle", "--pause", "none", "--gpus", RANKS, "--comms", 2, "--loop", 3600,
                   "--watchdog", 900, "--no-memory-checks", "--progress", self.progress_file,
                   "--stop-file", self.stop_file, *(["--nccl", nccl] if nccl else [])]
        self.program = node.start(Child, name, node.as_rank(name, *command),
                                  PATH=f"{node.bin}:{os.environ['PATH']}")
        self.work()

    def rounds(self):
        try:
            return int(self.progress_file.read_text() or 0)
        except (OSError, ValueError):
            return 0

    def work(self):
        target = self.rounds() + 50
        for _ in deadline(180):
            self.program.require_running()
            if self.rounds() >= target:
                return
        raise Failure(f"{self.name} has run {self.rounds()} rounds of collectives after 180 s, and not {target}")

    def verify(self):
        return f"{self.rounds():,} rounds of collectives, all results correct"

    def about_to_leave(self):
        """In the middle of its collectives."""

    def came_back(self):
        self.work()
        return f"collectives continue: {self.verify()}"

    def stop(self):
        self.stop_file.touch()
        if self.program.wait(120) != 0:
            raise Failure(f"{self.name} ended with status {self.program.process.returncode}")

    def totals(self):
        for line in reversed(self.program.log.read_text(errors="replace").splitlines()):
            if line.startswith("{"):
                return f"{json.loads(line)['verified']:,} collectives"
        raise Failure(f"{self.name} ended without a report")


class Demo:
    """The steps, with a table after each."""

    def __init__(self, node, tolerance_mib):
        self.node = node
        self.tolerance = tolerance_mib * MIB
        self.step = 0
        self.expected = {}  # group -> state
        self.other = None   # bytes per device that are not brokered, once both groups run

    def title(self, text):
        self.step += 1
        say(f"\n{self.step}. {text}")

    def table(self, limit=30):
        status = self.node.status()
        for _ in deadline(limit):  # the driver's figure may follow a moment later
            trouble = self.trouble(status)
            if not trouble:
                break
            status = self.node.status()
        else:
            raise Failure(trouble)
        names = [f"GPU {d['ordinal']}" for d in status["devices"][:DEVICES]]
        rows = [["MiB", "state", *names, "in the pool"]]
        for group in status["groups"]:
            by_device = {d["uuid"]: d["resident_bytes"] for d in group["devices"]}
            rows.append([group["name"], group["state"].removeprefix("GROUP_STATE_").lower(),
                         *(mib(by_device.get(d["uuid"], 0)) for d in status["devices"][:DEVICES]),
                         mib(group["saved_bytes"])])
        rows.append(["driver: used", "", *(mib(d["used_bytes"]) for d in status["devices"][:DEVICES]), ""])
        rows.append(["driver: total", "", *(mib(d["total_bytes"]) for d in status["devices"][:DEVICES]), ""])
        pool = status["pool"]
        rows.append(["pool", "", *("" for _ in names), f"{mib(pool['used_bytes'])} of {mib(pool['configured_bytes'])}"])
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        for row in rows:
            say("   " + "  ".join([row[0].ljust(widths[0]), row[1].ljust(widths[1]),
                                   *(c.rjust(w) for c, w in zip(row[2:], widths[2:]))]).rstrip())
        return status

    def trouble(self, status):
        """What is not as it must be; empty: nothing."""
        groups = {group["name"]: group for group in status["groups"]}
        for name, state in self.expected.items():
            group = groups.get(name)
            if group is None:
                return f"the broker does not know the group {name}"
            if group["state"] != f"GROUP_STATE_{state}":
                return f"the group {name} is {group['state']} and not {state}: {group['note']}"
            if state == "PAUSED" and group["resident_bytes"] != 0:
                return f"the group {name} is paused, but {mib(group['resident_bytes'])} MiB of it are on GPUs"
            if state == "RUNNING" and group["resident_bytes"] != group["allocated_bytes"]:
                return f"the group {name} runs, but only {mib(group['resident_bytes'])} MiB of it are on GPUs"
        other = [d["used_bytes"] - d["brokered_bytes"] for d in status["devices"][:DEVICES]]
        if self.other is not None:
            for device, (now, before) in enumerate(zip(other, self.other)):
                if abs(now - before) > self.tolerance:
                    return (f"GPU {device}: {mib(now)} MiB are in use that are not the broker's. When both groups had started, it was "
                            f"{mib(before)} MiB")
        return ""

    def both_started(self, status):
        self.other = [d["used_bytes"] - d["brokered_bytes"] for d in status["devices"][:DEVICES]]

    def pause(self, group):
        group.about_to_leave()
        self.node.amemctl("pause", group.name)
        self.expected[group.name] = "PAUSED"

    def swap(self, out, into):
        out.about_to_leave()
        began = time.monotonic()
        self.node.amemctl("swap", out.name, into.name)
        seconds = time.monotonic() - began
        self.expected.update({out.name: "PAUSED", into.name: "RUNNING"})
        return seconds

    def must_not_fit(self, group):
        done = self.node.amemctl_any("resume", group.name)
        if done.returncode != EXIT_RESOURCES:
            raise Failure(f"the resume of {group.name} while the other group runs must end with exit status {EXIT_RESOURCES}, "
                          f"but ended with {done.returncode}: {last_line(done)}")
        say(f"   amemd refuses to resume {group.name} at the same time, because there is no space:")
        say(f"   {last_line(done)}")


    def stop(self, group):
        group.stop()
        del self.expected[group.name]
        for _ in deadline(30):
            if all(each["name"] != group.name for each in self.node.status()["groups"]):
                return
        raise Failure(f"the ranks of {group.name} have ended, but the broker still lists the group after 30 s")


def run(demo, start, overcommitted):
    """The story. `start` makes a group; `overcommitted`: both together do not fit."""
    demo.title("start amemd and the group train")
    train = start("train")
    train.work()
    demo.expected["train"] = "RUNNING"
    say(f"   train: {train.verify()}")
    status = demo.table()
    if overcommitted:
        free = min(d["total_bytes"] - d["used_bytes"] for d in status["devices"][:DEVICES])
        say(f"   rollout needs as much memory as train on each GPU, but only {mib(free)} MiB are free")

    demo.title("pause train, start the group rollout")
    demo.pause(train)
    rollout = start("rollout")
    rollout.work()
    demo.expected["rollout"] = "RUNNING"
    say(f"   rollout: {rollout.verify()}")
    demo.both_started(demo.table())

    running, paused = rollout, train
    slowest = 0.0
    for number in range(1, SWAPS + 1):
        running, paused = paused, running
        demo.title(f"swap {number}: pause {paused.name}, resume {running.name}")
        seconds = demo.swap(paused, running)
        slowest = max(slowest, seconds)
        demo.table()
        say(f"   the swap took {seconds:.2f} s; {running.name}: {running.came_back()}")
        if overcommitted and number == 1:
            demo.must_not_fit(paused)

    demo.title(f"end {running.name}, resume {paused.name}")
    demo.stop(running)
    demo.other = None  # its contexts went with it
    demo.node.amemctl("resume", paused.name)
    demo.expected[paused.name] = "RUNNING"
    say(f"   {paused.name}: {paused.came_back()}")
    demo.table()
    demo.stop(paused)
    return (f"{SWAPS} swaps, slowest {slowest:.2f} s; verified {train.totals()} of train and {rollout.totals()} of rollout")


def nccl_library():
    """(there is one, its path or None for the loader's own choice)."""
    for place in sys.path:
        for path in glob.glob(os.path.join(place, "nvidia/nccl/lib/libnccl.so.2")):
            return True, path
    try:
        ctypes.CDLL("libnccl.so.2")
    except OSError:
        return False, None
    return True, None


def real_gpus():
    """(number of GPUs that can be used, why not more)."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        count = ctypes.c_uint(0)
        if nvml.nvmlInit_v2() != 0 or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return 0, "the NVIDIA driver reports no GPU"
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0, "there is no NVIDIA driver"
    return count.value, f"{DEVICES} GPUs are required, and there are {count.value}"


def choose(force_sim, turns=False):
    """(use real GPUs, path of NCCL, the line that says so)."""
    if turns:
        return False, None, "1 simulated GPU"
    if force_sim:
        return False, None, "2 simulated GPUs"
    count, why = real_gpus()
    if count < DEVICES:
        return False, None, f"2 simulated GPUs ({why})"
    found, library = nccl_library()
    if not found:
        return False, None, "2 simulated GPUs (there is no libnccl.so.2; install it: pip install nvidia-nccl-cu13)"
    return True, library, "2 GPUs of this machine, with NCCL"


def targets(real):
    """What a build needs for the demonstration, beside amemd, amemctl and the shim."""
    return ["amem_nccl_cycle"] if real else ["amem-workload", "nccl_workload", "sim_cuda", "sim_nvml"]


def simulated(driver, folder, devices=DEVICES, memory_mib=SIM_MEMORY_MIB):
    node = folder / "node"
    node.mkdir()
    own = {name: value for name, value in os.environ.items() if not name.startswith("AMEM_")}
    own.pop("CUDA_VISIBLE_DEVICES", None)
    libraries = str(driver)
    if own.get("LD_LIBRARY_PATH"):
        libraries += ":" + own["LD_LIBRARY_PATH"]
    return {**own, "LD_LIBRARY_PATH": libraries, "AMEM_SIM_DIR": str(node), "AMEM_SIM_DEVICES": str(devices),
            "AMEM_SIM_MEMORY": f"{memory_mib}MiB"}


def scratch():
    """A directory whose sockets' paths are short enough."""
    folder = tempfile.mkdtemp(prefix="amem-try-")
    if len(folder) > 60:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="amem-try-", dir="/tmp")
    return pathlib.Path(folder)


def main():
    # The help is that of amem-demo, the command that is installed; try.sh has its own.
    parser = argparse.ArgumentParser(
        prog="amem-demo", usage="%(prog)s [-h] [--turns] [--keep]", description=__doc__.partition("\n\n")[2].strip(),
        epilog="The last line begins with OK (exit status 0) or FAILED (exit status 1).",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--build", type=pathlib.Path, help=argparse.SUPPRESS)
    where.add_argument("--installed", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--targets", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--sim", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--turns", action="store_true", help="three groups that get requests take turns on one GPU; amemd decides when")
    parser.add_argument("--keep", action="store_true", help="keep the logs")
    options = parser.parse_args()
    if options.build:
        build = options.build.resolve()
        programs, driver = build / "bin", build / "lib" / "sim"
    else:
        build = options.installed.resolve()
        programs = driver = build / "lib" / "amem" / "sim"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("FAILED: terminated"))

    real, nccl, where = choose(options.sim or options.installed, options.turns)
    if options.targets:
        say(" ".join(targets(real)))
        return 0
    folder = scratch()
    say(f"try: {where}; logs in {folder}")
    node = None
    good = False
    try:
        if options.turns:
            node = Node(build / "bin", programs, folder, simulated(driver, folder, 1, try_turns.MEMORY_MIB), try_turns.POOL_MIB)
            node.start_broker(*try_turns.configuration(folder))
            summary = try_turns.run(node, say)
        else:
            environment = {n: v for n, v in os.environ.items() if not n.startswith("AMEM_")} if real \
                else simulated(driver, folder)
            node = Node(build / "bin", programs, folder, environment, 8192 if real else SIM_POOL_MIB)
            node.start_broker()
            demo = Demo(node, 64 if real else 16)
            make = (lambda name: NcclGroup(node, name, nccl)) if real else (lambda name: SimulatedGroup(node, name))
            summary = run(demo, make, not real)
        good = True
        if options.keep:
            say(f"\nlogs: {folder}")
    except (Failure, OSError, ValueError, KeyError, KeyboardInterrupt) as failure:
        if node is not None:
            node.show_logs()
        text = "interrupted" if isinstance(failure, KeyboardInterrupt) else str(failure) or repr(failure)
        print(f"\nlogs: {folder}\nFAILED: {text}", file=sys.stderr)
    finally:
        if node is not None:
            node.end()
        if good and not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    if good:
        say(f"\nOK: {summary}, on {where}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
