#!/usr/bin/env python3
"""Cuts recorded traces of a job down to some of its allocations, consistently across the ranks.

    cut.py OUT-PREFIX EVERY RANK0.trace RANK1.trace ...

Keeps, of each rank, one of EVERY allocations that peers import and one of EVERY that none does, everything about symmetric
memory (allocations asked for with fabric handles first, mapped twice, or shared with their handle released at once), the
creations on the host, and of imported allocations those that their owner keeps. All calls about a kept allocation
stay, in their order. Writes OUT-PREFIX-rankN.trace.
"""
import re
import sys

VERBS = {"create", "map", "access", "export", "import", "retain", "release", "unmap"}


class Line:
    def __init__(self, text):
        self.text = text
        self.verb = text.split(" ", 1)[0]
        self.fields = dict(re.findall(r"(\w+)=(\S+)", text))
        self.handle = None  # the rank's number of the allocation it is about

    def number(self, name, base=10):
        return int(self.fields[name], base)


class Rank:
    """One rank's lines, each bound to the allocation that it is about."""

    def __init__(self, path):
        with open(path) as file:
            self.lines = [Line(text.rstrip("\n")) for text in file]
        self.lines = [line for line in self.lines if line.verb in VERBS]
        self.origin = {}  # imported handle -> (owner, owner's handle)
        self.symmetric = set()
        self.exported = set()
        self.created = set()
        self._bind()

    def _bind(self):
        pending = {"0": [], "1": []}  # created, imported: a map tells which handle they became
        mapped = {}
        refused = []
        self.early = set()  # handle gone while a mapping lives on
        for line in self.lines:
            if line.verb == "create":
                if line.fields["rc"] != "0":
                    refused.append(line)
                elif line.fields["mine"] == "1":
                    line.refused = refused
                    refused = []
                    pending["0"].append(line)
                continue
            if line.verb == "import":
                pending["1"].append(line)
                continue
            if line.verb in ("map", "export", "release", "retain"):
                line.handle = line.number("vh", 16)
            if line.verb == "map":
                self._name(line, pending[line.fields["imported"]])
                if line.handle in mapped.values():
                    self.symmetric.add(line.handle)
                mapped[line.number("va", 16)] = line.handle
            elif line.verb in ("access", "unmap"):
                line.handle = mapped[line.number("va", 16)]
                if line.verb == "unmap":
                    del mapped[line.number("va", 16)]
            elif line.verb == "export":
                self.exported.add(line.handle)
            elif line.verb == "release" and line.fields["refs"] == "0" and line.fields["maps"] == "1":
                self.early.add(line.handle)

    def _name(self, map_line, pending):
        """The first mapping of a handle names the creation or import that made it."""
        if map_line.handle in self.origin or map_line.handle in self.created:
            return
        line = next(each for each in pending if each.fields["n"] == map_line.fields["n"])
        pending.remove(line)
        line.handle = map_line.handle
        if line.verb == "import":
            owner = int(line.fields["owner"].removeprefix("rank"))
            self.origin[line.handle] = (owner, line.number("id", 16))
        else:
            self.created.add(line.handle)
            if line.refused:
                self.symmetric.add(line.handle)
            for each in line.refused:
                each.handle = line.handle


def choose(ranks, every):
    symmetric = set()
    for number, rank in enumerate(ranks):
        symmetric |= {(number, handle) for handle in rank.symmetric if handle in rank.created}
        symmetric |= {rank.origin[handle] for handle in rank.early if handle in rank.origin}
    kept = set(symmetric)
    for number, rank in enumerate(ranks):
        shared = sorted(rank.created & rank.exported)
        private = sorted(rank.created - rank.exported)
        kept |= {(number, handle) for handle in shared[::every] + private[::every]}
    return kept


def main():
    prefix, every, paths = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    ranks = [Rank(path) for path in paths]
    kept = choose(ranks, every)
    for number, rank in enumerate(ranks):
        with open(f"{prefix}-rank{number}.trace", "w") as out:
            for line in rank.lines:
                key = rank.origin.get(line.handle, (number, line.handle))
                host = line.verb == "create" and line.handle is None and line.fields["rc"] == "0"
                if key in kept or host:
                    print(line.text, file=out)


if __name__ == "__main__":
    main()
