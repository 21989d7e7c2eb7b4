#!/usr/bin/env python3
"""Undoes the fixes of undone.toml, one at a time, and plays seeds until a simulated world breaks.

    tests/mutants/undone.py                        all, up to 100,000 seeds each
    tests/mutants/undone.py --jobs 32 --only turn  those whose finding has this word

It prints a table: the finding, the program, and the seeds until it was met. It works as sample.py does: on a finished build, in build/mutants,
on a copy of the sources. Exit status 0 when all were met, 1 when one was not, or when something went wrong.
"""
import argparse
import os
import pathlib
import re
import resource
import sys
import time
import tomllib

import sample

TABLE = pathlib.Path(__file__).with_name("undone.toml")
MOST_SEEDS = 100_000


def seeds_until_broken(program, jobs, most):
    """How many seeds were played until one broke, and that seed; None: none has."""
    at, chunk = 1, jobs
    while at <= most:
        chunk = min(chunk * 4, most - at + 1, 256 * jobs)
        command = [program.output(), "--seed", str(at), "--count", str(chunk), "--jobs", str(jobs)]
        done = sample.run(command, program.build.slot, program.build.slot / "test.log", silence=600)
        if done.status:
            found = [int(each) for each in re.findall(r"(?:^seed |--seed )(\d+)", done.output, re.M)]
            return (min(found) if found else at + chunk - 1), done.output
        at += chunk
    return None


def undo(tests, undone, jobs, most):
    """The row of the table, and whether it was met."""
    original = tests.original(undone["file"])
    if original.count(undone["before"]) != 1:
        raise sample.Trouble(f"{undone['file']} has the text {original.count(undone['before'])} times: {undone['before']}")
    tests.mutate(undone["file"], original.replace(undone["before"], undone["after"]))
    program = tests.everything[undone["met_by"]]
    if not tests.make(program, undone["file"], {}):
        raise sample.Trouble(f"it does not compile: {undone['finding']}")
    began = time.monotonic()
    met = seeds_until_broken(program, jobs, most)
    seconds = time.monotonic() - began
    if met is None:
        return f"{undone['finding']} | {undone['met_by']} | not within {most} seeds | {seconds:.0f} s", False
    why = re.search(r"broken: (.*)|ended by (signal \d+)", met[1])
    return f"{undone['finding']} | {undone['met_by']} | {met[0]} | {seconds:.0f} s | {why[0] if why else met[1][-200:].strip()}", True


class Worlds:
    """Of sample.Tests what needs no measurement."""
    mutate, original, make = sample.Tests.mutate, sample.Tests.original, sample.Tests.make

    def __init__(self, build):
        self.build = build
        self.everything = {name: sample.Program(build, name) for name in sample.PLAYERS}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="worlds at once (default: the machine's %(default)s cores)")
    parser.add_argument("--seeds", type=int, default=MOST_SEEDS, help="at most, for each (default: %(default)s)")
    parser.add_argument("--only", default="", help="findings with this text")
    parser.add_argument("--built", type=pathlib.Path, help="a finished build (default: build/release, which is built first)")
    arguments = parser.parse_args()
    work = sample.ROOT / "build/mutants"
    for folder in ("tree", "objects"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    all_met = True
    try:
        sample.copy_sources(sample.ROOT, work / "tree")
        tests = Worlds(sample.Build(sample.ROOT, arguments.built, work, arguments.jobs))
        for undone in tomllib.loads(TABLE.read_text(encoding="utf-8"))["undone"]:
            if arguments.only in undone["finding"]:
                row, met = undo(tests, undone, arguments.jobs, arguments.seeds)
                print(row, flush=True)
                all_met = all_met and met
    except sample.Trouble as trouble:
        print(f"undone.py: {trouble}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0 if all_met else 1


if __name__ == "__main__":
    sys.exit(main())
