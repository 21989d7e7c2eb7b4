#!/usr/bin/env python3
"""Kills and failures at random instants: a simulated node with two groups whose ranks verify every byte. See --help.

A round: a pause, a resume or a swap begins, of everything or of chosen tags, with bytes kept or dropped. At a random instant of it the
broker, its holder or a rank is killed, or a rank is stopped for a while, or a driver call of the broker or of a rank fails. Then there is a
broker again, and each group must come to rest within its deadlines. Every group that runs verifies all its bytes and does collectives:
what was dropped is zero, everything else is what it was. A seed makes the same choices again, at the same times as far as the
machine does.
"""
import argparse
import os
import random
import signal
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
from party import DISCARD, KEEP, TAGS, Failure, Party, View  # noqa: E402
from sim_node import ctl, eventually  # noqa: E402
from sim_node.broker import Broker  # noqa: E402
from sim_node.child import Died  # noqa: E402
from sim_node.node import Build, Node  # noqa: E402

GROUPS = ("train", "rollout")
KINDS = ("broker", "holder", "rank", "stop", "fault", "allocate")
OPERATION = 0.25  # seconds that an operation takes here, and a little more

# Driver calls that are made for an operation or an allocation.
BROKERS_CALLS = ("cuMemCreate", "cuMemExportToShareableHandle", "cuMemRelease")
RANKS_CALLS = ("cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuMemHostRegister",
               "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuMemsetD8Async", "cuLaunchKernel", "cuStreamSynchronize", "cuStreamQuery",
               "cuCtxSynchronize")
ACTIONS = ("1", "2", "304", "999", "delay=20")  # INVALID_VALUE, OUT_OF_MEMORY, OPERATING_SYSTEM, UNKNOWN


class Chaos:
    def __init__(self, build, seed, ranks, allocations, kinds):
        self.random = random.Random(seed)
        self.logs = tempfile.mkdtemp(prefix="amem-chaos-", dir="/tmp")
        self.node = Node(Build(build), self.logs)
        self.ranks, self.allocations, self.kinds = ranks, allocations, kinds
        self.parties = {}
        self.counts = dict.fromkeys(kinds, 0)
        self.back = []  # seconds from a broker's start until it serves
        self.made = 0
        self.told = "the start"
        self.seen = {}  # at the last look
        self.drops = {}  # of which group the operation under way drops which tags

    def begin(self):
        self.start_broker()
        for name in GROUPS:
            self.start_party(name)
        self.look()

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

    def start_party(self, name):
        self.made += 1
        self.parties[name] = Party(self.node, name, self.made, self.ranks, self.allocations, self.random.random() < 0.5)

    def views(self):
        return {group["name"]: View(group) for group in self.node.ctl.status()["groups"]}

    def settled(self):
        """Every group that has ranks is at rest and whole."""
        def at_rest():
            views = self.views()
            return all(name in views and views[name].state in ("running", "paused") and party.whole()
                       for name, party in self.parties.items())

        try:
            eventually(at_rest, deadline=40, what="all groups are at rest")
        except Exception as error:
            raise Failure(f"{error}: {({name: view.state for name, view in self.views().items()})}") from error
        return self.views()

    def look(self):
        """What has become of the groups since the last look."""
        now = self.settled()
        for name in set(now) & set(self.seen):
            self.parties[name].left(self.seen[name], now[name], self.drops.get(name, ()))
        self.seen = now
        return now

    # ---- a round ----
    def operation(self, views):
        """The words of an operation that can begin now."""
        running = [name for name, view in views.items() if view.here]
        away = [name for name, view in views.items() if view.paused_tags]
        paused = [name for name in away if not views[name].runs()]
        choices = [("pause", name) for name in running] + [("resume", name) for name in away] * 2
        if len(running) == 1 and len(paused) == 1:
            choices += [("swap", running[0], paused[0])] * 3
        words = self.random.choice(choices)
        return (*words, *self.of_tags(words, views[words[1]]))

    def some(self, tags):
        return self.random.sample(sorted(tags), self.random.randint(1, len(tags)))

    def of_tags(self, words, view):
        """Which tags it is about, and which of these it drops."""
        tags = view.paused_tags if words[0] == "resume" else view.here
        options = []
        if words[0] != "swap" and self.random.random() < 0.4:
            chosen = self.some(tags)
            if self.random.random() < 0.5 and set(chosen) < tags:
                tags = tags - set(chosen)
                options = ["--except", *chosen]
            else:
                tags = set(chosen)
                options = ["--tag", *chosen]
        droppable = tags & set(TAGS)
        if words[0] != "resume" and droppable and self.random.random() < 0.3:
            dropped = self.some(droppable)
            options += [*(["--force"] if "heap" in dropped else []), "--discard", *dropped]
        return options

    def choose_policies(self):
        for name, view in self.seen.items():
            if view.runs() and self.random.random() < 0.2:
                tag = self.random.choice(TAGS)
                if tag in view.here:
                    self.parties[name].set_policy(tag, self.random.choice((KEEP, DISCARD)))

    def round(self):
        kind = self.random.choice(self.kinds)
        self.choose_policies()
        words = self.operation(self.seen)
        self.drops = {words[1]: words[words.index("--discard") + 1:]} if "--discard" in words else {}
        moment = self.random.uniform(0, OPERATION)
        self.told = f"{' '.join(words)}; {kind} after {moment * 1000:.1f} ms"
        # Now and then two things at once; but not where a group is paused by hand, which must succeed.
        also = kind != "rank" and "fault" in self.kinds and self.random.random() < 0.2
        victim = self.inject(words) if kind == "fault" or also else None
        operation = self.node.ctl.start(*words)
        self.counts[kind] += 1
        if kind not in ("fault", "allocate"):
            time.sleep(moment)
            getattr(self, kind)(words)
        answer = operation.finish(120)
        if victim:
            victim.faults()
        if answer.code in (ctl.USAGE, ctl.WRONG_STATE) or answer.code == ctl.NOT_FOUND and kind != "rank":
            raise Failure(f"it was refused: {answer}")
        now = self.look()
        self.drops = {}
        self.check(now)
        if kind == "allocate":
            self.allocate(now)

    def inject(self, words):
        """A driver call fails, once or from then on, of a process that has to do with it."""
        ranks = [rank for party in self.parties.values() if party.name in words for rank in party.ranks]
        victim = self.random.choice([*ranks, self.node.broker])
        call = self.random.choice(BROKERS_CALLS if victim is self.node.broker else RANKS_CALLS)
        nth = f"{self.random.randint(1, 12)}{self.random.choice(('', '', '+'))}"
        rule = f"{call}:{nth}:{self.random.choice(ACTIONS)}"
        self.told += f"; {victim.name}: {rule}"
        victim.faults(rule)
        return victim

    def allocate(self, views):
        """Allocations of programs that run, while a driver call fails."""
        for name, view in views.items():
            if not view.runs() or "heap" in view.paused_tags:
                continue
            party = self.parties[name]
            victim = self.random.choice((party.program, self.node.broker))
            call = self.random.choice(BROKERS_CALLS if victim is self.node.broker else RANKS_CALLS[:4])
            rule = f"{call}:{self.random.randint(1, 2)}:{self.random.choice(ACTIONS)}"
            self.told += f"; {name} allocates; {victim.name}: {rule}"
            victim.faults(rule)
            answer = party.allocate()
            victim.faults()
            if answer["ok"]:
                party.program.ask(f"free {answer['id']}")
        self.check(self.look())

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
        party = self.of(words)
        self.random.choice(party.ranks).kill()
        self.replace(party)

    def stop(self, words):
        rank = self.random.choice(self.of(words).ranks)
        rank.signal(signal.SIGSTOP)
        time.sleep(self.random.uniform(0, OPERATION))
        rank.signal(signal.SIGCONT)

    def of(self, words):
        """One of the groups that it is about."""
        return self.parties[self.random.choice([word for word in words if word in self.parties])]

    def replace(self, party):
        """The others of a job cannot go on without one: the launcher ends them, and begins anew."""
        time.sleep(self.random.uniform(0, OPERATION))
        party.kill()
        del self.parties[party.name], self.seen[party.name]
        eventually(lambda: party.name not in self.views(), deadline=30, what=f"{party.name} is gone")
        for other, view in self.look().items():
            self.pause(other, view)
        self.start_party(party.name)

    def pause(self, name, view):
        self.drops = {}
        if view.here:
            self.node.ctl("pause", name)
            self.look()

    def check(self, views):
        for name, party in self.parties.items():
            party.check(views[name])
            if views[name].all_here() and self.random.random() < 0.3:
                party.rewrite()
        if all(view.all_here() for view in views.values()):
            used = self.node.ctl.status()["pool"]["used_bytes"]
            if used:
                raise Failure(f"all is on the devices, and {used} bytes of the pool are used")

    def end(self):
        for name, view in self.look().items():
            if view.paused_tags:
                for other, each in self.seen.items():
                    if other != name:
                        self.pause(other, each)
                self.node.ctl("resume", name)
                self.check(self.look())


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
        for party in chaos.parties.values():
            party.kill()
        chaos.node.close()
    what = ", ".join(f"{count} × {kind}" for kind, count in chaos.counts.items())
    back = sorted(chaos.back)
    print(f"chaos: {rounds} rounds in {time.monotonic() - began:.0f} s: {what}; no byte lost, no rank hung" +
          (f"; a broker serves after {back[len(back) // 2]:.2f} s (median), {back[-1]:.2f} s (longest)" if back else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
