#!/usr/bin/env python3
"""Who may checkpoint a process, and what becomes of it when the caller is killed in the middle of a step.

    sudo python3 checkpoint_callers.py --prefix /opt/amem [--device 0] [--gib 1]

Needs a GPU, a driver of CUDA 12.8 or newer, root, and setpriv and unshare (util-linux). The target is a Python program with PyTorch (a
tensor with a checksum, and a captured CUDA graph), or without PyTorch one that calls the driver directly (no graph). Each step is an
amem-checkpoint of the bundle. Prints two tables, then a JSON object. Ends within --seconds (150), whatever hangs: what does not end is
killed and noted. Exit status: 0: all was tried; 1: a part was not reached, or root could not checkpoint the target at all.
"""

import argparse
import ctypes
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import time

STEPS = ("lock", "checkpoint", "restore", "unlock")
# The steps that lead from a state to "running".
WAY_BACK = {"checkpointed": ("restore", "unlock"), "locked": ("unlock",), "running": ()}
WAY_TO = {"lock": (), "checkpoint": ("lock",), "restore": ("lock", "checkpoint"), "unlock": ("lock", "checkpoint", "restore")}
APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
ORDINARY, OTHER = 65534, 65533  # nobody, and one that nobody has


class Wedged(Exception):
    """The target does not answer."""


class OutOfTime(Exception):
    """The whole run's time is over."""


# ---- the target


class TorchMemory:
    """A tensor whose values are known, and a graph that adds 1 to another."""
    has = "PyTorch"

    def __init__(self, device, size):
        import torch
        self.torch = torch
        torch.cuda.set_device(device)
        self.data = torch.arange(size // 4, dtype=torch.int32, device="cuda")
        self.want = self.sum()
        self.small = torch.zeros(1024, device="cuda")
        self.graph, self.launches = torch.cuda.CUDAGraph(), 0
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self.small += 0
        stream.synchronize()
        with torch.cuda.graph(self.graph):
            self.small += 1
        torch.cuda.synchronize()

    def sum(self):
        return int((self.data ^ 0x5a5a5a5a).sum(dtype=self.torch.int64).item())

    def check(self):
        self.graph.replay()
        self.launches += 1
        self.torch.cuda.synchronize()
        if self.sum() != self.want:
            return "wrong data"
        return "right" if bool((self.small == self.launches).all()) else "wrong graph"


class DriverMemory:
    """The same with the driver's calls alone, and without a graph."""
    has = "the driver's calls alone"

    def __init__(self, device, size):
        self.library, self.size = ctypes.CDLL("libcuda.so.1"), size
        handle, context, self.memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(handle), device)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        self.call("cuCtxSetCurrent", context)
        self.call("cuMemAlloc_v2", ctypes.byref(self.memory), ctypes.c_size_t(size))
        self.pattern = bytes(range(256)) * 4096
        for at in range(0, size, len(self.pattern)):
            self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.memory.value + at), self.pattern, ctypes.c_size_t(len(self.pattern)))

    def call(self, name, *arguments):
        if result := getattr(self.library, name)(*arguments):
            raise RuntimeError(f"{name} returned {result}")

    def check(self):
        got = ctypes.create_string_buffer(len(self.pattern))
        for at in range(0, self.size, len(self.pattern)):
            self.call("cuMemcpyDtoH_v2", got, ctypes.c_uint64(self.memory.value + at), ctypes.c_size_t(len(self.pattern)))
            if got.raw != self.pattern:
                return "wrong data"
        return "right"


def target(device, size):
    """Answers each "check" on standard input. An error of CUDA is an answer too."""
    try:
        import torch  # noqa: F401
        memory = TorchMemory(device, size)
    except ImportError:
        memory = DriverMemory(device, size)
    print(f"ready {memory.has}", flush=True)
    for line in sys.stdin:
        if line.strip() == "check":
            try:
                said = memory.check()
            except Exception as error:  # noqa: BLE001: whatever it is, it is reported
                said = f"error: {str(error).splitlines()[0]}"
            print(said, flush=True)


# ---- processes with deadlines


class Clock:
    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def limit(self, seconds):
        """So long, but no longer than the run."""
        left = self.end - time.monotonic()
        if left <= 0:
            raise OutOfTime
        return min(seconds, left)


def kill(process):
    """Whether it has ended 3 seconds later: it may hang in the kernel."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        process.wait(3)
        return True
    except subprocess.TimeoutExpired:
        return False


class Target:
    @classmethod
    def of(cls, argv, clock):
        """Of another program that prints "ready" and answers each "check"."""
        return cls(None, clock, argv=argv)

    def __init__(self, options, clock, identity=(), argv=None):
        self.clock = clock
        argv = argv or [*identity, sys.executable, "-B", str(options.script), "--as-target", "--device", options.device, "--gib", options.gib]
        environment = {**os.environ, "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
        self.process = subprocess.Popen([str(each) for each in argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
                                        env=environment)
        self.said = b""
        try:
            self.has = self.line(60).removeprefix("ready ")
            # setpriv executes the program in its own place, unshare starts it.
            children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="utf-8").split()
            self.pid = int(children[0]) if identity[:1] == ("unshare",) else self.process.pid
        except BaseException:
            kill(self.process)
            raise

    def line(self, seconds):
        end = time.monotonic() + self.clock.limit(seconds)
        while b"\n" not in self.said:
            ready = select.select([self.process.stdout], [], [], max(0, end - time.monotonic()))[0]
            if not ready:
                raise Wedged("no answer")
            piece = os.read(self.process.stdout.fileno(), 4096)
            if not piece:
                raise Wedged("it has ended")
            self.said += piece
        line, _, self.said = self.said.partition(b"\n")
        return line.decode()

    def check(self, seconds=10):
        if self.process.poll() is not None:
            return f"it has ended ({self.process.returncode})"
        try:
            self.process.stdin.write(b"check\n")
            self.process.stdin.flush()
            return self.line(seconds)
        except (Wedged, OSError) as error:
            return str(error)

    def end(self):
        return kill(self.process)


class Caller:
    def __init__(self, options, clock):
        self.program, self.clock = options.program, clock

    def start(self, step, pid, prefix=()):
        return subprocess.Popen([*prefix, self.program, step, str(pid)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, start_new_session=True)

    def step(self, step, pid, prefix=(), seconds=8):
        """What the program answers; "result" is None where it gives no answer, and "name" says why."""
        seconds = self.clock.limit(seconds)
        process = self.start(step, pid, prefix)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            gone = kill(process)
            return {"result": None, "name": "hangs" + ("" if gone else ", and cannot be killed"), "state": "unknown", "us": 0}
        try:
            return json.loads(out)
        except ValueError:
            why = (err.strip().splitlines() or ["no output"])[-1]
            return {"result": None, "name": f"exit status {process.returncode}: {why}", "state": "unknown", "us": 0}

    def state(self, pid):
        answer = self.step("state", pid, seconds=4)
        return answer["state"] if answer["result"] == 0 else answer["name"]

    def back(self, pid):
        """Root takes it back to "running". The steps' results; the last one decides."""
        state, said = self.state(pid), []
        for step in WAY_BACK.get(state, ()):
            said.append(f"{step}: {self.step(step, pid)['name']}")
        return ", ".join(said)


# ---- the two questions


def as_user(uid):
    return ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups")


def callers():
    """(name, the identity of the target, what the caller is started with)"""
    none = ("--bounding-set=-all", "--inh-caps=-all")

    def only(*capabilities):
        return ("setpriv", "--bounding-set=-all" + "".join(f",+{each}" for each in capabilities), "--inh-caps=-all")
    return [
        ("root", (), ()),
        ("root, target of an ordinary user", as_user(ORDINARY), ()),
        ("the same ordinary user", as_user(ORDINARY), as_user(ORDINARY)),
        ("another ordinary user", as_user(ORDINARY), as_user(OTHER)),
        ("ordinary user, target of root", (), as_user(ORDINARY)),
        ("root without capabilities", (), ("setpriv", *none)),
        ("root without capabilities, target of an ordinary user", as_user(ORDINARY), ("setpriv", *none)),
        ("root with SYS_PTRACE", (), only("sys_ptrace")),
        ("root with SYS_PTRACE, target of an ordinary user", as_user(ORDINARY), only("sys_ptrace")),
        ("root with CHECKPOINT_RESTORE, target of an ordinary user", as_user(ORDINARY), only("checkpoint_restore")),
        ("root, target in a PID namespace of its own", APART, ()),
        ("root in a PID namespace of its own, pid from outside", (), APART),
    ]


def row(cells, widths):
    print("  ".join(str(cell).ljust(width) for cell, width in zip(cells, widths)).rstrip(), flush=True)


def ask_callers(options, clock, caller, table):
    """One target for each identity, a new one where the last is not as it was. False: one did not start."""
    widths = (58, 11, 34, 13, 8)
    row(("caller", "call", "result", "state", "ms"), widths)
    targets, all_started = {}, True
    try:
        for name, identity, prefix in callers():
            if identity not in targets:
                try:
                    targets[identity] = Target(options, clock, identity)
                except (Wedged, OSError) as why:
                    row((name, "-", f"the target does not start: {why}", "", ""), widths)
                    table.append({"caller": name, "call": "start", "name": str(why)})
                    all_started = False
                    continue
            it = targets[identity]
            for step in ("state", *STEPS):
                answer = caller.step(step, it.pid, prefix)
                table.append({"caller": name, "call": step, **{key: answer[key] for key in ("result", "name", "state", "us")}})
                row((name, step, answer["name"], answer["state"], round(answer["us"] / 1000, 1)), widths)
                # One that is refused a step is not asked for the next one from the wrong state: root takes it.
                if answer["result"] != 0 and step in STEPS and (answer := caller.step(step, it.pid))["result"] != 0:
                    table.append({"caller": f"{name}; then root", "call": step, "name": answer["name"]})
                    row(("    then root", step, answer["name"], answer["state"], ""), widths)
                    break
            caller.back(it.pid)
            data = it.check()
            table.append({"caller": name, "call": "check", "name": data})
            row((name, "check", data, "", ""), widths)
            if data != "right":
                if not it.end():
                    row(("    the target", "", "cannot be killed", "", ""), widths)
                del targets[identity]
    finally:
        for it in targets.values():
            it.end()
    return all_started


def usual_times(caller, pid):
    """Seconds from the start of the program to its end, and those of the driver's call; the quicker of two rounds. None: a step failed."""
    times = {}
    for _ in range(2):
        for step in STEPS:
            began = time.monotonic()
            answer = caller.step(step, pid)
            whole = time.monotonic() - began
            if answer["result"] != 0:
                return None
            if step not in times or answer["us"] / 1e6 < times[step][1]:
                times[step] = (whole, answer["us"] / 1e6)
    return times


def killed_at(caller, pid, step, seconds):
    """Whether the kill came before its end."""
    process = caller.start(step, pid)
    time.sleep(seconds)
    early = process.poll() is None
    gone = kill(process)
    process.stdout.close()
    process.stderr.close()
    return ("killed" if early else "had ended") if gone else "cannot be killed"


def ask_kills(options, clock, caller, table):
    widths = (11, 5, 8, 17, 13, 13, 40, 12)
    it = Target(options, clock)
    print(f"the target uses {it.has}")
    try:
        times = usual_times(caller, it.pid)
        if times is None:
            row(("a step failed before the first kill",), widths)
            return False
        table.append({"usual_ms": {step: [round(1000 * each, 1) for each in both] for step, both in times.items()}})
        print("usual times, whole program and driver's call, ms:", json.dumps(table[-1]["usual_ms"]))
        row(("call", "at", "ms", "the caller", "state at once", "after 2 s", "the next calls", "data"), widths)
        for step in STEPS:
            for part in (20, 50, 90):
                if it is None:
                    it = Target(options, clock)
                if it.process.poll() is not None or any(caller.step(each, it.pid)["result"] != 0 for each in WAY_TO[step]):
                    row((step, f"{part} %", "", "not reached", caller.state(it.pid)), widths)
                    table.append({"call": step, "at": part, "caller": "not reached"})
                    it = None if it.end() else it
                    continue
                whole, inside = times[step]
                # The driver's call is the last part of the program's time, but for the state.
                at = whole - inside + inside * part / 100
                how = killed_at(caller, it.pid, step, at)
                at_once = caller.state(it.pid)
                later = at_once
                end = time.monotonic() + clock.limit(2)
                while later == at_once and time.monotonic() < end:
                    time.sleep(0.1)
                    later = caller.state(it.pid)
                # The next call: the same again where it has not happened, then the rest of the way.
                said = []
                if later not in ("failed", "unknown"):
                    again = caller.step(step, it.pid)
                    said.append(f"{step}: {again['name']}")
                    said.append(caller.back(it.pid))
                data = it.check()
                text = ", ".join(each.replace("CUDA_", "") for each in said if each)
                table.append({"call": step, "at": part, "ms": round(at * 1000, 1), "caller": how, "state": at_once, "later": later,
                              "next": text, "data": data})
                row((step, f"{part} %", round(at * 1000, 1), how, at_once, later, text, data), widths)
                if data != "right":
                    if not it.end():
                        row(("    the target cannot be killed",), widths)
                    it = None
    finally:
        if it is not None:
            it.end()
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--prefix", type=pathlib.Path, help="a bundle: amem-checkpoint is in its bin")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--seconds", type=float, default=150, help="for everything")
    parser.add_argument("--as-target", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_target:
        return target(options.device, int(options.gib * 1024) << 20)
    options.script = pathlib.Path(__file__).resolve()
    if options.prefix is None:
        parser.error("--prefix is missing")
    options.program = str(options.prefix.resolve() / "bin" / "amem-checkpoint")
    if not os.access(options.program, os.X_OK):
        parser.error(f"there is no {options.program}")
    if os.geteuid() != 0:
        parser.error("only root can be all these callers")
    for tool in ("setpriv", "unshare"):
        if shutil.which(tool) is None:
            parser.error(f"there is no {tool} (package util-linux)")
    reachable = subprocess.run([*as_user(ORDINARY), "sh", "-c", '"$0" --version && test -r "$1"', options.program, str(options.script)],
                               stdout=subprocess.DEVNULL, check=False, timeout=20)
    if reachable.returncode != 0:
        parser.error("ordinary users cannot reach the bundle: put it where all may read it")
    # Ten seconds are for the end: two targets and a caller that must be killed.
    clock, result = Clock(options.seconds - 10), {"program": "checkpoint_callers", "callers": [], "kills": [], "complete": False}
    caller = Caller(options, clock)
    # The kills have the time that the callers leave, at least half.
    callers_clock = Clock(options.seconds / 2)
    try:
        print(f"--- callers (target: {options.gib} GiB)")
        try:
            complete = ask_callers(options, callers_clock, Caller(options, callers_clock), result["callers"])
        except (OutOfTime, Wedged) as why:
            print("the callers' part is not complete:", str(why) or "out of time")
            complete = False
        print("--- the caller is killed in the middle of a step")
        result["complete"] = ask_kills(options, clock, caller, result["kills"]) and complete
    except (OutOfTime, Wedged) as why:
        print("not complete:", str(why) or "out of time")
    print(json.dumps(result), flush=True)
    return 0 if result["complete"] else 1


if __name__ == "__main__":
    sys.exit(main())
