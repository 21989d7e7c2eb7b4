#!/usr/bin/env python3
"""Kills at random instants: a simulated node with two jobs whose ranks verify every byte. See --help.

A round: a pause, a resume or a swap begins, and at a random instant of it the broker, its holder or a rank is killed, or a rank is
stopped for a while. Then there is a broker again, and each group must come to rest within its deadlines. Every group that runs
verifies all its bytes and does collectives. A seed makes the same choices again, at the same times as far as the machine does.
"""
import argparse
import os
import random
import signal
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
from sim_node import eventually  # noqa: E402
from sim_node.broker import Broker  # noqa: E402
from sim_node.child import Died  # noqa: E402
from sim_node.node import Build, Node  # noqa: E402

GROUPS = ("train", "rollout")
KINDS = ("broker", "holder", "rank", "stop")
OPERATION = 0.25  # seconds that an operation takes here, and a little more


class Failure(Exception):
    pass


class Chaos:
    def __init__(self, build, seed, ranks, allocations, kinds):
        self.random = random.Random(seed)
        self.logs = tempfile.mkdtemp(prefix="amem-chaos-", dir="/tmp")
        self.node = Node(Build(build), self.logs)
        self.ranks, self.allocations, self.kinds = ranks, allocations, kinds
        self.jobs = {}
        self.counts = dict.fromkeys(kinds, 0)
        self.back = []  # seconds from a broker's start until it serves
        self.made = 0
        self.told = "the start"

    def begin(self):
        self.start_broker()
        for name in GROUPS:
            self.start_job(name)
        self.settled()

    # ---- the parts ----
    def start_broker(self):
        began = time.monotonic()
        self.made += 1
        broker = self.node.adopt(Broker(self.node, ("--pool-size", "64MiB"), name=f"amemd-{self.made}"))
        self.node.broker = broker

        def serves():
            if not broker.alive():
                raise Failure(f"amemd ended with {broker.wait()}: {broker.output()[-2000:]}")
            return os.path.exists(f"{self.node.runtime_dir}/control.sock") and self.node.ctl.reachable()

        eventually(serves, what="amemd serves")
        return time.monotonic() - began

    def start_job(self, name):
        self.made += 1
        job = self.node.job(name=f"{name}-{self.made}", group=name, ranks=self.ranks, allocations=self.allocations,
                            env={"AMEM_RECONNECT": "60s"})
        job.ask("rewrite")
        self.jobs[name] = job

    def states(self):
        groups = {group["name"]: group for group in self.node.ctl.status()["groups"]}
        for group in groups.values():
            group["state"] = group["state"].rpartition("_")[2].lower()
        return groups

    def settled(self):
        """Every group that has ranks is at rest and whole."""
        def at_rest():
            groups = self.states()
            return all(name in groups and groups[name]["state"] in ("running", "paused") and self.whole(name)
                       for name in self.jobs)

        try:
            eventually(at_rest, deadline=40, what="all groups are at rest")
        except Exception as error:
            raise Failure(f"{error}: {self.states()}") from error
        return self.states()

    def whole(self, name):
        ranks = self.node.ctl.ranks(name)
        return len(ranks) == len(self.jobs[name].ranks) and not any(rank["phase"] for rank in ranks)

    # ---- a round ----
    def operation(self, groups):
        """The words of an operation that can begin now."""
        running = [name for name, group in groups.items() if group["state"] == "running"]
        paused = [name for name, group in groups.items() if group["state"] == "paused"]
        choices = [("pause", name) for name in running] + [("resume", name) for name in paused] * 2
        if len(running) == 1 and len(paused) == 1:
            choices += [("swap", running[0], paused[0])] * 3
        return self.random.choice(choices)

    def round(self):
        kind = self.random.choice(self.kinds)
        groups = self.states()
        words = self.operation(groups)
        moment = self.random.uniform(0, OPERATION)
        self.told = f"{' '.join(words)}, {kind} after {moment * 1000:.1f} ms"
        operation = self.node.ctl.start(*words)
        time.sleep(moment)
        self.counts[kind] += 1
        getattr(self, kind)(words)
        operation.finish(120)
        groups = self.settled()
        self.check(groups)

    def broker(self, _words):
        self.node.broker.kill()
        self.node.broker.wait()
        self.back.append(self.start_broker())

    def holder(self, _words):
        """amemd finds or makes another, and gives it everything: the next kill shows it."""
        before = self.node.holder_pid()
        os.kill(before, signal.SIGKILL)
        self.node.broker.wait_for("another holder has everything")

    def rank(self, words):
        name = words[-1]
        self.random.choice(self.jobs[name].ranks).kill()
        self.replace(name)

    def stop(self, words):
        rank = self.random.choice(self.jobs[words[-1]].ranks)
        rank.signal(signal.SIGSTOP)
        time.sleep(self.random.uniform(0, OPERATION))
        rank.signal(signal.SIGCONT)

    def replace(self, name):
        """The others of a job cannot go on without one: the launcher ends them, and begins anew."""
        time.sleep(self.random.uniform(0, OPERATION))
        self.jobs[name].kill()
        del self.jobs[name]
        eventually(lambda: name not in self.states(), deadline=30, what=f"{name} is gone")
        self.settled()
        for other, group in self.states().items():
            if group["state"] == "running" and other != name:
                self.node.ctl("pause", other)
        self.start_job(name)

    def check(self, groups):
        for name, job in self.jobs.items():
            if groups[name]["state"] != "running":
                continue
            for rank, answer in zip(job.ranks, job.ask("verify", 60)):
                if answer["wrong"] or not answer["bytes"]:
                    raise Failure(f"{rank.name}: {answer['wrong']} of {answer['bytes']} bytes are wrong")
            job.step(1)
            job.ask("verify", 60)
        if all(group["state"] == "running" for group in groups.values()):
            used = self.node.ctl.status()["pool"]["used_bytes"]
            if used:
                raise Failure(f"all run, and {used} bytes of the pool are used")

    def end(self):
        for name, group in self.settled().items():
            if group["state"] == "paused":
                for other, each in self.states().items():
                    if each["state"] == "running":
                        self.node.ctl("pause", other)
                self.node.ctl("resume", name)
                self.check(self.settled())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build-dir", default="build/release")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, help="instead of seconds")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--allocations", type=int, default=16)
    parser.add_argument("--kinds", default=",".join(KINDS), help="of " + ", ".join(KINDS))
    arguments = parser.parse_args()
    if unknown := set(arguments.kinds.split(",")) - set(KINDS):
        parser.error(f"no such kinds: {', '.join(sorted(unknown))}")
    chaos = Chaos(arguments.build_dir, arguments.seed, arguments.ranks, arguments.allocations, arguments.kinds.split(","))
    print(f"chaos: seed {arguments.seed}, logs in {chaos.logs}", flush=True)
    began, rounds = time.monotonic(), 0
    try:
        chaos.begin()
        while (rounds < arguments.rounds) if arguments.rounds else (time.monotonic() - began < arguments.seconds):
            chaos.round()
            rounds += 1
            if rounds % 50 == 0:
                print(f"chaos: {rounds} rounds in {time.monotonic() - began:.0f} s", flush=True)
        chaos.end()
    except (Failure, Died, TimeoutError, AssertionError) as error:
        print(f"chaos: round {rounds} ({chaos.told}): {error}", flush=True)
        return 1
    finally:
        for job in chaos.jobs.values():
            job.kill()
        chaos.node.close()
    what = ", ".join(f"{count} × {kind}" for kind, count in chaos.counts.items())
    back = sorted(chaos.back)
    print(f"chaos: {rounds} rounds in {time.monotonic() - began:.0f} s: {what}; no byte lost, no rank hung" +
          (f"; a broker serves after {back[len(back) // 2]:.2f} s (median), {back[-1]:.2f} s (longest)" if back else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
