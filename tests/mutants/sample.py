#!/usr/bin/env python3
"""Measures which share of small faults in the pure logic the unit tests and the model find.

    tests/mutants/sample.py                              60 mutants of this checkout
    tests/mutants/sample.py --jobs 32                    several at once; the result is the same
    tests/mutants/sample.py --root DIR --seed 46         of another checkout, for example one of an older commit
    tests/mutants/sample.py --results FILE --list-survivors

universalmutator makes the mutants: copies of a file in which one line is changed. The seed chooses among all of them. Each mutant is built
into the unit tests and the model that contain its file, and these run until one fails. A mutant that does not compile is replaced by the next
one. So is a mutant for which the compiler makes the same code as for the original. Each result is a line of a file, and the next run judges
those that have none. All work is done in build/mutants of the checkout, on a copy of the sources. The sources do not change.
Exit status 0 when the sample is complete, 1 when something went wrong, 3 when --minutes ended it.
"""
import argparse
import collections
import concurrent.futures
import dataclasses
import fcntl
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import pathlib
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

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = "universalmutator==1.14.1"  # another version has other rules, and so other mutants
FOLDERS = ("phases", "plans", "record", "operations", "transactions")
# Not amemd_test, which asks how the program starts, ends and is called.
UNIT_TESTS = ("logic_test", "broker_test", "serving_test")
MODEL = "explore"
# A world of the model has 1 fault, or none where it has more states than this with 1. The model goes through some 20,000 in a second.
MOST_STATES = 10_000
MOST_MEMORY = 4 << 30
MOST_FIRST = 10
# Seconds in which a unit test says nothing. The longest needs one or two, and a busy machine lets it wait.
LONGEST_SILENCE = 90
# The unit tests need not be fast; the model has to be, with the objects of the library that it needs. A mutant counts as
# equivalent if the compiler makes the same code of it with optimisation.
FLAGS = "-O0 -DNDEBUG"
OPTIMISED = ".fast"
JOINED = 8  # sources of tests that are compiled as one, as with AMEM_UNITY
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


def all_mutants(tree, work, digest):
    """All mutants, sorted, so that a seed chooses the same whatever the tool's order."""
    kept = work / "mutants.json"
    if kept.is_file():
        known = json.loads(kept.read_text(encoding="utf-8"))
        if known["of"] == [TOOL, digest]:
            return [Mutant(*each) for each in known["mutants"]]
    tool = work / "venv/bin/mutate"
    if not tool.is_file():
        print("installing universalmutator from the Python package index", flush=True)
        subprocess.run([sys.executable, "-m", "venv", work / "venv"], check=True)
        subprocess.run([work / "venv/bin/pip", "install", "--quiet", "--disable-pip-version-check", TOOL], check=True)
    files = sorted(path.relative_to(tree).as_posix() for folder in FOLDERS for path in (tree / "daemon" / folder).glob("*")
                   if path.suffix in (".h", ".cpp"))
    found = sorted(set().union(*(mutants_of(tree, work, file, tool) for file in files)))
    kept.write_text(json.dumps({"of": [TOOL, digest], "mutants": [dataclasses.astuple(each) for each in found]}), encoding="utf-8")
    return found


# Building

class Build:
    """Compiles objects, without a mutant and with one. cmake says how. ninja builds what no mutant changes, such as libraries."""

    def __init__(self, work, jobs):
        self.work, self.tree, self.folder, self.jobs = work, work / "tree", work / "unit", jobs
        if not (self.folder / "build.ninja").is_file():
            linker = "-fuse-ld=lld" if shutil.which("ld.lld") else ""
            self.must(["cmake", "-G", "Ninja", "-S", self.tree, "-B", self.folder, "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
                       f"-DCMAKE_C_FLAGS_RELWITHDEBINFO={FLAGS}", f"-DCMAKE_CXX_FLAGS_RELWITHDEBINFO={FLAGS}",
                       f"-DCMAKE_EXE_LINKER_FLAGS={linker}", "-DAMEM_UNITY=OFF", "-DAMEM_PRECOMPILE=ON", "-DAMEM_WERROR=OFF",
                       "-DCMAKE_C_COMPILER_LAUNCHER=", "-DCMAKE_CXX_COMPILER_LAUNCHER="], self.tree)
        self.ninja("build.ninja")
        self.commands = {}
        self.core = {}  # source of the daemon's library: its object
        for entry in json.loads((self.folder / "compile_commands.json").read_text(encoding="utf-8")):
            words = [word for word in shlex.split(entry["command"]) if not word.startswith("-W")]
            name, source = words[words.index("-o") + 1], words[words.index("-c") + 1]
            self.commands[name] = words
            if "/amemd_core.dir/" in name and not name.endswith(".gch"):
                self.core[source.removeprefix(f"{self.tree}/")] = name
                self.commands[name + OPTIMISED] = [*self.without_precompiled(words), "-O2"]

    @property
    def slot(self):
        """Where this process writes what a mutant changes. Each process of a pool has a slot of its own."""
        folder = self.work / "slots" / "_".join(map(str, multiprocessing.current_process()._identity or (0,)))  # pylint: disable=protected-access
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def log(self):
        return self.slot / "build.log"

    def precompiled(self, folders):
        """Precompiled headers of targets of these names."""
        used = {words[words.index("-include") + 1] for name, words in self.commands.items()
                if "-include" in words and any(f"/{folder}.dir/" in name for folder in folders)}
        return sorted(f"{os.path.relpath(each, self.folder)}.gch" for each in used)

    @staticmethod
    def without_precompiled(words):
        """It was compiled with other flags."""
        at = words.index("-include")
        return words[:at] + words[at + 2:]

    def must(self, command, folder=None):
        done = run(command, folder or self.folder, self.log)
        if done.status:
            raise Trouble(f"{shlex.join(map(str, command))}:\n{done.output[-4000:]}")
        return done.output

    def ninja(self, *targets):
        self.must(["ninja", f"-j{self.jobs}", *targets])

    def link_command(self, program):
        commands = self.must(["ninja", "-t", "commands", "-s", f"bin/{program}"]).split("&&")
        return shlex.split(next(each for each in commands if f" -o bin/{program} " in each))

    def join(self, objects):
        """Several objects as fewer, each of several sources. Only a mutant of a header changes those of tests."""
        joined = []
        for at in range(0, len(objects), JOINED):
            name = f"{os.path.dirname(objects[at])}/joined_{at}.cpp.o"
            sources = [self.commands[each][self.commands[each].index("-c") + 1] for each in objects[at:at + JOINED]]
            text, place = "".join(f'#include "{source}"\n' for source in sources), self.work / "joined" / name[:-2]
            if not place.is_file() or place.read_text(encoding="utf-8") != text:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text, encoding="utf-8")
            self.commands[name] = list(self.commands[objects[at]])
            self.commands[name][self.commands[name].index("-c") + 1] = str(place)
            joined.append(name)
        return joined

    def path(self, name, mutated=None):
        return (self.slot / "mutated" if mutated else self.work / "objects") / name

    def compile(self, name, mutated=None):
        """Whether it compiles. `mutated`: with the mutant of this file, which the compiler finds before the file itself."""
        words, output = list(self.commands[name]), self.path(name, mutated)
        output.parent.mkdir(parents=True, exist_ok=True)
        words[words.index("-o") + 1] = str(output)
        source = words.index("-c") + 1
        if words[source] == f"{self.tree}/{mutated}":
            words[source] = str(self.slot / "overlay" / mutated)
        # The flags are the same with a mutant and without, so the code is too. __FILE__ is the file's usual name.
        overlay = self.slot / "overlay" if mutated else self.work / "nothing"
        words[1:1] = ["-w", "-fmax-errors=1", f"-I{overlay}", f"-ffile-prefix-map={overlay}={self.tree}", "-MD", "-MF", f"{output}.d"]
        return run(words, self.folder, f"{output}.log", cpu=600).status == 0

    def compile_all(self, names, mutated):
        """Whether all compile, with the mutant of this file. Of a machine's cores each of `jobs` takes its share."""
        with concurrent.futures.ThreadPoolExecutor(max(1, os.cpu_count() // self.jobs)) as pool:
            return all(list(pool.map(lambda name: self.compile(name, mutated), names)))

    def files(self, name):
        """The files of the tree that an object is made of. Compiles the object again if one of them has changed."""
        output = self.path(name)
        output.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{output}.lock", "wb") as lock:  # two slots may need the same object
            fcntl.flock(lock, fcntl.LOCK_EX)
            return self.compiled_of(name, output)

    def compiled_of(self, name, output):
        written = pathlib.Path(f"{output}.d")
        for _ in range(2):
            if output.is_file() and written.is_file():
                names = written.read_text(encoding="utf-8").replace("\\\n", " ").partition(": ")[2].split()
                files = [path for each in names if (path := pathlib.Path(os.path.normpath(self.folder / each))).is_relative_to(self.work)]
                made = output.stat().st_mtime_ns
                if all(path.is_file() and path.stat().st_mtime_ns <= made for path in files):
                    return {path.relative_to(self.tree).as_posix() for path in files if path.is_relative_to(self.tree)}
            if not self.compile(name):
                raise Trouble(f"{name} does not compile:\n{pathlib.Path(f'{output}.log').read_text(encoding='utf-8')[-4000:]}")
        raise Trouble(f"{name} is older than its sources")

    def all_files(self, names):
        """Those of several objects."""
        with multiprocessing.Pool(self.jobs, begin_process) as pool:
            return dict(zip(names, pool.map(self.files, names, chunksize=1)))

    def is_same(self, name):
        return self.path(name).read_bytes() == self.path(name, True).read_bytes()


class Program:
    """A test program, made of its own objects and of those of the daemon's library that it needs."""

    def __init__(self, build, name, optimised):
        self.build, self.name, self.members = build, name, []
        self.ending = OPTIMISED if optimised else ""
        words = build.link_command(name)
        build.ninja(*(word for word in words if word.startswith("lib/") and word.endswith(".a") and word != CORE))
        own = [word for word in words if word.endswith(".o")]
        at, rest = words.index(own[0]), [word for word in words if word not in own]
        own = own if optimised else build.join(own)
        self.words = [*rest[:at], *own, *rest[at:]]
        self.files = build.all_files(own)
        near = self.near()
        archive = build.folder / f"lib/of_{name}.a"
        archive.unlink(missing_ok=True)
        build.must(["ar", "qcT", archive, *map(build.path, near)])
        linked = self.link(core=[archive], more=["-Wl,--trace"])
        if linked.status:
            raise Trouble(f"{name} cannot be linked; is a function defined elsewhere than beside its header?\n{linked.output[-4000:]}")
        self.members = [each for each in near if re.search(rf"[/(]{re.escape(os.path.basename(each))}\b", linked.output)]
        self.files |= build.all_files(self.members)

    def near(self):
        """Objects of the library: of the files whose headers these include, and so on. To compile the whole library takes longer."""
        # What tests add to the library has its declaration in a header of the library.
        found = {made + self.ending for file, made in self.build.core.items() if not file.startswith("daemon/")}
        headers = set().union(*self.files.values(), *self.build.all_files(sorted(found)).values())
        while True:
            beside = {each[:-2] + ".cpp" for each in headers if each.endswith(".h")}
            new = {self.build.core[each] + self.ending for each in beside if each in self.build.core} - found
            if not new:
                return sorted(found)
            found |= new
            headers = set().union(*self.build.all_files(sorted(new)).values())

    def output(self):
        return self.build.folder / "bin" / f"sampled_{self.name}_{self.build.slot.name}"

    def link(self, mutated=(), core=None, more=()):
        """Links it, with these objects as the mutant makes them."""
        words = []
        for word in self.words:
            words += (core or self.members) if word == CORE else [word]
        words = [str(self.build.path(word, word in mutated)) if word in self.files or word in self.members else str(word) for word in words]
        words[words.index("-o") + 1] = str(self.output())
        return run([*words, *more], self.build.folder, self.build.log, cpu=600)

    def affected(self, file):
        """Objects that contain a file."""
        return sorted(each for each, files in self.files.items() if file in files)


# Tests

class Tests:
    """Judges a mutant by all programs."""

    def __init__(self, work, digest, jobs):
        print("building the unit tests and the model, as far as they are not built", flush=True)
        self.build = Build(work, jobs)
        # The first two are what broker_test loads.
        self.build.ninja("sim_cuda", "sim_nvml", *self.build.precompiled(("amemd_core", *UNIT_TESTS)))
        self.programs = {name: Program(self.build, name, False) for name in UNIT_TESTS}
        self.explore = Program(self.build, MODEL, True)
        self.check_sameness()
        self.killers = collections.Counter()
        kept = work / "baseline.json"
        known = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
        if known.get("of") != digest:
            known = {"of": digest, "cpu": {}, "failing": {}, "worlds": []}
            print("running them without a mutant", flush=True)
            with multiprocessing.Pool(jobs, begin_process) as pool:
                for name, cpu, failing in pool.imap_unordered(self.measure, self.programs.values()):
                    known["cpu"][name], known["failing"][name] = cpu, failing
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

    def check_sameness(self):
        """Checks that an unchanged file compiles to the same object. Otherwise no mutant would be found equivalent."""
        fast = self.explore.members[0]
        file = next(each for each, made in self.build.core.items() if made + OPTIMISED == fast)
        self.mutate(file, self.original(file))
        for name in (fast, self.build.core[file]):
            self.build.files(name)
            if not self.build.compile(name, file) or not self.build.is_same(name):
                raise Trouble(f"{file}, compiled again, is not the same")

    def gtest(self, program, chosen, left_out=(), more=(), cpu=None):
        """Runs tests in a folder of their own. Its path is short, because names of sockets may not be long."""
        scratch = tempfile.mkdtemp(prefix="amem-mutants-")
        try:
            environment = {**os.environ, "LD_LIBRARY_PATH": str(self.build.folder / "lib/sim"), "TMPDIR": scratch}
            tests = ":".join(chosen) + "-" + ":".join(left_out)
            return run([program.output(), f"--gtest_filter={tests}", "--gtest_color=no", *more], scratch, self.build.slot / "test.log",
                       cpu=cpu, silence=LONGEST_SILENCE, environment=environment)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def measure(self, program):
        """Its name, its CPU seconds and the tests that fail without a mutant. Those are left out."""
        if program.link().status:
            raise Trouble(f"{program.name} cannot be linked")
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
        if self.explore.link().status:
            raise Trouble(f"{MODEL} cannot be linked")
        program = self.explore.output()
        names = [line.split()[0] for line in self.must_run([program, "--list"]).output.splitlines()]
        orders = ["--orders", "200"]
        return sorted([*pool.starmap(self.measure_world, [(program, name) for name in names], chunksize=1),
                       [0, self.must_run([program, *orders]).cpu, orders]])

    def measure_world(self, program, name):
        for faults in (1, 0):
            arguments = ["--faults", str(faults), name]
            done = self.must_run([program, *arguments])
            states = int(re.search(r"(\d+) states", done.output)[1])
            if states <= MOST_STATES:
                break
        return [states, done.cpu, arguments]

    def must_run(self, command):
        done = run(command, self.build.slot, self.build.slot / "test.log")
        if done.status:
            raise Trouble(f"{shlex.join(map(str, command))} fails without a mutant:\n{done.output[-4000:]}")
        return done

    def judge(self, mutant):
        """The result for this mutant, and which program gave it."""
        self.mutate(mutant.file, mutant.text(self.original(mutant.file)))
        product = self.product(mutant.file)
        if not product:
            return {"result": "in no program"}
        if not self.build.compile(product[0], mutant.file) or not self.build.compile_all(product[1:], mutant.file):
            return {"result": "does not compile"}
        if all(map(self.build.is_same, product)):
            return {"result": "equivalent", "by": "without optimisation"}
        compiled = set(product)
        for program in self.programs.values():
            affected = program.affected(mutant.file)
            if not affected:
                continue
            if not self.make(program, affected, mutant.file, compiled):
                return {"result": "does not compile", "by": program.name}
            found = self.failing_test(program)
            if found:
                return found
        return self.judge_by_model(mutant.file, product)

    def make(self, program, affected, file, compiled):
        if not self.build.compile_all([name for name in affected if name not in compiled], file):
            return False
        compiled |= set(affected)
        return program.link(affected).status == 0

    def product(self, file):
        """Objects of the daemon that contain the file. The one of the same name is first: it shows soonest whether the mutant compiles."""
        if file in self.build.core:
            self.build.files(self.build.core[file])
            return [self.build.core[file]]
        own = f"{pathlib.PurePath(file).stem}.cpp.o"
        return sorted({name for program in self.programs.values() for name in program.affected(file) if name in program.members},
                      key=lambda name: (os.path.basename(name) != own, name))

    def failing_test(self, program):
        """Tests that have killed a mutant run first. A test that fails runs again, alone, because on a busy machine some tests time out."""
        left_out = list(self.failing[program.name])
        first = [test for (name, test), _ in self.killers.most_common() if name == program.name][:MOST_FIRST]
        for chosen in (first, ["*"]) if first else (["*"],):
            while True:
                done = self.gtest(program, chosen, left_out, ["--gtest_fail_fast"], 5 * self.cpu[program.name] + 30)
                if done.status == 0:
                    break
                test = (failed_tests(done) or [None])[0]
                again = done if done.late or test is None else self.gtest(program, [test], cpu=5 * self.cpu[program.name] + 30)
                if again.status:
                    self.killers[program.name, test] += 1
                    return {"result": "killed", "by": program.name, "test": test, "late": again.late}
                left_out.append(test)
            left_out += first
        return None

    def judge_by_model(self, file, product):
        """For a mutant that the unit tests have not found: whether it changes the code, and whether the model finds it."""
        compiled = set()
        for name in (each + OPTIMISED for each in product):
            self.build.files(name)
            if not self.build.compile(name, file):
                return {"result": "does not compile", "by": name}
            compiled.add(name)
            if not self.build.is_same(name):
                break
        else:
            return {"result": "equivalent", "by": "with optimisation"}
        affected = self.explore.affected(file)
        if affected:
            if not self.make(self.explore, affected, file, compiled):
                return {"result": "does not compile", "by": MODEL}
            for _, cpu, arguments in self.worlds:
                done = run([self.explore.output(), *arguments], self.build.slot, self.build.slot / "test.log", cpu=5 * cpu + 10)
                if done.status:
                    return {"result": "killed", "by": MODEL, "test": " ".join(arguments), "late": done.late}
        return {"result": "survived"}


def failed_tests(done):
    """The tests that failed, or else the one in which the program ended."""
    failed = re.findall(r"^\[  FAILED  \] ([\w/]+\.[\w/]+)", done.output, re.M)
    running = re.findall(r"^\[ RUN      \] ([\w/]+\.[\w/]+)$", done.output, re.M)
    return list(dict.fromkeys(failed)) or running[-1:]


# Results

COUNTED = ("killed", "survived")


class Results:
    """A file. Its first line describes the sample. Each other line is a mutant that was judged, with its number in the sample."""

    def __init__(self, path):
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        self.sample = json.loads(lines[0]) if lines else None
        self.by_number = {each["number"]: each for each in map(json.loads, lines[1:])}

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

    def judge(self, number, mutant, found):
        self.by_number[number] = {"number": number, **dataclasses.asdict(mutant), **found}
        self.add(self.by_number[number])

    @property
    def judged(self):
        """The first ones of the sample, without a gap. Later ones may be judged already, but do not count yet."""
        return [self.by_number[number] for number in itertools.takewhile(self.by_number.__contains__, itertools.count())]

    def first(self, count):
        """Leaves out what was judged after as many as this that count."""
        counted = [each["number"] for each in self.of(*COUNTED)]
        if len(counted) >= count:
            self.by_number = {number: each for number, each in self.by_number.items() if number <= counted[count - 1]}

    def of(self, *results):
        return [each for each in self.judged if each["result"] in results]

    def print_survivors(self):
        for each in self.of("survived"):
            print(f"  {mutant_of(each)}")

    def print_all(self):
        killed, counted = self.of("killed"), self.of(*COUNTED)
        if counted:
            low, high = interval(len(killed), len(counted))
            print(f"killed: {len(killed)} of {len(counted)}, {len(killed) / len(counted):.0%} (95 % interval: {low:.0%} to {high:.0%})")
        for name, number in collections.Counter(each["by"] for each in killed).most_common():
            late = sum(each["late"] for each in killed if each["by"] == name)
            print(f"  {name}: {number}" + (f", {late} by their time or memory" if late else ""))
        print(f"replaced: {len(self.of('does not compile'))} that do not compile, {len(self.of('equivalent'))} equivalent,"
              f" {len(self.of('in no program'))} in a file that no program contains")
        print(f"survived: {len(self.of('survived'))}")
        self.print_survivors()


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


def judge(numbered):
    number, mutant = numbered
    started = time.monotonic()
    return number, {**judge.tests.judge(mutant), "seconds": round(time.monotonic() - started, 1)}


def sample(arguments, results):
    """Judges mutants until enough of them count. False: --minutes ended it."""
    began = time.monotonic()
    root = arguments.root.resolve()
    work = (arguments.build_dir or root / "build/mutants").resolve()
    (work / "tree").mkdir(parents=True, exist_ok=True)
    digest = copy_sources(root, work / "tree")
    mutants = all_mutants(work / "tree", work, digest)
    results.begin({"seed": arguments.seed, "of": len(mutants), "tool": TOOL, "sources": digest})
    random.Random(arguments.seed).shuffle(mutants)
    if any(mutant_of(each) != mutants[number] for number, each in results.by_number.items()):
        raise Trouble(f"{results.path} has mutants of another order")
    tests = Tests(work, digest, arguments.jobs)
    for each in results.of("killed"):
        tests.killers[each["by"], each["test"]] += 1
    with multiprocessing.Pool(arguments.jobs, begin_judge, (tests,)) as pool:
        judged = pool.imap_unordered(judge, [each for each in enumerate(mutants) if each[0] not in results.by_number])
        while len(results.of(*COUNTED)) < arguments.count:
            if arguments.minutes is not None and time.monotonic() - began > 60 * arguments.minutes:
                return False
            number, found = next(judged, (None, None))
            if number is None:
                break
            results.judge(number, mutants[number], found)
            by = ": ".join(str(found[each]) for each in ("result", "by", "test") if found.get(each))
            print(f"{len(results.of(*COUNTED))}/{arguments.count} {by}: {mutants[number]}", flush=True)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=60, help="mutants that are killed or survive (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (default: %(default)s)")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="another checkout than this one")
    parser.add_argument("--build-dir", type=pathlib.Path, help="where it works (default: build/mutants in the checkout)")
    parser.add_argument("--results", type=pathlib.Path, help="the file of results (default: results.jsonl in the build directory)")
    parser.add_argument("--minutes", type=float, help="begin no other mutant after these")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants at once (default: the machine's %(default)s cores)")
    parser.add_argument("--list-survivors", action="store_true", help="only print those of the file of results")
    arguments = parser.parse_args()
    path = arguments.results or (arguments.build_dir or arguments.root / "build/mutants") / "results.jsonl"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        results = Results(path)
        if arguments.list_survivors:
            results.first(arguments.count)
            results.print_survivors()
            return 0
        os.nice(19)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        complete = sample(arguments, results)
        results.first(arguments.count)
        results.print_all()
        return 0 if complete else 3
    except Trouble as trouble:
        print(f"sample.py: {trouble}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
