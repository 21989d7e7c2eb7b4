"""Processes, broker and memory figures for the GPU tests: what every case needs and none should repeat.

Each case runs its programs in a place that cannot spoil the next one: processes carry a marker in their environment,
by which all of them are found and ended, also those that a launcher moved to sessions of their own.
"""

import contextlib
import ctypes
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

MIB = 1 << 20
MARKER = "AMEM_GPU_TEST_RUN"
SKIPPED = 77


class Failure(Exception):
    """A case failed; the text says why."""


class Skip(Exception):
    """A case cannot run here; the text says why."""


@contextlib.contextmanager
def time_limit(seconds, why):
    """A Failure that says why where what is done meanwhile takes longer. For the main thread, one at a time."""
    def over(_signal, _frame):
        raise Failure(why)
    signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def environment_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def start(argv, environment, marker, **streams):
    """A process with the marker, which all that it starts inherit."""
    return subprocess.Popen([str(a) for a in argv], env={**environment, MARKER: marker}, start_new_session=True, **streams)


def marked_processes(value):
    """Processes started with the marker, whatever became of their parents."""
    wanted = f"{MARKER}={value}".encode()
    return [int(p.name) for p in pathlib.Path("/proc").iterdir()
            if p.name.isdigit() and int(p.name) != os.getpid()
            and wanted in environment_of(p.name).split(b"\0")]


def end_processes(value):
    """Kills what is left of a run. Returns how many there were."""
    left = marked_processes(value)
    for _ in range(100):
        pids = marked_processes(value)
        if not pids:
            break
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    return len(left)


def tail(path, lines=80):
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


class Finished:
    """A program that ended: its status and what it wrote."""

    def __init__(self, code, out, err, seconds):
        self.code = code
        self.out = out
        self.err = err
        self.seconds = seconds

    def report(self):
        """The JSON object that the test programs print last."""
        for line in reversed(self.out.read_text(errors="replace").splitlines()):
            if line.startswith("{"):
                report = json.loads(line)
                if "skipped" in report:
                    raise Skip(report["skipped"])
                return report
        raise Failure(f"no report in {self.out.name}")


class Program:
    """A running program with its logs."""

    def __init__(self, argv, environment, out, err, marker):
        self.argv = argv
        self.out = out
        self.err = err
        self.marker = marker
        self.began = time.monotonic()
        with out.open("ab") as stdout, err.open("ab") as stderr:
            self.process = start(argv, environment, marker, stdout=stdout, stdin=subprocess.DEVNULL,
                                 stderr=subprocess.STDOUT if err == out else stderr)

    def running(self):
        return self.process.poll() is None

    def wait(self, limit):
        """Waits for the end and fails unless the status is 0."""
        finished = self.wait_any(limit)
        if finished.code == SKIPPED:
            raise Skip(tail(self.err, 1) or "the program skipped itself")
        if finished.code != 0:
            raise Failure(f"{pathlib.Path(self.argv[0]).name} ended with {finished.code}")
        return finished

    def wait_any(self, limit):
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.ask_for_stacks()
            raise Failure(f"still running after {limit:.0f} s: {' '.join(map(str, self.argv))}") from None
        return Finished(code, self.out, self.err, time.monotonic() - self.began)

    def ask_for_stacks(self):
        """Python's faulthandler prints all stacks on SIGABRT."""
        for pid in marked_processes(self.marker):
            with contextlib.suppress(OSError):
                if "python" in pathlib.Path(f"/proc/{pid}/comm").read_text():
                    os.kill(pid, signal.SIGABRT)
        time.sleep(2)


class NvmlMemory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Gpus:
    """The GPUs as the management library sees them, through ctypes: no package is needed, no CUDA touched. Where
    CUDA_VISIBLE_DEVICES has numbers or UUIDs, those that CUDA shows, in its order."""

    def __init__(self):
        self.handles = []
        with contextlib.suppress(OSError, AttributeError):
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
            count = ctypes.c_uint()
            if self.nvml.nvmlInit_v2() != 0 or self.nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
                return
            chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
            names = map(str, range(count.value)) if chosen is None else chosen.split(",")
            for name in names:
                handle = ctypes.c_void_p()
                found = (self.nvml.nvmlDeviceGetHandleByIndex_v2(int(name), ctypes.byref(handle)) if name.isdigit() else
                         self.nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle)))
                if found != 0:
                    break  # as CUDA does: what follows is not visible
                self.handles.append(handle)

    def count(self):
        return len(self.handles)

    def memory(self):
        """Of each GPU."""
        found = []
        for handle in self.handles:
            memory = NvmlMemory()
            result = self.nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
            if result != 0:
                raise Failure(f"nvmlDeviceGetMemoryInfo returned {result}")
            found.append(memory)
        return found

    def used_mib(self):
        """Memory in use per GPU, everybody's."""
        return [memory.used // MIB for memory in self.memory()]

    def total_mib(self):
        return [memory.total // MIB for memory in self.memory()]

    @staticmethod
    def processes():
        """The pids of the processes on the GPUs, as nvidia-smi lists them; None without nvidia-smi."""
        if shutil.which("nvidia-smi") is None:
            return None
        done = subprocess.run(["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        return {int(line) for line in done.stdout.split() if line.isdigit()}


class Broker:
    """amemd in a runtime directory of its own."""

    READY_S = 120
    READY_S_PER_GIB = 1  # more than twice what page-locked memory has taken

    def __init__(self, bundle, folder, pool, environment, *arguments):
        self.folder = folder
        folder.mkdir(parents=True)
        self.runtime = folder / "run"
        self.runtime.mkdir(mode=0o700)
        self.log = folder / "amemd.log"
        self.environment = {**environment, "AMEM_RUNTIME_DIR": str(self.runtime)}
        self.marker = f"{os.getpid()}.broker.{folder.name}"
        self.ctl = bundle / "bin" / "amemctl"
        self.argv = [bundle / "bin" / "amemd", "--runtime-dir", self.runtime, "--pool-size", pool, *arguments]
        self.serve()

    def serve(self):
        self.daemon = Program(self.argv, self.environment, self.log, self.log, self.marker)
        self.pid = self.daemon.process.pid

    def kill_and_start_again(self):
        """In the same directory. Returns the seconds until it answers."""
        self.daemon.process.kill()
        self.daemon.process.wait()
        began = time.monotonic()
        self.serve()
        why = None
        while time.monotonic() < began + self.READY_S:
            if not self.daemon.running():
                raise Failure(f"amemd ended with {self.daemon.process.returncode}:\n{tail(self.log)}")
            try:
                self.status()
                return time.monotonic() - began
            except Failure as failure:
                why = failure
            time.sleep(0.01)
        raise Failure(f"amemd did not serve again within {self.READY_S} s: {why}")

    def start(self, *arguments):
        """amemctl, not waited for."""
        return subprocess.Popen([str(self.ctl), *arguments], env=self.environment, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)

    def amemctl(self, *arguments, limit=60, prefix=()):
        done = subprocess.run([*prefix, str(self.ctl), *arguments], env=self.environment, text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=limit)
        if done.returncode != 0:
            raise Failure(f"amemctl {' '.join(arguments)} ended with {done.returncode}: "
                          f"{done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def status(self):
        return json.loads(self.amemctl("status", "--json"))

    def group(self, name):
        for group in self.status()["groups"]:
            if group["name"] == name:
                return group
        return None

    def ranks(self, group):
        return json.loads(self.amemctl("ranks", group, "--json"))["ranks"]

    def pool_gib(self):
        return self.status()["pool"]["configured_bytes"] >> 30

    def log_size(self):
        return self.log.stat().st_size

    def log_since(self, size):
        """What it has logged since its log had this size."""
        with self.log.open("rb") as log:
            log.seek(size)
            return log.read().decode(errors="replace")

    def wait_ready(self):
        """Until the whole pool is there. That has a deadline of its own: hundreds of GiB take longer than many a case may."""
        left = signal.alarm(0)
        try:
            return self.wait_for_pool()
        finally:
            signal.alarm(left)

    def wait_for_pool(self):
        begin = time.monotonic()
        limit = self.READY_S
        why = "it never answered"
        while time.monotonic() < begin + limit:
            if not self.daemon.running():
                raise Failure(f"amemd ended with {self.daemon.process.returncode}:\n{tail(self.log)}")
            try:
                pool = self.status()["pool"]
                reserve = pool["configured_bytes"] - pool.get("elastic_bytes", 0)  # an older amemd has none
                limit = self.READY_S + self.READY_S_PER_GIB * (reserve >> 30)
                if pool["error"]:
                    raise Failure(f"the pool is smaller than asked for: {pool['error']}")
                if pool["ready_bytes"] >= reserve and pool["configured_bytes"] > 0:
                    return self
                why = f"{pool['ready_bytes'] >> 20} of {reserve >> 20} MiB are ready"
            except Failure as failure:
                if "amemctl" not in str(failure):
                    raise
                why = str(failure)
            time.sleep(0.1)
        raise Failure(f"the pool was not ready within {limit} s: {why}")

    def wait_group(self, name, ranks, limit=90, programs=()):
        """Until a group has so many ranks."""
        end = time.monotonic() + limit
        while time.monotonic() < end:
            group = self.group(name)
            if group is not None and group["rank_count"] >= ranks:
                return group
            for program in programs:
                if not program.running():
                    raise Failure(f"{program.argv[0]} ended before group {name} was complete")
            time.sleep(0.1)
        raise Failure(f"group {name} did not reach {ranks} ranks within {limit} s")

    def healthy(self):
        """Running, answering, and nobody's memory left."""
        try:
            return self.daemon.running() and not any(
                d["brokered_bytes"] for d in self.status()["devices"])
        except (Failure, subprocess.TimeoutExpired, ValueError):
            return False

    def memory_kib(self):
        """VmRSS and its parts, from the kernel."""
        figures = {}
        for line in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("VmRSS", "VmHWM", "RssAnon", "RssFile", "RssShmem"):
                figures[name] = int(value.split()[0])
        return figures

    def stop(self):
        """Ends it with SIGTERM, which must do. Returns the exit status, None when it had to be killed."""
        code = None
        if self.daemon.running():
            self.daemon.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.daemon.process.wait(20)
        end_processes(self.marker)
        return code


def find_nccl():
    """The libnccl.so.2 that PyTorch uses: NVIDIA's Python package, else None for the loader's own choice."""
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("nvidia.nccl")
        for place in (spec.submodule_search_locations or []) if spec else []:
            library = pathlib.Path(place) / "lib" / "libnccl.so.2"
            if library.exists():
                return library
    return None


def has_torch():
    return importlib.util.find_spec("torch") is not None


def torchrun(ranks, script, *arguments):
    """argv for torchrun under this Python."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks,
            script, *arguments]
