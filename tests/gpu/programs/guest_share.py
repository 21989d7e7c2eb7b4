#!/usr/bin/env python3
"""Tensors of one group, opened by a rank of another, between swaps: as a trainer hands its weights to an engine.

Two processes on one GPU, in the groups train and rollout, with all memory brokered (scope heap). train sends tensors as
torch.multiprocessing does, which is by CUDA IPC handles; rollout reads them, writes them and drops them, and the groups
take turns. Run the controller, with a broker and amemctl in the PATH:

    AMEM_RUNTIME_DIR=... python3 guest_share.py control

Exit status: torch_rank.py.
"""

import argparse
import contextlib
import gc
import json
import multiprocessing.connection
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import torch_rank
from torch_rank import CheckFailed, MIB, Operator, check, check_equal, eventually

import torch
import torch.multiprocessing  # noqa: F401: from here on connections send CUDA tensors as handles

LIMIT_S = 60  # for the other end
COUNTS = (1000, 1 << 18, 64 * MIB // 4)  # small ones share a segment of torch's, the last has its own
GUEST_WROTE = 500


def values(count, seed):
    return torch_rank.values(1, 0, count, seed, torch.device("cuda", 0))


# ---- the ranks --------------------------------------------------------------------------------------------------


class Role:
    """Obeys the controller. `peer`: the connection between the two ranks."""

    def __init__(self, options):
        torch.cuda.set_device(0)
        self.peer = None
        self.folder = options.folder
        self.tensors = []

    def order_fill(self, seed):
        for index, tensor in enumerate(self.tensors):
            tensor.copy_(values(tensor.numel(), seed + index))

    def order_check(self, seed):
        for index, tensor in enumerate(self.tensors):
            check_equal(f"tensor {index}", tensor, values(tensor.numel(), seed + index))

    def obey(self, control):
        while True:
            order, *arguments = control.recv()
            if order == "end":
                return control.send("ok")
            getattr(self, f"order_{order}")(*arguments)
            torch.cuda.synchronize()
            control.send("ok")


class Train(Role):
    def order_begin(self):
        self.tensors = [values(count, 0) for count in COUNTS]
        with multiprocessing.connection.Listener(str(self.folder / "tensors"), "AF_UNIX") as listener:
            self.peer = listener.accept()

    def order_send(self):
        self.peer.send(self.tensors)

    def order_collect(self):
        """What receivers have dropped is let go of."""
        gc.collect()
        torch.cuda.ipc_collect()


class Rollout(Role):
    def order_begin(self):
        self.own = [values(count, 7) for count in COUNTS]
        meeting = self.folder / "tensors"
        check(eventually(meeting.exists, True), "train does not listen")
        self.peer = multiprocessing.connection.Client(str(meeting), "AF_UNIX")

    def order_take(self):
        check(self.peer.poll(LIMIT_S), "no tensors came")
        self.tensors = self.peer.recv()

    def order_drop(self):
        self.tensors = []
        gc.collect()
        torch.cuda.ipc_collect()

    def order_check_own(self):
        for tensor in self.own:
            check_equal("a tensor of its own", tensor, values(tensor.numel(), 7))


def rank(options):
    with multiprocessing.connection.Client(str(options.folder / options.role), "AF_UNIX") as control:
        try:
            (Train if options.role == "train" else Rollout)(options).obey(control)
        except BaseException as error:  # noqa: BLE001: told to the controller, which fails then
            control.send(f"{type(error).__name__}: {error}")
            raise


# ---- the controller ---------------------------------------------------------------------------------------------


class Rank:
    """One of the two, as the controller sees it."""

    def __init__(self, name, folder):
        self.name = name
        self.listener = multiprocessing.connection.Listener(str(folder / name), "AF_UNIX")
        argv = ["amemctl", "run", "--group", name, "--scope", "heap", "--required", "--", sys.executable, __file__, name,
                "--folder", str(folder)]
        self.process = subprocess.Popen(argv, stdout=sys.stderr, stdin=subprocess.DEVNULL, start_new_session=True)
        self.link = None

    def connect(self):
        self.listener._listener._socket.settimeout(LIMIT_S)
        self.link = self.listener.accept()

    def order(self, *order):
        self.link.send(order)
        self.answer(order[0])

    def answer(self, what):
        try:
            check(self.link.poll(LIMIT_S), f"{self.name}: {what}: no answer within {LIMIT_S} s")
            answer = self.link.recv()
        except EOFError:
            answer = f"it ended with {self.process.wait(LIMIT_S)}"
        check(answer == "ok", f"{self.name}: {what}: {answer}")

    def end(self):
        self.order("end")
        check(self.process.wait(LIMIT_S) == 0, f"{self.name} ended with {self.process.returncode}")

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.listener.close()


class Controller:
    def __init__(self, options, train, rollout):
        self.options, self.train, self.rollout = options, train, rollout
        self.seed = 1

    @staticmethod
    def node():
        return json.loads(Operator.run("status", "--json"))

    def group(self, name):
        return Operator(name).group_status()

    def device_bytes(self):
        return [device["brokered_bytes"] for device in self.node()["devices"]]

    def descriptors(self):
        """Of the broker, those that stand for memory."""
        return len(os.listdir(f"/proc/{self.node()['pid']}/fd"))

    def open(self):
        self.train.order("fill", self.seed)
        self.train.link.send(("send",))
        self.rollout.order("take")
        self.train.answer("send")
        self.rollout.order("check", self.seed)

    def close(self):
        """The guest has written: the owner reads it in its own tensors."""
        self.rollout.order("fill", self.seed + GUEST_WROTE)
        self.rollout.order("drop")
        self.train.order("collect")
        self.train.order("check", self.seed + GUEST_WROTE)
        self.seed += 1

    def turns(self):
        """Each of them alone on the GPU, once."""
        Operator.run("pause", "rollout")
        Operator.run("swap", "train", "rollout", "--guests", "refuse")
        status = self.group("train")
        check(status["resident_bytes"] == 0, f"{status['resident_bytes']} B of train are resident while it is paused")
        self.rollout.order("check_own")
        Operator.run("swap", "rollout", "train")
        self.train.order("check", self.seed - 1 + GUEST_WROTE)
        Operator.run("resume", "rollout")
        self.rollout.order("check_own")

    def held_open(self):
        """A pause of each while the guest has the tensors: what it has open stays, and its bytes are right."""
        self.open()
        refused = Operator.call("pause", "train", "--guests", "refuse")
        check(refused.returncode != 0 and "rollout" in refused.stderr, f"not refused: {Operator.said(refused)}")
        last = json.loads(Operator.run("pause", "train", "--json").splitlines()[-1])
        stays = sum(guest["bytes"] for guest in last["guests"])
        check(stays >= 4 * sum(COUNTS), f"{stays} B stay for guests: {last['guests']}")
        self.rollout.order("check", self.seed)
        Operator.run("pause", "rollout")
        Operator.run("resume", "rollout")
        self.rollout.order("check", self.seed)
        Operator.run("resume", "train")
        self.train.order("check", self.seed)
        self.close()
        return stays

    def run(self):
        for each in (self.train, self.rollout):
            each.connect()
        self.train.link.send(("begin",))
        self.rollout.order("begin")
        self.train.answer("begin")
        self.open()
        self.close()
        self.turns()
        before, descriptors = self.device_bytes(), self.descriptors()
        swaps = 0
        for number in range(1, self.options.times + 1):
            self.open()
            self.close()
            if number % self.options.every == 0:
                self.turns()
                swaps += 2
        stays = self.held_open()
        self.turns()
        check(eventually(self.device_bytes, before) == before, f"brokered now {self.device_bytes()}, before {before}")
        left = self.descriptors()
        check(left <= descriptors + 8, f"the broker has {left} descriptors, before {descriptors}")  # gRPC's come and go
        for name in ("train", "rollout"):
            status = self.group(name)
            check(not status["guests"] and not status["opened"], f"{name}: {status['guests']} {status['opened']}")
        for each in (self.rollout, self.train):
            each.end()
        print(json.dumps({"program": "guest_share", "tensors": len(COUNTS), "times": self.options.times, "swaps": swaps,
                          "stayed_mib": stays >> 20}), flush=True)


def control(options):
    if not torch.cuda.is_available():
        print(json.dumps({"skipped": "no GPU"}))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with the ranks it has started
    with tempfile.TemporaryDirectory(prefix="amem-guests-") as folder, contextlib.ExitStack() as cleanup:
        ranks = []
        for name in ("train", "rollout"):
            ranks.append(Rank(name, pathlib.Path(folder)))
            cleanup.callback(ranks[-1].kill)
        try:
            Controller(options, *ranks).run()
        except CheckFailed as failure:
            print(f"FAILED: {failure}", file=sys.stderr)
            return 1
    return 0


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("role", choices=("control", "train", "rollout"))
    parser.add_argument("--times", type=int, default=100, help="how often the tensors are opened")
    parser.add_argument("--every", type=int, default=10, help="so often the groups take turns")
    parser.add_argument("--folder", type=pathlib.Path, help="where they meet")
    return parser.parse_args(arguments)


def main():
    options = parse(sys.argv[1:])
    if options.role == "control":
        return control(options)
    rank(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
