"""Party: a group of the chaos, two ranks or more that play NCCL and a program with memory of several tags, and what its bytes must be."""
from sim_node.node import MIB
from sim_node.program import Program

KEEP, DISCARD = 1, 2  # policies of regions
REGIONS = {"weights": KEEP, "scratch": DISCARD}
TAGS = ("heap", *REGIONS)  # that may be dropped; besides there is nccl, which never is
NAMES = {KEEP: "keep", DISCARD: "discard"}
SLACK = 8 * MIB  # of memory that has been freed and is kept


class Failure(Exception):
    pass


class View:
    """What the broker says of a group at rest."""

    def __init__(self, group):
        self.state = group["state"].rpartition("_")[2].lower()
        self.tags = {each["tag"]: each for each in group["tags"]}
        self.allocated = group["allocated_bytes"]
        self.policies = {each["tag"]: each["policy"] for each in group["policies"]}
        self.paused_tags = {tag for tag, each in self.tags.items() if not each["resident_bytes"]}
        self.here = set(self.tags) - self.paused_tags

    def halves(self):
        return [tag for tag, each in self.tags.items() if 0 < each["resident_bytes"] < each["allocated_bytes"]]

    def runs(self):
        return self.state == "running"

    def all_here(self):
        return self.runs() and not self.paused_tags


class Party:
    def __init__(self, node, name, number, ranks, allocations, slabs):
        env = {"AMEM_RECONNECT": "60s", "AMEM_SHIM_WITHOUT": None if slabs else "slabs"}
        self.node, self.name = node, name
        self.policies = dict(REGIONS, heap=KEEP)
        self.set = {}  # by an operator
        self.dropped = set()  # of what is away
        self.job = node.job(name=f"{name}-{number}", group=name, ranks=ranks, allocations=allocations, env=env)
        self.job.ask("rewrite")
        self.program = Program(node, f"{name}-{number}", group=name, rank=ranks, env=env)
        self.program.ask("alloc 0 5000 3")
        self.program.ask(f"alloc 1 {3 * MIB}")
        for tag, policy in REGIONS.items():
            self.program.ask(f"region begin {tag} {policy}")
            self.program.ask("alloc 1 5000 2")
            self.program.ask(f"alloc 0 {3 * MIB}")
            self.program.ask("region end")
        self.allocated = self.view().allocated
        self.ranks = [*self.job.ranks, self.program]

    def view(self):
        return View(self.node.ctl.group(self.name))

    def whole(self):
        """All ranks have sessions, and nothing is asked of any."""
        ranks = self.node.ctl.ranks(self.name)
        return len(ranks) == len(self.ranks) and not any(rank["phase"] for rank in ranks)

    def kill(self):
        for rank in self.ranks:
            rank.kill()

    # ---- what is done to it ----
    def set_policy(self, tag, policy):
        force = ["--force"] if tag == "heap" and policy == DISCARD else []
        self.node.ctl("policy", self.name, tag, NAMES[policy], *force)
        self.policies[tag] = policy
        self.set[tag] = f"POLICY_{NAMES[policy].upper()}"

    def left(self, before, now, discard):
        """What of it was here and is away has been dropped or kept; what was dropped stays zero until it is rewritten."""
        self.dropped &= before.paused_tags & now.paused_tags
        for tag in (now.paused_tags - before.paused_tags) & set(TAGS):
            if tag in discard or self.policies[tag] == DISCARD:
                self.dropped.add(tag)
                self.program.ask(f"zero {tag}")

    def allocate(self):
        """While a driver call may fail, its program has new memory, or an error and nothing."""
        self.program.send(f"alloc 0 {3 * MIB}")
        return self.program.json_line()

    # ---- what it must be ----
    def check(self, view):
        if halves := view.halves():
            raise Failure(f"{self.name}: of {', '.join(halves)} a part is here: {view.tags}")
        if view.policies != self.set:
            raise Failure(f"{self.name}: policies are {view.policies}, and {self.set} were set")
        if view.allocated > self.allocated + SLACK:
            raise Failure(f"{self.name}: it had {self.allocated} bytes, and has {view.allocated}")
        for tag in view.paused_tags:
            dropped = view.tags[tag]["dropped_bytes"]
            if dropped != (view.tags[tag]["allocated_bytes"] if tag in self.dropped else 0):
                raise Failure(f"{self.name}: of {tag}, which was {'dropped' if tag in self.dropped else 'kept'}, {dropped} bytes are dropped")
        if view.runs():
            self.verify(view.paused_tags)

    def verify(self, away=()):
        answer = self.program.ask(" ".join(["verify", *away]), 60)
        if not answer.get("bytes") and not set(TAGS) <= set(away):
            raise Failure(f"{self.program.name}: nothing was verified")
        if "nccl" in away:
            return
        for _ in range(2):
            for rank, answer in zip(self.job.ranks, self.job.ask("verify", 60)):
                if answer["wrong"] or not answer["bytes"]:
                    raise Failure(f"{rank.name}: {answer['wrong']} of {answer['bytes']} bytes are wrong")
            self.job.step(1)

    def rewrite(self):
        self.job.ask("rewrite")
        self.program.ask("rewrite")
