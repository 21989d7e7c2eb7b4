#!/usr/bin/env python3
"""Measures which share of small faults in the daemon the unit tests and the simulated worlds find.

    tests/mutants/sample.py                              60 mutants of each stratum of this checkout
    tests/mutants/sample.py --jobs 32                    several at once; the result is the same
    tests/mutants/sample.py --root DIR --seed 46         of another checkout, for example one of an older commit
    tests/mutants/sample.py --results FILE --again       judges the survivors again, by the tests of today
    tests/mutants/sample.py --results FILE --list-survivors

universalmutator makes the mutants: copies of a file in which one line is changed. The seed orders all of a stratum, so that the first ones
are a fair sample, however many. Each mutant is compiled alone and linked before the library of a finished build, into the programs that may
contain its file. These run, the fastest first, until one fails. A mutant that does not compile is replaced by the next one. So is a mutant
for which the compiler makes the same code as for the original, and one that equivalents.toml calls equivalent. Each result is a line of a
file, and the next run judges those that have none. All work is done in build/mutants of the checkout, on a copy of the sources. The sources
do not change.
Exit status 0 when the sample is complete, 1 when something went wrong, 3 when --minutes ended it.
"""
import argparse
import collections
import dataclasses
import fcntl
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import pathlib
import queue
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = "universalmutator==1.14.1"  # another version has other rules, and so other mutants
# By what its name begins with, below daemon/.
STRATA = {"A": ("memory/block_map", "memory/packing", "memory/shortage", "phases/", "plans/", "record/", "turns/"),
          "B": ("broker/recovery", "fleet/", "operations/", "stages/", "transactions/")}
# Not amemd_test, which asks how the program starts, ends and is called.
UNIT_TESTS = ("logic_test", "broker_test", "broker_threads_test", "serving_test")
# Each plays the same seeds each time.
PLAYERS = {"turn_traces": ("--count", "100"), "histories": ("--count", "200"), "stage_traces": ("--count", "30")}
MODEL = "explore"
EQUIVALENTS = pathlib.Path(__file__).with_name("equivalents.toml")
MOST_EQUIVALENT = 0.05  # of those that compile to other code
# A world of the model has 1 fault, or none where it takes more CPU seconds than this with 1. The model plays some 400 ways in one.
# One that takes more than the second with none is left out.
LONGEST_WORLD = (1, 5)
MOST_MEMORY = 4 << 30
MOST_FIRST = 10
# Seconds in which a unit test says nothing. The longest needs one or two, and a busy machine lets it wait.
LONGEST_SILENCE = 90
# A mutant is compiled fast. It counts as equivalent if the compiler makes the same code of it with optimisation.
FAST = ("-O0", "-g0")
OPTIMISED = ("-O2", "-g0")
CORE = "lib/libamemd_core.a"


class Trouble(Exception):
    """The sample cannot go on."""


@dataclasses.dataclass
class Done:
    status: int
    output: str
    late: bool
    cpu: float


# The groups of processes that this process has started, and that run.
running = set()


def end_now(*_):
    """What SIGTERM does in a process of a pool. It takes no lock and runs no finaliser, since others may hold what these wait for."""
    for group in list(running):
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            pass
    os._exit(143)  # pylint: disable=protected-access


def begin_process():
    signal.signal(signal.SIGTERM, end_now)


def memory_of(pid):
    try:
        found = re.search(r"^VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii"), re.M)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(found[1]) << 10 if found else 0


def run(command, cwd, log, cpu=None, silence=None, environment=None):
    """Runs a command with limits to its CPU seconds, its silence and its memory. All processes that it starts end with it, and with us."""
    def used():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = used()
    with open(log, "wb") as output:
        # pylint: disable=consider-using-with  # the group is ended below
        process = subprocess.Popen(list(map(str, command)), cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                   env=environment, start_new_session=True)
    running.add(process.pid)
    late, size, asked = False, 0, time.monotonic()
    spoke = asked
    try:
        if cpu is not None:
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (math.ceil(cpu), math.ceil(cpu) + 5))
        while not late:
            try:
                process.wait(0.1)
                break
            except subprocess.TimeoutExpired:
                last, now, grown = asked, time.monotonic(), os.path.getsize(log)
                asked = now
                if grown != size or now - last > 5:  # we were stopped meanwhile, and it perhaps was too
                    size, spoke = grown, now
                late = (silence is not None and now - spoke > silence) or memory_of(process.pid) > MOST_MEMORY
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        running.discard(process.pid)
    return Done(process.returncode, pathlib.Path(log).read_text(encoding="utf-8", errors="replace"),
                late or process.returncode == -signal.SIGXCPU, used() - before)


# The copy of the sources

def copy_sources(root, tree):
    """Updates the copy and returns a digest of the C++. A file that has not changed keeps its time, so that ninja does not build it again."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard", "-z"], check=True, capture_output=True, text=True)
    names = sorted({name for name in listed.stdout.split("\0") if name and (root / name).is_file()})
    digest = hashlib.sha256()
    for name in names:
        text, copy = (root / name).read_bytes(), tree / name
        if name.endswith((".cpp", ".h", ".inc", ".proto", ".cmake", "CMakeLists.txt")):
            digest.update(name.encode() + b"\0" + hashlib.sha256(text).digest())
        if not copy.is_file() or copy.read_bytes() != text:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, copy)
    for copy in list(tree.rglob("*")):
        if copy.is_file() and copy.relative_to(tree).as_posix() not in set(names):
            copy.unlink()
    return digest.hexdigest()


# Mutants

@dataclasses.dataclass(frozen=True, order=True)
class Mutant:
    file: str
    line: int
    before: str
    after: str  # several lines where the mutant has more

    def text(self, original):
        lines = original.splitlines(keepends=True)
        lines[self.line - 1] = self.after + "\n"
        return "".join(lines)

    def __str__(self):
        after = self.after.splitlines() or [""]
        added = [line for line in after if line != self.before] if len(after) > 1 else after
        sign = "+ " if len(after) > 1 else ""
        return f"{self.file}:{self.line}: {self.before.strip()}  →  {sign}{' '.join(line.strip() for line in added) or '(nothing)'}"


def code_of(line):
    """The line without the comment at its end. The tool itself leaves out comments of several lines."""
    return re.sub(r"/\*.*?\*/", "", re.sub(r'("(?:\\.|[^"\\])*")|//.*', lambda found: found[1] or "", line)).strip()


def is_logic(line):
    code = code_of(line)
    return bool(code) and not re.fullmatch(r"#.*|(inline )?namespace\b.*|[{}();\s]*|(public|private|protected):", code)


def difference(original, mutated):
    """The one line that differs, or that the mutant has another line after: its number and both texts. None if more differs."""
    first = next((i for i, (a, b) in enumerate(zip(original, mutated)) if a != b), len(original))
    more = len(mutated) - len(original)
    at = first - more  # an added line is reported as one after the line before it
    if more not in (0, 1) or not 0 <= at < len(original) or mutated[at + 1 + more:] != original[at + 1:]:
        return None
    return at + 1, original[at], "\n".join(mutated[at:at + 1 + more])


def mutants_of(tree, work, file, tool):
    """All mutants that the tool makes of a file, each once, except those in comments and the like."""
    folder = work / "made"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    done = run([tool, tree / file, "--noCheck", "--mutantDir", folder], work, work / "mutate.log")
    if done.status:
        raise Trouble(f"mutate {file}: {done.output[-2000:]}")
    original = (tree / file).read_text(encoding="utf-8").splitlines()
    found = set()
    for path in folder.iterdir():
        changed = difference(original, path.read_text(encoding="utf-8").splitlines())
        if changed and is_logic(changed[1]) and code_of(changed[1]) != code_of(changed[2]):
            found.add(Mutant(file, *changed))
    shutil.rmtree(folder)
    return found


def stratum_of(file):
    return next((name for name, begins in STRATA.items() if file.removeprefix("daemon/").startswith(begins)), None)


def all_mutants(tree, work, endings):
    """All mutants of the strata, sorted, so that a seed chooses the same whatever the tool's order; and a digest of what they change."""
    files = sorted(path.relative_to(tree).as_posix() for path in (tree / "daemon").rglob("*")
                   if path.suffix in endings and stratum_of(path.relative_to(tree).as_posix()))
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.encode() + b"\0" + hashlib.sha256((tree / file).read_bytes()).digest())
    kept, of = work / "mutants.json", [TOOL, digest.hexdigest()]
    if kept.is_file():
        known = json.loads(kept.read_text(encoding="utf-8"))
        if known["of"] == of:
            return [Mutant(*each) for each in known["mutants"]], of[1]
    tool = work / "venv/bin/mutate"
    if not tool.is_file():
        print("installing universalmutator from the Python package index", flush=True)
        subprocess.run([sys.executable, "-m", "venv", work / "venv"], check=True)
        subprocess.run([work / "venv/bin/pip", "install", "--quiet", "--disable-pip-version-check", TOOL], check=True)
    print(f"making the mutants of {len(files)} files", flush=True)
    found = sorted(set().union(*(mutants_of(tree, work, file, tool) for file in files)))
    kept.write_text(json.dumps({"of": of, "mutants": [dataclasses.astuple(each) for each in found]}), encoding="utf-8")
    return found, of[1]


# Building

class Build:
    """A finished build, of which this takes copies, and the objects that a mutant changes."""

    def __init__(self, root, built, work, jobs):
        self.work, self.tree, self.folder, self.jobs = work, work / "tree", work / "objects", jobs
        self.built = built or root / "build/release"
        # Where it was built. --built may be a copy of that.
        of = dict(re.findall(r"^amem_(BINARY|SOURCE)_DIR:\w+=(.*)$", (self.built / "CMakeCache.txt").read_text(encoding="utf-8"), re.M))
        self.copies = {of["BINARY"]: str(self.folder), of["SOURCE"]: str(self.tree)}
        self.places = re.compile("|".join(rf"{re.escape(each)}(?![\w.-])" for each in self.copies))
        programs = [f"bin/{name}" for name in (*UNIT_TESTS, *PLAYERS, MODEL)]
        if built is None:
            self.must(["ninja", f"-j{jobs}", *programs], self.built)
        self.commands, self.core = {}, {}  # object: how it is compiled; source of the daemon's library: its object
        for entry in json.loads((self.built / "compile_commands.json").read_text(encoding="utf-8")):
            words = [self.moved(word) for word in shlex.split(entry["command"]) if not word.startswith("-W")]
            words = words[next(at for at, word in enumerate(words) if word.endswith(("c++", "cc", "gcc", "clang"))):]
            name, source = words[words.index("-o") + 1], words[words.index("-c") + 1]
            self.commands[name] = words
            if "/amemd_core.dir/" in name and not name.endswith(".gch"):
                together = self.built / pathlib.Path(source).relative_to(self.folder) if "/Unity/" in source else None
                inside = [source]
                if together:  # a mutant of a header is compiled into all that is in it
                    text = self.moved(together.read_text(encoding="utf-8"))
                    pathlib.Path(source).parent.mkdir(parents=True, exist_ok=True)
                    pathlib.Path(source).write_text(text, encoding="utf-8")
                    inside = re.findall(r'^#include "(.*)"', text, re.M)
                self.core.update({each.removeprefix(f"{self.tree}/"): name for each in inside})
        self.needs = self.read_needs()
        if not (self.folder / "generated").is_dir():
            shutil.copytree(self.built / "generated", self.folder / "generated")
            shutil.copytree(self.built / "lib/sim", self.folder / "lib/sim")
        self.precompiled = self.precompile()

    def moved(self, word):
        """A path of the build or of its sources, as one of the copies."""
        return self.places.sub(lambda found: self.copies[found[0]], word)

    def read_needs(self):
        """Of each object the files of the tree that it is made of."""
        needs, name = {}, None
        for line in self.must(["ninja", "-t", "deps"], self.built).splitlines():
            if line and not line[0].isspace():
                name = line.partition(": #deps")[0]
                needs[name] = set()
            elif name and line.strip():
                path = self.moved(line.strip())
                if path.startswith(f"{self.tree}/"):
                    needs[name].add(path.removeprefix(f"{self.tree}/"))
        return needs

    def precompile(self):
        """The large headers of others, compiled as a mutant is. None: the build has none."""
        words = next(iter(self.commands[self.core[each]] for each in self.core))
        if "-include" not in words:
            return None
        header = pathlib.Path(words[words.index("-include") + 1])
        place = self.work / "precompiled.hxx"
        if not pathlib.Path(f"{place}.gch").is_file():
            shutil.copy(self.built / header.relative_to(self.folder), place)
            words = self.without_precompiled(words)
            words[words.index("-o") + 1], words[words.index("-c") + 1] = f"{place}.gch", str(place)
            self.must([words[0], "-w", "-x", "c++-header", *words[1:], *FAST])
        return place

    @property
    def slot(self):
        """Where this process writes what a mutant changes. Each process of a pool has a slot of its own."""
        folder = self.work / "slots" / "_".join(map(str, multiprocessing.current_process()._identity or (0,)))  # pylint: disable=protected-access
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def log(self):
        return self.slot / "build.log"

    @staticmethod
    def without_precompiled(words):
        """It was compiled with other flags."""
        if "-include" not in words:
            return list(words)
        at = words.index("-include")
        return words[:at] + words[at + 2:]

    def must(self, command, folder=None):
        done = run(command, folder or self.folder, self.log)
        if done.status:
            raise Trouble(f"{shlex.join(map(str, command))}:\n{done.output[-4000:]}")
        return done.output

    def link_command(self, program):
        commands = self.must(["ninja", "-t", "commands", "-s", f"bin/{program}"], self.built).split("&&")
        return [self.moved(word) for word in shlex.split(next(each for each in commands if f" -o bin/{program} " in each))]

    def copy(self, name):
        """A copy of an object or library of the build, without what debuggers need."""
        place = self.folder / name
        with open(self.work / "copy.lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not place.is_file():
                place.parent.mkdir(parents=True, exist_ok=True)
                self.must(["objcopy", "-g", self.built / name, place])
        return place

    def functions(self, output):
        """Of an object, for others to call."""
        return {line.split()[0] for line in self.must(["nm", "-P", "--defined-only", output]).splitlines() if line.split()[1] == "T"}

    def compile(self, name, file, output, flags=(), own=True):
        """Whether it compiles. `own`: with the mutant of this file, which the compiler finds before the file itself. With flags: only the
        file, not what the build compiles together with it."""
        output.parent.mkdir(parents=True, exist_ok=True)
        overlay = self.slot / "overlay" if own else self.work / "nothing"
        words = list(self.commands[name])
        words[words.index("-o") + 1] = str(output)
        if flags:
            words = self.without_precompiled(words)
            words[words.index("-c") + 1] = str((overlay if own else self.tree) / file)
            words += [*flags, *(["-include", str(self.precompiled)] if flags == FAST and self.precompiled else [])]
        elif "-include" in words and not pathlib.Path(words[words.index("-include") + 1]).is_file():
            words = self.without_precompiled(words)
        # The flags are the same with a mutant and without, so the code is too. __FILE__ is the file's usual name. A function without its
        # return may do anything, and the compiler finds it: no test has to.
        words[1:1] = ["-Werror=return-type", "-fmax-errors=1", f"-I{overlay}", f"-ffile-prefix-map={overlay}={self.tree}"]
        return run(words, self.folder, f"{output}.log", cpu=600).status == 0


class Program:
    """A test program, made of its own objects and of the daemon's library."""

    def __init__(self, build, name):
        self.build, self.name = build, name
        self.words, self.own = [], []
        for word in build.link_command(name):
            target = re.fullmatch(r"lib/lib(\w+)\.a", word)
            # Those of a library of tests or of an add-on may contain a header that a mutant changes.
            inside = sorted(each for each in build.commands if target and f"/{target[1]}.dir/" in each and each.startswith(("tests/", "addons/")))
            self.words += inside or [word]
            self.own += inside or ([word] if word.endswith(".o") else [])
        self.near = self.reached()

    def reached(self):
        """Files of the daemon that it may contain: those whose headers its own files include, and so on."""
        includes = {}

        def of(file):
            if file not in includes:
                path = self.build.tree / file
                text = path.read_text(encoding="utf-8") if path.is_file() else ""
                includes[file] = re.findall(r'^#include "((?:addons|daemon|common)/[^"]*)"', text, re.M)
            return includes[file]

        found = set()
        waiting = [each for name in self.own for each in self.build.needs.get(name, ()) if each.startswith("daemon/")]
        while waiting:
            file = waiting.pop()
            if file in found:
                continue
            found.add(file)
            waiting += of(file)
            if file.endswith(".h"):
                waiting += [each for each in self.build.core if each.startswith(file[:-2]) and each[len(file) - 2:] == ".cpp"]
                # What the header declares may be in several files.
                waiting += [each for each in self.build.core if file in of(each) and os.path.dirname(each) == os.path.dirname(file)
                            and not (self.build.tree / f"{each[:-4]}.h").is_file()]
        return found

    def output(self):
        return self.build.slot / f"run_{self.name}"

    def link(self, mutated=None):
        """Links it, with these objects in the place of the build's or, for those of the library, before them."""
        mutated = mutated or {}
        words = []
        for word in self.words:
            if word in mutated:
                words.append(str(mutated[word]))
            else:
                words.append(str(self.build.copy(word)) if word in self.own or re.fullmatch(r"lib/\w+\.a", word) else word)
        words[words.index("-o") + 1] = str(self.output())
        first = [str(path) for name, path in mutated.items() if name not in self.own]
        # The library is position-independent code, in which a function is not inlined in another file's, nor called by another name.
        more = [*(["-fuse-ld=lld"] if shutil.which("ld.lld") else []), "-Wl,--allow-multiple-definition", "-g0"]
        return run([words[0], *more, *first, *words[1:]], self.build.folder, self.build.log, cpu=600)


# Tests

class Tests:
    """Judges a mutant by all programs."""

    def __init__(self, build, digest, without=()):
        self.build, self.killers = build, collections.Counter()
        self.everything = {name: Program(build, name) for name in (*UNIT_TESTS, *PLAYERS, MODEL)}
        self.programs = {name: program for name, program in self.everything.items() if name not in without}
        kept = build.work / "baseline.json"
        known = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
        if known.get("of") != digest:
            known = {"of": digest, "cpu": {}, "failing": {}, "worlds": []}
        missing = [name for name in self.programs if name != MODEL and name not in known["cpu"]]
        worlds = MODEL in self.programs and not known["worlds"]
        if missing or worlds:
            print("running the tests without a mutant", flush=True)
        with multiprocessing.Pool(build.jobs, begin_process) as pool:
            for name, cpu, failing in pool.imap_unordered(self.measure, missing):
                known["cpu"][name], known["failing"][name] = cpu, failing
                kept.write_text(json.dumps(known, indent=1), encoding="utf-8")
            if worlds:
                known["worlds"] = self.measure_worlds(pool)
        kept.write_text(json.dumps(known, indent=1), encoding="utf-8")
        self.cpu, self.failing, self.worlds = known["cpu"], known["failing"], known["worlds"]

    def mutate(self, file, text):
        """Writes it where the compiler finds mutants, and removes the last one."""
        for folder in ("overlay", "mutated"):
            shutil.rmtree(self.build.slot / folder, ignore_errors=True)
        place = self.build.slot / "overlay" / file
        place.parent.mkdir(parents=True)
        place.write_text(text, encoding="utf-8")

    def original(self, file):
        return (self.build.tree / file).read_text(encoding="utf-8")

    def gtest(self, program, chosen, left_out=(), more=(), cpu=None):
        """Runs tests in a folder of their own. Its path is short, because names of sockets may not be long."""
        scratch = tempfile.mkdtemp(prefix="amem-mutants-")
        os.chmod(scratch, 0o711)  # for tests that are other users, too
        try:
            environment = {**os.environ, "LD_LIBRARY_PATH": str(self.build.folder / "lib/sim"), "TMPDIR": scratch}
            tests = ":".join(chosen) + "-" + ":".join(left_out)
            return run([program.output(), f"--gtest_filter={tests}", "--gtest_color=no", *more], scratch, self.build.slot / "test.log",
                       cpu=cpu, silence=LONGEST_SILENCE, environment=environment)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def play(self, program, cpu=None):
        return run([program.output(), *PLAYERS[program.name]], self.build.slot, self.build.slot / "test.log", cpu=cpu)

    def measure(self, name):
        """Its name, its CPU seconds and the tests that fail without a mutant. Those are left out."""
        program = self.programs[name]
        linked = program.link()
        if linked.status:
            raise Trouble(f"{program.name} cannot be linked\n{linked.output[-4000:]}")
        if name in PLAYERS:
            done = self.play(program)
            if done.status:
                raise Trouble(f"{name} fails without a mutant:\n{done.output[-4000:]}")
            return name, done.cpu, []
        left_out = []
        while True:
            done = self.gtest(program, ["*"], left_out)
            failed = failed_tests(done)
            if done.status == 0:
                break
            if not failed:
                raise Trouble(f"{program.name} fails without a mutant:\n{done.output[-4000:]}")
            always = [each for each in failed if all(self.gtest(program, [each]).status for _ in range(2))]
            if not always:
                break
            left_out += always
        return program.name, done.cpu, left_out

    def measure_worlds(self, pool):
        """Of each world, smallest first: states, CPU seconds, and the arguments of the model."""
        if self.programs[MODEL].link().status:
            raise Trouble(f"{MODEL} cannot be linked")
        program = self.programs[MODEL].output()
        names = [line.split()[0] for line in self.must_run([program, "--list"]).output.splitlines()]
        orders = ["--orders", "200"]
        measured = pool.starmap(self.measure_world, [(program, name) for name in names], chunksize=1)
        return sorted([*filter(None, measured), [0, self.must_run([program, *orders]).cpu, orders]])

    def measure_world(self, program, name):
        for faults, longest in zip((1, 0), LONGEST_WORLD):
            arguments = ["--jobs", "1", "--faults", str(faults), name]
            done = run([program, *arguments], self.build.slot, self.build.slot / "test.log", cpu=longest)
            if not done.late:
                break
        else:
            return None
        if done.status:
            raise Trouble(f"{program} {shlex.join(arguments)} fails without a mutant:\n{done.output[-4000:]}")
        return [int(re.search(r"(\d+) states", done.output)[1]), done.cpu, arguments]

    def must_run(self, command):
        done = run(command, self.build.slot, self.build.slot / "test.log")
        if done.status:
            raise Trouble(f"{shlex.join(map(str, command))} fails without a mutant:\n{done.output[-4000:]}")
        return done

    def judge(self, mutant):
        """The result for this mutant, and which program gave it."""
        self.mutate(mutant.file, mutant.text(self.original(mutant.file)))
        if not any(mutant.file in program.near for program in self.everything.values()):
            return {"result": "in no program"}
        programs = [program for program in self.programs.values() if mutant.file in program.near]
        mutated = {}
        for program in sorted(programs, key=lambda each: self.cpu.get(each.name, math.inf)):
            if not self.make(program, mutant.file, mutated):
                return {"result": "does not compile", "by": program.name}
            found = self.failing_test(program) if program.name in UNIT_TESTS else self.failing_play(program)
            if found:
                return found
        return {"result": self.compare(mutant.file, mutated)}

    def make(self, program, file, mutated):
        """Whether what the mutant changes compiles, and the program links. `mutated`: objects that are compiled already; gets more."""
        if file in self.build.core:
            wanted = {file: lambda output: self.build.compile(self.build.core[file], file, output, FAST)}
        else:
            wanted = {name: lambda output, name=name: self.build.compile(name, file, output)
                      for name in (*dict.fromkeys(self.build.core.values()), *program.own) if file in self.build.needs.get(name, ())}
        for name, made in wanted.items():
            if name not in mutated:
                mutated[name] = self.build.slot / "mutated" / f"{name}.o"
                if not made(mutated[name]):
                    return False
        return program.link({name: path for name, path in mutated.items() if name in wanted}).status == 0

    def compare(self, file, mutated):
        """What a mutant is that no test has killed."""
        if file in self.build.core:
            mutant, original = (self.build.slot / "mutated" / f"{own}.o" for own in ("with", "without"))
            for output in (mutant, original):
                if not self.build.compile(self.build.core[file], file, output, OPTIMISED, output is mutant):
                    return "survived"
            if mutant.read_bytes() == original.read_bytes():
                return "equivalent"
            # The programs have taken what it lacks from the library.
            return "survived" if self.build.functions(original) <= self.build.functions(mutant) else "does not compile"
        for name, path in mutated.items():
            original = self.build.slot / "mutated" / "without.o"
            if not self.build.compile(name, file, original, own=False) or original.read_bytes() != path.read_bytes():
                return "survived"
        return "equivalent"

    def failing_play(self, program):
        """What fails once more is killed. The simulated driver may miss something while other processes end."""
        if program.name != MODEL:
            for _ in range(2):
                done = self.play(program, 5 * self.cpu[program.name] + 10)
                if done.status == 0:
                    return None
                if done.late:
                    break
            return {"result": "killed", "by": program.name, "test": " ".join(PLAYERS[program.name]), "late": done.late}
        for _, cpu, arguments in self.worlds:
            done = run([program.output(), *arguments], self.build.slot, self.build.slot / "test.log", cpu=5 * cpu + 10)
            if done.status:
                return {"result": "killed", "by": MODEL, "test": " ".join(arguments), "late": done.late}
        return None

    def fails_alone(self, program, test):
        """Each time of several: on a busy machine a test may time out twice."""
        return all(self.gtest(program, [test], cpu=5 * self.cpu[program.name] + 30).status for _ in range(3))

    def failing_test(self, program):
        """Tests that have killed a mutant run first. A test that fails runs again, alone."""
        left_out = list(self.failing[program.name])
        first = [test for (name, test), _ in self.killers.most_common() if name == program.name][:MOST_FIRST]
        for chosen in (first, ["*"]) if first else (["*"],):
            while True:
                done = self.gtest(program, chosen, left_out, ["--gtest_fail_fast"], 5 * self.cpu[program.name] + 30)
                if done.status == 0:
                    break
                test = (failed_tests(done) or [None])[0]
                if done.late or test is None or self.fails_alone(program, test):
                    self.killers[program.name, test] += 1
                    return {"result": "killed", "by": program.name, "test": test, "late": done.late}
                left_out += [test, *re.findall(r"^\[       OK \] ([\w/]+\.[\w/]+)", done.output, re.M)]
            left_out += first
        return None


def failed_tests(done):
    """The tests that failed, or else the one in which the program ended."""
    failed = re.findall(r"^\[  FAILED  \] ([\w/]+\.[\w/]+)", done.output, re.M)
    running = re.findall(r"^\[ RUN      \] ([\w/]+\.[\w/]+)$", done.output, re.M)
    return list(dict.fromkeys(failed)) or running[-1:]


# Results

COUNTED = ("killed", "survived")


class Results:
    """A file. Its first line describes the sample. Each other line is a mutant that was judged, with its stratum and its number there. Of two
    lines of the same mutant the second counts."""

    def __init__(self, path, count):
        self.path, self.count = path, count
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        self.sample = json.loads(lines[0]) if lines else None
        self.by_number = {(each["stratum"], each["number"]): each for each in map(json.loads, lines[1:])}
        known = tomllib.loads(EQUIVALENTS.read_text(encoding="utf-8")) if EQUIVALENTS.is_file() else {}
        self.equivalents = {(each["file"], each["before"].strip(), each["after"].strip()) for each in known.get("equivalent", ())}

    def begin(self, asked):
        if self.sample is None:
            self.sample = asked
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.add(asked)
        elif self.sample != asked:
            raise Trouble(f"{self.path} has the results of another sample: {self.sample} is not {asked}")

    def add(self, line):
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def judge(self, stratum, number, mutant, found):
        self.by_number[stratum, number] = {"stratum": stratum, "number": number, **dataclasses.asdict(mutant), **found}
        self.add(self.by_number[stratum, number])

    def result(self, judged):
        named = (judged["file"], judged["before"].strip(), judged["after"].strip())
        return "called equivalent" if judged["result"] == "survived" and named in self.equivalents else judged["result"]

    def judged(self, stratum):
        """The first ones of the sample, without a gap, until enough count. Later ones may be judged already, but do not count yet."""
        found, counted = [], 0
        for number in itertools.count():
            if counted == self.count or (stratum, number) not in self.by_number:
                return found
            found.append(self.by_number[stratum, number])
            counted += self.result(found[-1]) in COUNTED

    def of(self, stratum, *results):
        return [each for each in self.judged(stratum) if self.result(each) in results]

    def survivors(self):
        return [each for stratum in STRATA for each in self.of(stratum, "survived")]

    def print_survivors(self):
        for each in self.survivors():
            print(f"  {each['stratum']} {mutant_of(each)}")

    def print_all(self):
        """Prints the shares. False: too many are called equivalent."""
        few = True
        for stratum, begins in STRATA.items():
            killed, counted = self.of(stratum, "killed"), self.of(stratum, *COUNTED)
            called = len(self.of(stratum, "called equivalent"))
            print(f"{stratum}: {', '.join(each.rstrip('/') for each in begins)}")
            if counted:
                low, high = interval(len(killed), len(counted))
                print(f"  killed: {len(killed)} of {len(counted)}, {len(killed) / len(counted):.0%} (95 % interval: {low:.0%} to {high:.0%})")
            for name, number in collections.Counter(each["by"] for each in killed).most_common():
                late = sum(each["late"] for each in killed if each["by"] == name)
                print(f"    {name}: {number}" + (f", {late} by their time or memory" if late else ""))
            replaced = {each: len(self.of(stratum, each)) for each in ("does not compile", "equivalent", "in no program")}
            print(f"  replaced: {replaced['does not compile']} that do not compile, {replaced['equivalent']} that compile to the same code,"
                  f" {replaced['in no program']} in a file that no program contains, {called} called equivalent")
            if called > MOST_EQUIVALENT * (len(counted) + called):
                print(f"  more than {MOST_EQUIVALENT:.0%} are called equivalent")
                few = False
        print(f"survived: {len(self.survivors())}")
        self.print_survivors()
        return few


def mutant_of(judged):
    return Mutant(*(judged[field.name] for field in dataclasses.fields(Mutant)))


def interval(successes, number):
    """Wilson's."""
    z, share = 1.96, successes / number
    middle = share + z * z / (2 * number)
    width = z * math.sqrt(share * (1 - share) / number + z * z / (4 * number * number))
    return (middle - width) / (1 + z * z / number), (middle + width) / (1 + z * z / number)


def begin_judge(tests):
    """Begins a process that judges mutants. It learns by itself which tests find most."""
    begin_process()
    judge.tests = tests


def judge(stratum, number, mutant):
    started = time.monotonic()
    return stratum, number, mutant, {**judge.tests.judge(mutant), "seconds": round(time.monotonic() - started, 1)}


def sample(arguments, results):
    """Judges mutants until enough of them count. False: --minutes ended it."""
    began = time.monotonic()
    root = arguments.root.resolve()
    work = (arguments.build_dir or root / "build/mutants").resolve()
    (work / "tree").mkdir(parents=True, exist_ok=True)
    (work / "objects").mkdir(parents=True, exist_ok=True)
    digest = copy_sources(root, work / "tree")
    found, of = all_mutants(work / "tree", work, (".cpp",) if arguments.sources else (".h", ".cpp"))
    results.begin({"seed": arguments.seed, "of": len(found), "tool": TOOL, "files": of})
    mutants = {name: [each for each in found if stratum_of(each.file) == name] for name in STRATA}
    for each in mutants.values():
        random.Random(arguments.seed).shuffle(each)
    if any(mutant_of(each) != mutants[name][number] for (name, number), each in results.by_number.items()):
        raise Trouble(f"{results.path} has mutants of another order")
    tests = Tests(Build(root, arguments.built, work, arguments.jobs), digest, arguments.without)
    for each in results.by_number.values():
        if each["result"] == "killed":
            tests.killers[each["by"], each["test"]] += 1
    done, under_way = queue.SimpleQueue(), collections.Counter()
    again = [(each["stratum"], each["number"], mutant_of(each)) for each in results.survivors()] if arguments.again else None
    rest = {name: iter([(name, number, each) for number, each in enumerate(of) if (name, number) not in results.by_number])
            for name, of in mutants.items()}

    def following():
        """The next mutant: of the stratum of which fewer are under way."""
        if again is not None:
            return again.pop(0) if again else None
        wanted = [name for name in rest if len(results.of(name, *COUNTED)) < arguments.count]
        for name in sorted(wanted, key=lambda each: (under_way[each], len(results.of(each, *COUNTED)))):
            if found := next(rest[name], None):
                return found
        return None

    with multiprocessing.Pool(arguments.jobs, begin_judge, (tests,)) as pool:
        while True:
            late = arguments.minutes is not None and time.monotonic() - began > 60 * arguments.minutes
            while not late and under_way.total() < arguments.jobs and (found := following()):
                under_way[found[0]] += 1
                pool.apply_async(judge, found, callback=done.put, error_callback=done.put)
            if not under_way.total():
                return not late
            if late:
                return False
            judged = done.get()
            if isinstance(judged, BaseException):
                raise judged
            stratum, number, mutant, found = judged
            under_way[stratum] -= 1
            results.judge(stratum, number, mutant, found)
            if found["result"] == "killed":
                tests.killers[found["by"], found["test"]] += 1
            by = ": ".join(str(found[each]) for each in ("result", "by", "test") if found.get(each))
            print(f"{stratum} {len(results.of(stratum, *COUNTED))}/{arguments.count} {found['seconds']:.0f} s {by}: {mutant}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=60, help="mutants of a stratum that are killed or survive (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (default: %(default)s)")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="another checkout than this one")
    parser.add_argument("--built", type=pathlib.Path, help="a finished build (default: build/release in the checkout, which is built first)")
    parser.add_argument("--sources", action="store_true", help="no mutants of headers, for each of which much is compiled again")
    parser.add_argument("--without", action="append", default=[], choices=(*UNIT_TESTS, *PLAYERS, MODEL), help="a program that is left out")
    parser.add_argument("--again", action="store_true", help="judge the survivors again, by the tests of today, and no others")
    parser.add_argument("--build-dir", type=pathlib.Path, help="where it works (default: build/mutants in the checkout)")
    parser.add_argument("--results", type=pathlib.Path, help="the file of results (default: results.jsonl in the build directory)")
    parser.add_argument("--minutes", type=float, help="begin no other mutant after these")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants at once (default: the machine's %(default)s cores)")
    parser.add_argument("--list-survivors", action="store_true", help="only print those of the file of results")
    arguments = parser.parse_args()
    path = arguments.results or (arguments.build_dir or arguments.root / "build/mutants") / "results.jsonl"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        results = Results(path, arguments.count)
        if arguments.list_survivors:
            results.print_survivors()
            return 0
        if os.nice(0) == 0:
            os.nice(19)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        complete = sample(arguments, results)
        few = results.print_all()
        return 1 if not few else 0 if complete else 3
    except Trouble as trouble:
        print(f"sample.py: {trouble}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
