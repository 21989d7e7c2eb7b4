"""amem-demo --turns: three groups take turns on one simulated GPU, on which no two of them fit. amemd decides when.

Each group plays a server: it has work only when a request arrives. All start at once, and each has the GPU to itself until it has
started. The policy is demand, so a request that finds its group paused brings the group its turn. What happens is printed as it happens.
"""

import json
import os
import time

from try_node import MIB, Failure, Workload, deadline, mib

STAGE = "night"
NAMES = ("chat", "code", "search")
RANKS = 1
MEMORY_MIB = 256
ALLOCATIONS = 80  # of 2 MiB: one group fits, two do not
POOL_MIB = 600
IDLE_MS, START_IDLE_MS = 500, 500
CONFIGURATION = f"""[stage.{STAGE}]
devices = [0]
policy = "demand"
margin = "16MiB"
idle = "{IDLE_MS}ms"
start_idle = "{START_IDLE_MS}ms"
"""
# (seconds after the start, group): one group after the other, two at once, and one that stays busy while another one asks.
REQUESTS = ((0.5, "search"), (1.0, "chat"), (2.5, "code"), (4.0, "chat"), (4.0, "search"),
            (7.0, "search"), (7.4, "search"), (7.5, "code"), (7.8, "search"), (8.2, "search"))
ANSWER_S = 60
START_S = 120
LOOK_S = 0.05


class Server:
    """A rank that computes when it is asked, one request at a time, in the order in which they came."""

    def __init__(self, node, name):
        self.name = name
        self.asked = []  # when, of requests without an answer
        self.answers = 0
        self.bytes = 0
        self.rest = []   # of the commands of the first of them, in the order of their answers
        meeting = node.folder / f"meet-{name}"
        meeting.mkdir()
        command = [node.programs / "amem-workload", "--ranks", RANKS, "--rendezvous", meeting, "--allocations", ALLOCATIONS, "--bytes",
                   2 * MIB, "--rank", 0]
        self.rank = node.start(Workload, name, node.as_rank(name, *command, stage=STAGE), RANK="0")
        self.starts = True

    def has_started(self):
        """Whether it has just got all its memory."""
        self.rank.require_running()
        if not self.starts or self.rank.answers.empty():
            return False
        self.rank.answer("start", 1)
        self.starts = False
        return True

    def ask(self, now):
        self.asked.append(now)
        if len(self.asked) == 1:
            self._begin()

    def _begin(self):
        self.rest = ["step 5", "verify"]  # changes its memory, and compares each byte with what it must be
        for command in self.rest:
            self.rank.tell(command)

    def answered(self, now):
        """Seconds that the first request took, if its answer is there."""
        while self.rest and not self.rank.answers.empty():
            answer = self.rank.answer(self.rest.pop(0), 1)
            self.bytes += answer.get("bytes", 0)
            if not self.rest:
                self.answers += 1
                took = now - self.asked.pop(0)
                if self.asked:
                    self._begin()
                return took
        if self.asked and now - self.asked[0] > ANSWER_S:
            raise Failure(f"{self.name} has not answered a request for {ANSWER_S} s")
        return None

    def end(self):
        self.rank.tell("exit")
        if self.rank.wait(60) != 0:
            raise Failure(f"{self.name} ended with status {self.rank.process.returncode}")


class Story:
    def __init__(self, node, say):
        self.node, self.say = node, say
        self.servers = {}
        self.began = time.monotonic()
        self.switches = 0
        self.waiting = set()
        self.slowest = 0.0

    def now(self):
        return time.monotonic() - self.began

    def tell(self, text):
        self.say(f"   {self.now():5.1f} s  {text}")

    def stage(self):
        [stage] = json.loads(self.node.amemctl("turns", "--json"))["stages"]
        running = [group["group"] for group in stage["groups"] if group["turn"] in ("starts", "runs", "leaves")]
        if len(running) > 1:
            raise Failure(f"{' and '.join(running)} run at the same time, and only one group fits")
        return stage

    def start(self):
        self.say(f"\n1. start amemd with the stage {STAGE}, and three groups that take turns in it\n")
        self.say("\n".join(f"   {line}" for line in CONFIGURATION.splitlines()))
        self.say("")
        self.began = time.monotonic()
        starting = ""
        for _ in deadline(START_S, LOOK_S):
            stage = self.stage()
            self.see(stage)
            turns = {group["group"]: group["turn"] for group in stage["groups"]}
            if len(self.servers) < len(NAMES) and self.servers.keys() <= turns.keys():  # so that they come in this order
                name = NAMES[len(self.servers)]
                self.servers[name] = Server(self.node, name)
            first = next((name for name, turn in turns.items() if turn == "starts"), starting)
            if first != starting:
                self.tell(f"{first} starts, with the GPU to itself")
                starting = first
            for server in self.servers.values():
                if server.has_started():
                    self.tell(f"{server.name} has its memory")
            if sorted(turns.values()) == ["idle", "idle", "runs"] and not any(server.starts for server in self.servers.values()):
                break
        else:
            raise Failure(f"all groups must start within {START_S} s, and then one runs and two are paused, but they are {turns}")
        needs = max(group["allocated_bytes"] for group in self.node.status()["groups"])
        self.say(f"\n   each group needs {mib(needs)} MiB, and the GPU has {MEMORY_MIB} MiB, so only one runs at a time")

    def see(self, stage):
        """Who has begun to wait, and what the last switch was."""
        last = stage.get("last")
        if stage["switches"] > self.switches and last and not stage["switching"]:
            self.switches = stage["switches"]
            if last["code"] != 0:
                raise Failure(f"a switch has failed: {last['error']}")
            seconds = last["us"] / 1e6
            self.slowest = max(self.slowest, seconds)
            self.tell(f"{' and '.join(last['in_groups'])} in, {' and '.join(last['out_groups']) or 'nobody'} out, in {seconds:.2f} s: "
                      f"{last['why']}")
        waiting = {group["group"]: group for group in stage["groups"] if group["turn"] == "waits"}
        for name in sorted(waiting.keys() - self.waiting):
            call = waiting[name]["call"]
            self.tell(f"{name} waits{f' for {call}' if call == 'its start' else f' in {call}' if call else ''}")
        self.waiting = set(waiting)

    def play(self):
        self.say("\n2. requests arrive\n")
        self.began = time.monotonic()
        left = list(REQUESTS)
        while left or any(server.asked for server in self.servers.values()):
            while left and left[0][0] <= self.now():
                name = left.pop(0)[1]
                self.tell(f"{name} gets a request")
                self.servers[name].ask(self.now())
            self.see(self.stage())
            for server in self.servers.values():
                took = server.answered(self.now())
                if took is not None:
                    self.tell(f"{server.name} answers after {took:.2f} s")
            time.sleep(LOOK_S)

    def end(self):
        self.say("\n3. the turns, as amemctl shows them\n")
        self.say("\n".join(f"   {line}".rstrip() for line in self.node.amemctl("turns").splitlines()))
        for server in self.servers.values():  # a paused one needs a turn for this, too
            server.end()

    def summary(self):
        if self.switches < 2 * len(NAMES) - 1:  # each started and had requests; the one that started last may have stayed for them
            raise Failure(f"there have been {self.switches} switches, and {len(NAMES)} groups started and had requests")
        wrong = [f"{name} {server.answers}" for name, server in self.servers.items()
                 if server.answers != sum(each == name for _, each in REQUESTS)]
        if wrong:
            raise Failure(f"answers: {', '.join(wrong)}; requests: {REQUESTS}")
        return (f"{len(REQUESTS)} requests answered, {sum(server.bytes for server in self.servers.values()):,} bytes verified, none wrong; "
                f"{self.switches} switches that nobody asked for, slowest {self.slowest:.2f} s")


def run(node, say):
    """The demonstration. Returns what it has shown."""
    story = Story(node, say)
    story.start()
    story.play()
    story.end()
    return story.summary()


def configuration(folder):
    """amemd's arguments."""
    path = folder / "amemd.toml"
    path.write_text(CONFIGURATION)
    return ["--config", os.fspath(path)]
