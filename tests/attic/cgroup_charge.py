#!/usr/bin/env python3
"""Which cgroup is charged for amem's pool, before and after amemd's pod is replaced?

    cgroup_charge.py --prefix PREFIX [--pool 2GiB] [--places host_numa memfd]

PREFIX: a bundle or a build tree. As root, on a machine on which cgroups can be made (version 1 or 2). amem-holder, the first amemd and
the next one run in cgroups of their own, as pods do. The first amemd makes the pool and pauses a group of 64 MiB. It ends, and
the next one takes the pool from the holder. Prints what each cgroup is charged with, in MiB. Exit status 77: no cgroup can be made here.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
NAMES = ("holder", "first", "next")
LIMIT_S = 60
UNAVAILABLE = 3  # amemctl's exit status
MIB = 64
JOB = f"""
import ctypes, sys, time
sys.path.insert(0, {str(HERE.parent / "gpu" / "programs")!r})
import bare_driver
driver = bare_driver.Driver()
memory = ctypes.c_uint64()
driver.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t({MIB} << 20))
driver.call("cuMemsetD8_v2", memory, ctypes.c_ubyte(7), ctypes.c_size_t({MIB} << 20))
print("ready", flush=True)
time.sleep({10 * LIMIT_S})
"""


class Cgroup:
    """One that this program has made."""

    def __init__(self, name):
        root = pathlib.Path("/sys/fs/cgroup")
        self.version = 2 if (root / "cgroup.controllers").exists() else 1
        parent = root if self.version == 2 else root / "memory"
        if self.version == 2:
            (parent / "cgroup.subtree_control").write_text("+memory")
        self.path = parent / f"amem-charge-{os.getpid()}-{name}"
        self.path.mkdir()

    def mib(self):
        name = "memory.current" if self.version == 2 else "memory.usage_in_bytes"
        return int((self.path / name).read_text()) / 2**20

    def enter(self):
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self):
        end = time.monotonic() + LIMIT_S
        while True:
            try:
                return self.path.rmdir()
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)


def make_cgroups():
    made = {}
    try:
        for name in NAMES:
            made[name] = Cgroup(name)
    except OSError as error:
        for each in made.values():
            each.remove()
        print(f"not run: no cgroup can be made here: {error}")
        sys.exit(77)
    return made


def start(cgroup, command, env, log):
    with open(log, "ab") as file:
        return subprocess.Popen(list(map(str, command)), env=env, stdout=file, stderr=file, preexec_fn=cgroup.enter)


class Node:
    """amem-holder, amemd and a job in a folder."""

    def __init__(self, options, place, folder):
        self.options, self.place, self.folder = options, place, pathlib.Path(folder)
        self.env = {**os.environ, "AMEM_RUNTIME_DIR": str(self.folder / "run")}
        self.log = self.folder / "log"
        (self.folder / "run").mkdir(mode=0o700)

    def program(self, name):
        return pathlib.Path(self.options.prefix) / "bin" / name

    def holder(self, cgroup):
        return start(cgroup, [self.program("amem-holder"), "--stay", "--socket", self.folder / "run-holder" / "holder.sock"], self.env, self.log)

    def amemd(self, cgroup):
        """Until its pool is whole."""
        process = start(cgroup, [self.program("amemd"), "--holder", "external", "--pool-size", self.options.pool, "--pool-place", self.place],
                        self.env, self.log)
        answer = subprocess.run([str(self.program("amemctl")), "wait", "pool", "--timeout", f"{LIMIT_S}s"], env=self.env, capture_output=True,
                                text=True, check=False)
        if answer.returncode != 0:
            end(process)
            raise SystemExit(f"amemd has no pool of place {self.place}: {answer.stderr}{self.log.read_text()}")
        return process

    def ctl(self, *arguments):
        """Until the job has reconnected to the next amemd."""
        limit = time.monotonic() + LIMIT_S
        while True:
            done = subprocess.run([str(self.program("amemctl")), *arguments], env=self.env, capture_output=True, text=True, check=False)
            if done.returncode != UNAVAILABLE or time.monotonic() > limit:
                break
            time.sleep(0.1)
        if done.returncode != 0:
            raise SystemExit(f"amemctl {' '.join(arguments)} failed: {done.stderr}{self.log.read_text()}")

    def paused_job(self):
        """A group whose bytes are in the pool."""
        job = subprocess.Popen([str(self.program("amemctl")), "run", "--group", "job", "--scope", "heap", "--required", "--",
                                sys.executable, "-c", JOB], env=self.env, stdout=subprocess.PIPE, text=True)
        if job.stdout.readline() != "ready\n":
            raise SystemExit("the job has not started")
        self.ctl("pause", "job")
        return job


def end(process):
    process.terminate()
    try:
        process.wait(LIMIT_S)
    finally:
        process.kill()
        process.wait()


def rows(options, place):
    """[(when, {cgroup: MiB})]"""
    cgroups = make_cgroups()
    try:
        with tempfile.TemporaryDirectory(prefix="amem-charge-") as folder:
            node = Node(options, place, folder)
            running = [node.holder(cgroups["holder"])]
            try:
                running.append(node.amemd(cgroups["first"]))
                running.append(node.paused_job())
                found = [("the first amemd has the pool", measure(cgroups))]
                end(running.pop(1))
                found.append(("it has ended", measure(cgroups)))
                running.append(node.amemd(cgroups["next"]))
                found.append(("the next amemd has the pool", measure(cgroups)))
                node.ctl("resume", "job")
            finally:
                for each in reversed(running):
                    end(each)
            return found
    finally:
        for each in cgroups.values():
            each.remove()


def measure(cgroups):
    return {name: each.mib() for name, each in cgroups.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--pool", default="2GiB")
    parser.add_argument("--places", nargs="+", default=["host_numa", "memfd"])
    options = parser.parse_args()
    print(f"a pool of {options.pool}; MiB that are charged\n| place | when | {' | '.join(NAMES)} |\n| --- | --- |{' --- |' * len(NAMES)}")
    for place in options.places:
        for when, charged in rows(options, place):
            print(f"| {place} | {when} | {' | '.join(f'{charged[name]:.0f}' for name in NAMES)} |", flush=True)


if __name__ == "__main__":
    main()
