#!/usr/bin/env python3
"""slime's and AReaL's sequence of calls on one GPU: train, sleep, update the engine's weights by CUDA IPC, wake, generate, sleep.

    weights_by_ipc.py --hook HOOK [--rounds 100] [--way slime|guest|alone]

What needs more GPUs is stood in for: the trainer and the engine are tensors whose every element is known in every round. HOOK: the
hook library of the distribution torch_memory_saver, which both processes preload, as those frameworks' launchers have it. The last
line is a report in JSON. Exit status: 0 all right, 1 a check failed.

    slime   the trainer sleeps while it sends: it reads its saved bytes, and sends from memory that is not brokered
    guest   the trainer sends from its own memory, which the other group has open for a moment (verl, OpenRLHF)
    alone   without amem: nothing leaves
"""

import argparse
import io
import json
import multiprocessing.connection
import os
import pathlib
import statistics
import subprocess
import sys
import time
from multiprocessing.reduction import ForkingPickler

TENSORS = 8
MIB = 1 << 20


class CheckFailed(Exception):
    """A result or a state is not what it must be."""


def check(right, text):
    if not right:
        raise CheckFailed(text)


def known(torch, count, which, turn, device):
    """The elements of one tensor in one round."""
    at = torch.arange(count, dtype=torch.int32, device=device)
    return at * 31 + (which * 1000003 + turn * 7919)


# ---- the two processes ------------------------------------------------------------------------------------------


class Role:
    def __init__(self, options):
        import torch

        self.torch, self.options = torch, options
        self.count = options.mib * MIB // 4 // TENSORS
        self.device = torch.device("cuda", 0)
        torch.cuda.set_device(self.device)
        self.ours = options.way != "alone"
        if self.ours:
            from torch_memory_saver import torch_memory_saver

            self.saver = torch_memory_saver

    def resident(self):
        if not self.ours:
            return 0
        import amem

        return sum(each.resident_bytes for each in amem.stats().brokered)

    def serve(self):
        with multiprocessing.connection.Connection(self.options.line) as line:
            line.send("ready")
            while True:
                method, arguments = line.recv()
                if method == "end":
                    return
                began = time.perf_counter()
                try:
                    answer = getattr(self, method)(*arguments)
                    self.torch.cuda.synchronize()
                    line.send((None, answer, (time.perf_counter() - began) * 1000))
                except Exception as error:  # noqa: BLE001: the controller says it
                    line.send((f"{type(self).__name__}.{method}: {type(error).__name__}: {error}", None, 0))


class Trainer(Role):
    """A model and three times as much of an optimizer's state, all of it outside of regions."""

    def __init__(self, options):
        super().__init__(options)
        dist = self.torch.distributed
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        self.turn = 0
        self.params = [known(self.torch, self.count, each, 0, self.device) for each in range(TENSORS)]
        self.state = [known(self.torch, 3 * self.count, 100 + each, 0, self.device) for each in range(TENSORS)]
        dist.all_reduce(self.torch.ones(1 << 20, device=self.device))

    def train(self):
        self.turn += 1
        for each in (*self.params, *self.state):
            each.add_(7919)
        total = self.torch.ones(1 << 20, device=self.device)
        self.torch.distributed.all_reduce(total)  # the process group is the one that there was
        check(bool((total == 1).all()), "the all-reduce is wrong")
        for which, each in enumerate(self.state):
            check(self.torch.equal(each, known(self.torch, 3 * self.count, 100 + which, self.turn, self.device)),
                  f"state {which} is wrong in round {self.turn}")

    def sleep(self):
        if self.ours:
            from amem import slime

            self.torch.cuda.empty_cache()
            slime._paused()
            self.saver.pause()
            check(self.resident() == 0, f"{self.resident()} bytes stay on the GPU")

    def wake_up(self):
        if self.ours:
            from amem import slime

            self.saver.resume()
            slime._here()

    def _send(self, tensor):
        """As torch sends it to another process of this node."""
        packed = io.BytesIO()
        ForkingPickler(packed).dump(tensor)
        return packed.getvalue()

    def bucket(self, which):
        """One tensor for the engine. It lives until the next call of dispose()."""
        if self.options.way != "slime":
            self.kept = self.params[which]
            return self._send(self.kept)
        with self.saver.disable():
            saved = self.saver.get_cpu_backup(self.params[which], zero_copy=True)
            check(saved is not None, "the trainer does not sleep")
            self.kept = saved.to(self.device)
        self.torch.cuda.synchronize()
        return self._send(self.kept)

    def dispose(self):
        self.kept = None
        self.torch.cuda.empty_cache()
        self.torch.cuda.ipc_collect()

    def before_update(self):
        if self.options.way == "slime":
            from amem import slime

            slime._here()

    def after_update(self):
        if self.options.way == "slime":
            from amem import slime

            slime._paused()


class Engine(Role):
    """Weights and a cache with the tags that SGLang gives them."""

    def __init__(self, options):
        super().__init__(options)
        import contextlib

        region = self.saver.region if self.ours else lambda **_: contextlib.nullcontext()
        with region(tag="weights", enable_cpu_backup=False):
            self.weights = [self.torch.empty(self.count, dtype=self.torch.int32, device=self.device) for _ in range(TENSORS)]
        with region(tag="kv_cache", enable_cpu_backup=False):
            self.cache = self.torch.zeros(options.cache_mib * MIB // 4, dtype=self.torch.int32, device=self.device)

    def release(self):
        if self.ours:
            for tag in ("kv_cache", "weights"):
                self.saver.pause(tag)
            check(self.resident() == 0, f"{self.resident()} bytes stay on the GPU")

    def resume(self, tag):
        if self.ours:
            self.saver.resume(tag)

    def load(self, which, packed):
        received = ForkingPickler.loads(packed)
        self.weights[which].copy_(received)
        self.torch.cuda.synchronize()
        del received
        self.torch.cuda.ipc_collect()

    def generate(self, turn):
        """A number that every element of the weights, and the cache, decide."""
        for which, each in enumerate(self.weights):
            check(self.torch.equal(each, known(self.torch, self.count, which, turn, self.device)),
                  f"weights {which} are wrong in round {turn}")
        self.cache.fill_(turn)
        return int(sum(each.sum(dtype=self.torch.int64) for each in self.weights) + self.cache[::4097].sum(dtype=self.torch.int64))


# ---- the controller ---------------------------------------------------------------------------------------------


class Remote:
    def __init__(self, role, options, variables):
        arguments = [f"--way={options.way}", f"--mib={options.mib}", f"--cache-mib={options.cache_mib}"]
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        if options.way != "alone":
            environment.update(variables, LD_PRELOAD=str(options.hook), AMEM_REQUIRED="1")
        self.line, theirs = multiprocessing.connection.Pipe()
        with theirs:  # the process's alone, so that its end is the line's
            self.process = subprocess.Popen([sys.executable, __file__, "--role", role, "--line", str(theirs.fileno()), *arguments],
                                            env=environment, stdout=sys.stderr, pass_fds=[theirs.fileno()])
        self.ms = {}
        check(self.line.recv() == "ready", f"the {role} did not start")

    def __call__(self, method, *arguments):
        self.line.send((method, arguments))
        error, answer, ms = self.line.recv()
        check(error is None, error)
        self.ms.setdefault(method, []).append(ms)
        return answer

    def end(self):
        self.line.send(("end", ()))
        check(self.process.wait(60) == 0, f"a process ended with {self.process.returncode}")


def control(options):
    trainer = Remote("trainer", options, {"AMEM_GROUP": "trainer", "TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "1",
                                          "NCCL_CUMEM_ENABLE": "1"})
    sleeps = options.way == "slime"
    if sleeps:
        trainer("sleep")
    engine = Remote("engine", options, {"AMEM_GROUP": "engine0"})
    sums, rounds_ms = [], []
    engine("release")
    for turn in range(1, options.rounds + 1):
        began = time.perf_counter()
        if sleeps or turn > 1:
            trainer("wake_up")
        trainer("train")
        if sleeps:
            trainer("sleep")
        engine("resume", "weights")
        trainer("before_update")
        for which in range(TENSORS):
            engine("load", which, trainer("bucket", which))
            trainer("dispose")
        trainer("after_update")
        if not sleeps:
            trainer("sleep")
        engine("resume", "kv_cache")
        sums.append(engine("generate", turn))
        engine("release")
        rounds_ms.append((time.perf_counter() - began) * 1000)
    times = {f"{role}.{name}": round(statistics.median(ms), 1) for role, remote in (("trainer", trainer), ("engine", engine))
             for name, ms in remote.ms.items()}
    trainer("wake_up")
    engine.end()
    trainer.end()
    print(json.dumps({"program": "weights_by_ipc", "way": options.way, "rounds": options.rounds, "sums": sums, "ms": times,
                      "round_ms": round(statistics.median(rounds_ms), 1), "trainer_mib": 4 * options.mib,
                      "engine_mib": options.mib + options.cache_mib}), flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--way", choices=("slime", "guest", "alone"), default="slime")
    parser.add_argument("--hook", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--mib", type=int, default=1024, help="of weights")
    parser.add_argument("--cache-mib", type=int, default=8192)
    parser.add_argument("--role", choices=("trainer", "engine"), help=argparse.SUPPRESS)
    parser.add_argument("--line", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        {"trainer": Trainer, "engine": Engine}[options.role](options).serve()
        return 0
    try:
        return control(options)
    except (CheckFailed, EOFError) as failure:
        print(f"FAILED: {str(failure) or 'a process has ended'}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
