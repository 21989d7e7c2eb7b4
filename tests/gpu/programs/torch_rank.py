"""What the PyTorch programs of these tests share: a rank with its groups, memory figures, pauses and checks.

They are run by torchrun, one process per GPU, with the shim preloaded (amemctl run) or without. Exit status: 0 all right,
1 a check failed. A program that cannot run here ends with 0 and a report that says why: torchrun knows no status for it.
"""

import ctypes
import faulthandler
import gc
import json
import os
import random
import subprocess
import sys
import threading
import time

import figures

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
# Deterministic products; read when cuBLAS is first used.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.profiler  # noqa: E402

MIB = 1 << 20
SKIPPED = 77


class CheckFailed(Exception):
    """A result, a state or an amount of memory is not what it must be."""


class NotHere(Exception):
    """What is tested does not exist here; the text says what is missing. All ranks raise it or none."""


def check(right, text):
    if not right:
        raise CheckFailed(text)


def values(rank, start, count, seed, device):
    """Small integers that depend on rank, index and seed: exact in float32, and so are their sums."""
    i = torch.arange(start, start + count, device=device, dtype=torch.int32)
    return ((i * 31 + (i >> 7) * 5 + rank * (17 + (i & 63)) + seed * 7) % 23 - 11).to(torch.float32)


def sums(ranks, start, count, seed, device):
    total = values(0, start, count, seed, device)
    for rank in range(1, ranks):
        total += values(rank, start, count, seed, device)
    return total


def check_equal(what, got, wanted):
    """Every element."""
    if torch.equal(got, wanted):
        return
    wrong = (got != wanted).nonzero().flatten()
    at = int(wrong[0]) if wrong.numel() else -1
    raise CheckFailed(f"{what} of {got.numel()} elements: {wrong.numel()} wrong, the first is [{at}] = "
                      f"{float(got.flatten()[at])}, must be {float(wanted.flatten()[at])}")


def checksum(tensors):
    """One number for the bytes of many tensors: a block of 64 Ki words that moves or changes makes another one."""
    block = 1 << 16
    total = 0
    for tensor in tensors:
        words = tensor.detach().contiguous().flatten().view(torch.int32)
        whole = words.numel() // block * block
        parts = []
        if whole:
            parts += torch.sum(words[:whole].view(-1, block), dim=1, dtype=torch.int64).tolist()
        if whole < words.numel():
            parts.append(int(torch.sum(words[whole:], dtype=torch.int64)))
        total = figures.fold(total, parts)
    return total


def tensor_at(address, count, device):
    """A tensor of float32 in memory that somebody else keeps, at the beginning of a storage of its own."""
    storage = torch._C._construct_storage_from_data_pointer(address, device, 4 * count)
    return torch.empty(0, device=device).set_(storage, 0, (count,), (1,))


def verify_all_reduce(rank, seed):
    """A collective of all ranks whose every element is compared."""
    data = values(rank.rank, 0, 1 << 20, seed, rank.device)
    dist.all_reduce(data)
    check_equal("all-reduce", data, sums(rank.world, 0, 1 << 20, seed, rank.device))


def profiled(body):
    """How many events of which kind the profiler saw."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU,
                                            torch.profiler.ProfilerActivity.CUDA]) as profiler:
        body()
        torch.cuda.synchronize()
    return figures.count_kinds([event.name for event in profiler.events()])


class Runtime:
    """libcudart's own calls: PyTorch keeps what a program frees, and has no way to some others."""

    def __init__(self):
        self.library = ctypes.CDLL("libcudart.so.13")

    def call(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        check(result == 0, f"{name} returned {result}")

    def allocate(self, size):
        address = ctypes.c_void_p()
        result = self.library.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size))
        check(result == 0, f"cudaMalloc of {size} bytes returned {result}")
        return address


class Later:
    """A call in a thread of its own, to see whether it waits."""

    def __init__(self, call):
        self.result = None
        self.error = None
        self.ended = None  # when
        self.thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self.thread.start()

    def _run(self, call):
        try:
            self.result = call()
        except BaseException as error:  # noqa: BLE001: told to whoever waits
            self.error = error
        self.ended = time.monotonic()

    def waits(self, seconds=0.5):
        self.thread.join(seconds)
        return self.thread.is_alive()

    def wait(self, what, seconds=20):
        self.thread.join(seconds)
        check(not self.thread.is_alive(), f"{what} has not ended after {seconds} s")
        check(self.error is None, f"{what}: {self.error!r}")
        return self.result


def eventually(ask, wanted, seconds=5):
    """The answer when it has become that, or after so long."""
    end = time.monotonic() + seconds
    while (answer := ask()) != wanted and time.monotonic() < end:
        time.sleep(0.05)
    return answer


class Operator:
    """amemctl, as an operator would call it."""

    def __init__(self, group):
        self.group = group

    @staticmethod
    def call(*arguments):
        """The finished process, whatever its status."""
        environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        return subprocess.run(["amemctl", *arguments], env=environment, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, check=False)

    @staticmethod
    def said(done):
        return done.stderr.strip() or done.stdout.strip()

    @classmethod
    def run(cls, *arguments):
        done = cls.call(*arguments)
        check(done.returncode == 0, f"amemctl {' '.join(arguments)} failed: {cls.said(done)}")
        return done.stdout

    def group_status(self):
        group = figures.group_of(json.loads(self.run("status", "--json")), self.group)
        check(group is not None, f"the broker knows no group {self.group}")
        return group

    def resident(self, uuid):
        return figures.resident_on(self.group_status(), uuid)


class Pauses:
    """Pauses and resumes the group and notes how long each took.

    `how`: "inside" (amem.pause in every rank), "outside" (rank 0 runs amemctl), "both" (in turns, amemctl first), "none".
    """

    def __init__(self, how, group, host_group):
        self.how = how
        self.operator = Operator(group)
        self.host_group = host_group
        self.ms = {"pause": [], "resume": []}

    def way(self, cycle):
        if self.how != "both":
            return self.how
        return "outside" if cycle % 2 == 1 else "inside"

    def from_inside(self, verb, tags):
        import amem
        {"pause": amem.pause, "resume": amem.resume}[verb](tags)

    def together(self):
        """All ranks are here. Not dist.barrier(), which since PyTorch 2.15 takes the lock of PyTorch's allocator, also with Gloo: a thread
        that waits at the gate may have that."""
        dist.all_reduce(torch.zeros(1), group=self.host_group)

    def do(self, verb, cycle=1, tags=None):
        """`tags`: a list, or None for everything."""
        self.together()
        begin = time.perf_counter()
        if self.way(cycle) == "inside":
            self.from_inside(verb, tags)
        elif dist.get_rank() == 0:
            chosen = [word for tag in tags or () for word in ("--tag", tag)]
            self.operator.run(verb, self.operator.group, *chosen)
        self.ms[verb].append((time.perf_counter() - begin) * 1000)
        dist.barrier(group=self.host_group)

    def summary(self):
        return {f"{verb}_ms": figures.describe(times) for verb, times in self.ms.items() if times}


class Memory:
    """Memory in use on this rank's device: the driver's figure, the management library's, the broker's."""

    def __init__(self, device, tolerance_mib):
        self.device = device
        self.tolerance = tolerance_mib * MIB
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        self.uuid = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
        self.nvml = None
        try:
            import pynvml
            pynvml.nvmlInit()
            self.handle = pynvml.nvmlDeviceGetHandleByUUID(self.uuid)
            self.nvml = pynvml
        except Exception as error:  # noqa: BLE001: any reason means that this figure is missing
            print(f"no management library: {error}", file=sys.stderr)
        self.figures = {}
        self.paused_most = 0

    def used(self):
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free

    def note(self, name):
        self.figures[name] = round(self.used() / MIB, 1)
        if self.nvml is not None:
            nvml_used = self.nvml.nvmlDeviceGetMemoryInfo(self.handle).used
            self.figures[f"{name}_nvml"] = round(nvml_used / MIB, 1)

    def check_paused(self, running, brokered):
        """What the pause freed is what the broker says it held."""
        used = self.used()
        freed = running - used
        self.paused_most = max(self.paused_most, used)
        self.figures["freed"] = round(freed / MIB, 1)
        self.figures["brokered"] = round(brokered / MIB, 1)
        self.note("paused")
        check(brokered > 0, f"the broker held nothing on {self.uuid}: is the shim in use?")
        check(abs(freed - brokered) <= self.tolerance,
              f"the driver says that the pause freed {freed >> 20} MiB, the broker that it was {brokered >> 20} MiB")

    def check_contexts(self, slack_mib=0):
        """With everything given back, no less is in use than was while paused: contexts, and the kernels in them.
        `slack_mib`: what else of the driver's own has gone since."""
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.note("contexts")
        if self.paused_most == 0:
            return
        more = self.paused_most - self.used()
        self.figures["beyond_contexts"] = round(more / MIB, 1)
        check(more <= self.tolerance + slack_mib * MIB,
              f"{self.paused_most >> 20} MiB were in use while paused, {self.used() >> 20} MiB are with everything freed")


def own_device():
    """Where there are fewer GPUs than ranks and SHARE_GPUS=1, ranks share them. NCCL, which has not been used yet, refuses two
    ranks of a host on one GPU, so each is a host of its own then."""
    local, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if int(os.environ["LOCAL_WORLD_SIZE"]) > count:
        os.environ["NCCL_HOSTID"] = f"rank{local}"
    return torch.device("cuda", local % count)


def missing_gpus():
    """Why this rank cannot run here; empty: it can."""
    wanted, count = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    shared = count > 0 and os.environ.get("SHARE_GPUS") == "1"
    return "" if wanted <= count or shared else f"{count} GPUs, {wanted} needed"


class Rank:
    """One process of a torchrun program, its device and its groups. `options` has those of add_options()."""

    def __init__(self, options, pg_options=None):
        self.options = options
        self.device = own_device()
        torch.cuda.set_device(self.device)
        self.memory = Memory(self.device, options.tolerance_mib)
        dist.init_process_group("nccl", pg_options=pg_options)
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        random.seed(self.rank)
        self.host_group = dist.new_group(backend="gloo")
        self.pauses = Pauses(options.pause, options.group, self.host_group)
        self.operator = self.pauses.operator
        self.saved_bytes = []  # of the whole group, by pause
        self.arm_watchdog()

    def arm_watchdog(self):
        """Prints every thread's Python stack and ends the process when it is not called again in time."""
        faulthandler.dump_traceback_later(self.options.watchdog, exit=True)

    def barrier(self):
        dist.barrier(group=self.host_group)

    def gather(self, value):
        """Everybody's value, without the GPU."""
        all_of_them = [None] * self.world
        dist.all_gather_object(all_of_them, value, group=self.host_group)
        return all_of_them

    def agree(self, right, text):
        """check() of all ranks: one that is wrong ends them all, instead of leaving the others in a barrier."""
        failures = [each for each in self.gather(None if right else f"rank {self.rank}: {text}") if each]
        check(not failures, "; ".join(failures[:2]))

    def all_here(self, missing):
        """NotHere in all ranks, when some rank says why; "": nothing is missing."""
        reasons = [each for each in self.gather(missing) if each]
        if reasons:
            raise NotHere(reasons[0])

    def pause(self, cycle, still=True):
        """Everything, and checks that it is paused. `still`: nothing is on the device then anyway."""
        self.arm_watchdog()
        if still:
            torch.cuda.synchronize()
        self.barrier()
        running = self.memory.used()
        brokered = self.operator.resident(self.memory.uuid)
        if cycle == 1:
            self.memory.note("running")
        self.pauses.do("pause", cycle)
        status = self.operator.group_status()
        check(status["state"] == "GROUP_STATE_PAUSED" and status["resident_bytes"] == 0,
              f"paused, but the broker says {status['state']}, {status['resident_bytes']} B resident")
        self.saved_bytes.append(status["saved_bytes"])
        if self.options.memory_checks:
            self.memory.check_paused(running, brokered)
        self.barrier()

    def resume(self, cycle):
        self.pauses.do("resume", cycle)

    def cycle(self, cycle, still=True):
        if self.options.pause != "none":
            self.pause(cycle, still)
            self.resume(cycle)

    def unbrokered_mib(self):
        """What the group's ranks hold that stays through a pause; nothing where no broker is in use."""
        if self.pauses.how == "none":
            return 0
        return self.operator.group_status()["unbrokered_bytes"] >> 20

    def report(self, program, **more):
        """Rank 0 prints it as the last line."""
        if self.rank == 0:
            print(json.dumps({
                "program": program, "torch": torch.__version__,
                "nccl": loaded_nccl(), "ranks": self.world,
                "pause": self.options.pause, **self.pauses.summary(), "saved_bytes": self.saved_bytes,
                "device_mib": self.memory.figures, **more}), flush=True)

    def end(self):
        torch.cuda.synchronize()
        self.barrier()
        dist.destroy_process_group()
        faulthandler.cancel_dump_traceback_later()


def loaded_nccl():
    """The version of the library that is loaded. torch.cuda.nccl.version() is the one that PyTorch was built for."""
    version = ctypes.c_int()
    ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(version))
    return f"{version.value // 10000}.{version.value // 100 % 100}.{version.value % 100}"


class Symmetric:
    """PyTorch's symmetric memory with the NCCL backend. Before any other use of symmetric memory."""

    used = False

    def __init__(self, rank):
        Symmetric.used = True
        self.device = rank.device
        self.held = []
        try:
            import torch.distributed._symmetric_memory as memory
            memory.set_backend("NCCL")
        except (ImportError, RuntimeError) as error:
            raise NotHere(f"PyTorch {torch.__version__} has no symmetric memory by NCCL: {error}") from error
        built, loaded = torch.cuda.nccl.version(), loaded_nccl()
        if built < (2, 29) and tuple(map(int, loaded.split("."))) >= (2, 29):
            # Since 2.29 ncclDevCommCreate refuses requirements that its own macro has not initialized.
            raise NotHere(f"PyTorch is built for NCCL {'.'.join(map(str, built))}: NCCL {loaded} makes it no device communicator")
        self.memory = memory
        dist.all_reduce(torch.ones(1, device=rank.device))  # now there is a communicator

    def allocate(self, count, group=None):
        """A tensor of float32 that the ranks of the group (all) know; they allocate in the same order."""
        tensor = self.memory.empty(count, dtype=torch.float32, device=self.device)
        self.held.append(self.memory.rendezvous(tensor, group or dist.group.WORLD))
        return tensor


def add_options(parser, cycles=6, pause="both"):
    parser.add_argument("--cycles", type=int, default=cycles)
    parser.add_argument("--pause", choices=("inside", "outside", "both", "none"), default=pause)
    parser.add_argument("--group", default=os.environ.get("AMEM_GROUP", ""))
    parser.add_argument("--watchdog", type=float, default=90, help="seconds for one cycle until it is a hang")
    parser.add_argument("--tolerance-mib", type=int, default=16)
    parser.add_argument("--no-memory-checks", dest="memory_checks", action="store_false",
                        help="where others use the GPUs too")


def run_main(body):
    """Runs a program's body and gives its exit status."""
    faulthandler.enable()
    try:
        if missing := missing_gpus():
            raise NotHere(missing)
        body()
        if Symmetric.used:  # at exit PyTorch would destroy NCCL's device communicator after its communicator
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
    except NotHere as missing:
        if int(os.environ.get("RANK", "0")) == 0:
            print(json.dumps({"skipped": str(missing)}), flush=True)
        os._exit(0)
    except Exception as failure:  # noqa: BLE001: peers wait for this rank, so it must end now, whatever it is
        if isinstance(failure, CheckFailed):
            print(f"FAILED rank {os.environ.get('RANK')}: {failure}", file=sys.stderr, flush=True)
        else:
            import traceback
            print(f"FAILED rank {os.environ.get('RANK')}:", file=sys.stderr)
            traceback.print_exc()
            sys.stderr.flush()
        # Without destructors: they would wait for peers that this failure has left behind.
        os._exit(1)
    return 0
