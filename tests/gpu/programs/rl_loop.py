#!/usr/bin/env python3
"""A small RL loop: a model is trained in one group of processes and generates in another, on the same GPUs, in turns.

    rl_loop.py control --ranks 2            with a broker (AMEM_RUNTIME_DIR) and amemctl in PATH
    rl_loop.py control --ranks 2 --alone    without: both groups stay on the GPUs, and one of them computes at a time

The controller starts the other two roles by torchrun. Each iteration: swap, generate, swap, train on what was generated, hand
the weights over. docs/rl-loop.md tells the story. Outputs depend on nothing but the options, so both ways give the same ones.
"""

import argparse
import contextlib
import faulthandler
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib

import amem
import figures
import model as models
import torch_rank
from torch_rank import CheckFailed, Operator, Rank, check

import torch
import torch.distributed as dist

START_S, TURN_S = 120, 60
SHARED_MEMORY = pathlib.Path("/dev/shm")


# ---- turns ------------------------------------------------------------------------------------------------------


def wait_for(path, idle=lambda: None, seconds=None):
    """Until a file is there. No GPU call: the process may be paused meanwhile."""
    end = time.monotonic() + seconds if seconds else None
    while not path.exists():
        idle()
        check(end is None or time.monotonic() < end, f"{path.name} did not come within {seconds} s")
        time.sleep(0.005)


def write_whole(path, text):
    """A file that is complete as soon as it is there."""
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="ascii")
    new.rename(path)


class Turns:
    """A role's side: turn 0 is its start; then it waits for its next turn, and says when it has done it."""

    def __init__(self, folder, role, rank):
        self.folder, self.role, self.rank = folder, role, rank
        self.parent = os.getppid()

    def check_parent(self):
        check(os.getppid() == self.parent, "torchrun has ended")

    def done(self, number, **result):
        torch.cuda.synchronize()
        self.rank.barrier()
        if self.rank.rank == 0:
            write_whole(self.folder / f"{self.role}.{number}.done", json.dumps(result))

    def __iter__(self):
        number = 0
        while True:
            number += 1
            faulthandler.cancel_dump_traceback_later()  # it may take as long as the other role's turn
            wait_for(self.folder / f"{self.role}.{number}", self.check_parent)
            self.rank.arm_watchdog()
            if (self.folder / f"{self.role}.{number}").read_text() == "end":
                return
            yield number


def weights_file(folder, number):
    return folder / f"weights.{number}"


def tokens_file(folder, number):
    return folder / f"tokens.{number}"


def shape_of(options):
    return {"width": options.width, "layers": options.layers, "vocabulary": options.vocabulary,
            "length": options.length}


# ---- the two roles ----------------------------------------------------------------------------------------------


def hand_over(folder, number, model):
    """The weights of one rank, which are those of all, as a file in memory."""
    path = weights_file(folder, number)
    new = path.with_name(path.name + ".new")
    torch.save({name: tensor.cpu() for name, tensor in model.state_dict().items()}, new)
    new.rename(path)
    weights_file(folder, number - 1).unlink(missing_ok=True)


def train(options):
    """Data-parallel training with AdamW on the sequences that the other role has generated."""
    rank = Rank(options)
    model = models.seeded_model(shape_of(options), 1, rank.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=rank.device.type == "cuda")
    turns = Turns(options.folder, "train", rank)
    if rank.rank == 0:
        hand_over(options.folder, 0, model)
    torch_rank.verify_all_reduce(rank, 0)
    turns.done(0)
    for number in turns:
        tokens = torch.load(tokens_file(options.folder, number), map_location="cpu", weights_only=True)
        tokens = tokens[rank.rank].to(rank.device)
        for _ in range(options.steps):
            optimizer.zero_grad(set_to_none=True)
            loss = model.loss(tokens)
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= rank.world
            optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank.rank == 0:
            hand_over(options.folder, number, model)
        turns.done(number, loss=total.item() / rank.world)
    rank.end()


class Generator:
    """The model for generating, with a cache of keys and values that no pause has to keep."""

    def __init__(self, options, rank):
        self.options, self.rank = options, rank
        self.shape = shape_of(options)
        with amem.region("weights"):
            self.model = models.seeded_model(self.shape, 2, rank.device)
        with amem.region("kv_cache", keep=False):
            self.cache = models.Cache(self.shape, options.sequences, options.length, rank.device, torch.float32)

    def load(self, path):
        self.model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))

    @torch.no_grad()
    def generate(self, number):
        """Continues prompts to the full length; each token is drawn from the model's distribution."""
        seed = 1000 * number + self.rank.rank
        draw = torch.Generator(device=self.rank.device).manual_seed(seed)
        tokens = models.seeded_tokens(self.shape, self.options.sequences, self.options.prompt, seed, self.rank.device)
        scores = self.model.step(tokens, self.cache, 0)
        for at in range(self.options.prompt, self.options.length):
            chosen = torch.multinomial(torch.softmax(scores.float(), dim=-1), 1, generator=draw)
            tokens = torch.cat((tokens, chosen), dim=1)
            if at + 1 < self.options.length:
                scores = self.model.step(chosen, self.cache, at)
        return tokens


def rollout(options):
    """Generates with the weights of the training, and gathers what all ranks have generated."""
    rank = Rank(options)
    generator = Generator(options, rank)
    turns = Turns(options.folder, "rollout", rank)
    torch_rank.verify_all_reduce(rank, 1)
    turns.done(0, cache_mib=generator.cache.bytes() >> 20)
    for number in turns:
        generator.load(weights_file(options.folder, number - 1))
        mine = generator.generate(number)
        all_of_them = torch.empty((rank.world, *mine.shape), dtype=mine.dtype, device=rank.device)
        dist.all_gather_into_tensor(all_of_them.flatten(0, 1), mine)
        rank.agree(torch.equal(all_of_them[rank.rank], mine), "the tokens changed on their way through NCCL")
        if rank.rank == 0:
            torch.save(all_of_them.cpu(), tokens_file(options.folder, number))
            tokens_file(options.folder, number - 1).unlink(missing_ok=True)
        everything = all_of_them.flatten().tolist()
        turns.done(number, tokens=len(everything), checksum=zlib.crc32(repr(everything).encode()),
                   last=everything[-8:])
    rank.end()


# ---- the controller ---------------------------------------------------------------------------------------------


class Role:
    """A role's processes, as the controller sees them."""

    def __init__(self, name, options, folder):
        self.name, self.folder = name, folder
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
                   str(options.ranks), __file__, name, "--folder", str(folder)]
        for each in ("width", "layers", "vocabulary", "length", "prompt", "sequences", "steps"):
            command += [f"--{each}", str(getattr(options, each))]
        if not options.alone:
            command = ["amemctl", "run", "--group", name, "--scope", "heap", "--", *command]
        # The report alone goes to the controller's output.
        self.process = subprocess.Popen(command, stdout=sys.stderr, stdin=subprocess.DEVNULL, start_new_session=True)
        self.operator = Operator(name)

    def check_running(self):
        code = self.process.poll()
        check(code is None, f"{self.name} ended with {code}")

    def wait_done(self, number, seconds):
        path = self.folder / f"{self.name}.{number}.done"
        wait_for(path, self.check_running, seconds)
        return json.loads(path.read_text())

    def turn(self, number):
        write_whole(self.folder / f"{self.name}.{number}", "go")
        return self.wait_done(number, TURN_S)

    def check_paused(self):
        status = self.operator.group_status()
        check(status["state"] == "GROUP_STATE_PAUSED" and status["resident_bytes"] == 0,
              f"{self.name} is {status['state']} with {status['resident_bytes']} B resident")
        return status["allocated_bytes"] >> 20

    def finish(self, number):
        write_whole(self.folder / f"{self.name}.{number}", "end")
        check(self.process.wait(TURN_S) == 0, f"{self.name} ended with {self.process.returncode}")

    def kill(self):
        """torchrun passes SIGTERM on to its ranks; those that it leaves behind notice that it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


class Controller:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.swap_ms = []
        self.paused_mib = {}

    def swap(self, out, back):
        if self.options.alone:
            return
        begin = time.perf_counter()
        Operator.run("swap", out.name, back.name)
        self.swap_ms.append((time.perf_counter() - begin) * 1000)
        self.paused_mib[out.name] = out.check_paused()

    def run(self):
        with contextlib.ExitStack() as cleanup:
            training = Role("train", self.options, self.folder)
            cleanup.callback(training.kill)
            training.wait_done(0, START_S)
            if not self.options.alone:
                training.operator.run("pause", "train")  # rollout starts on empty GPUs
            generating = Role("rollout", self.options, self.folder)
            cleanup.callback(generating.kill)
            cache_mib = generating.wait_done(0, START_S)["cache_mib"]
            self.swap(generating, training)
            generated, losses = [], []
            for number in range(1, self.options.iterations + 1):
                self.swap(training, generating)
                generated.append(generating.turn(number))
                self.swap(generating, training)
                losses.append(training.turn(number)["loss"])
            training.finish(number + 1)
            if not self.options.alone:
                generating.operator.run("resume", "rollout")
            generating.finish(number + 1)
        report = {"program": "rl_loop", "ranks": self.options.ranks, "alone": self.options.alone, "losses": losses,
                  "generated": generated, "cache_mib": cache_mib, "paused_mib": self.paused_mib}
        if self.swap_ms:
            report["swap_ms"] = figures.describe(self.swap_ms)
        print(json.dumps(report), flush=True)


def control(options):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with the roles it has started
    # In memory where there is space for a few copies of the weights.
    roomy = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > 2 << 30
    with tempfile.TemporaryDirectory(prefix="amem-rl-", dir=SHARED_MEMORY if roomy else None) as folder:
        try:
            Controller(options, pathlib.Path(folder)).run()
        except CheckFailed as failure:
            print(f"FAILED: {failure}", file=sys.stderr)
            return 1
    return 0


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("role", choices=("control", "train", "rollout"))
    torch_rank.add_options(parser, pause="none")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--alone", action="store_true", help="without amem")
    parser.add_argument("--folder", type=pathlib.Path, help="where the roles meet")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--length", type=int, default=160, help="tokens of a sequence")
    parser.add_argument("--prompt", type=int, default=32, help="of these, given")
    parser.add_argument("--sequences", type=int, default=64, help="in a rank's batch")
    parser.add_argument("--steps", type=int, default=2, help="of the optimizer in an iteration")
    return parser.parse_args(arguments)


def main():
    options = parse(sys.argv[1:])
    if options.role == "control":
        return control(options)
    models.deterministic()
    return torch_rank.run_main(lambda: {"train": train, "rollout": rollout}[options.role](options))


if __name__ == "__main__":
    sys.exit(main())
