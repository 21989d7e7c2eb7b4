"""Runs the benchmarks: see run.sh for what a person types."""

import argparse
import fnmatch
import pathlib
import platform
import random
import subprocess
import sys
import tempfile
import time
import types

HERE = pathlib.Path(__file__).resolve().parent
# What the GPU tests have: in the source tree, and installed.
sys.path += [str(HERE), *(str(HERE.parent / tests / folder) for tests in ("gpu", "gpu-tests") for folder in ("cases", "programs"))]

import bench_parts  # noqa: E402
import heap_parts  # noqa: E402, F401: registers what it has
import changed_parts  # noqa: E402, F401
import results  # noqa: E402
from harness import Failure, Skip, time_limit  # noqa: E402
from run_cases import Bench, show_logs  # noqa: E402

GIB = 1 << 30


class Machine:
    """What a part works with."""

    def __init__(self, options, folder):
        self.prefix = options.prefix
        self.folder = folder
        self.bench = Bench(types.SimpleNamespace(prefix=options.prefix, gpus=options.gpus, pool=None, quick=options.quick,
                                                 nccl=options.nccl, time_limits=False, first_use_s=0, one_pool=False), folder)
        self.gpus = min(self.bench.ranks, self.bench.gpus.count())
        self.quick = options.quick
        self.runs = options.runs or 5
        self.heap_bytes = options.heap_bytes
        self.swap_bytes = options.swap_bytes
        self.rank_bytes = options.rank_bytes
        self.max_bytes = options.max_bytes
        self.small_pool = options.pool
        self.seed = options.seed
        self.peer_limit = 60 if options.quick else 150
        self.keep = {}
        self.notes = []

    def program(self, name):
        path = self.prefix / "bin" / name
        if not path.exists():
            raise Skip(f"{path} was not built")
        return path

    def run(self, argv):
        done = subprocess.run([str(a) for a in argv], env=self.bench.environment, text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if done.returncode == 77:
            raise Skip(done.stderr.strip())
        if done.returncode != 0:
            raise Failure(f"{pathlib.Path(argv[0]).name} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
        return done.stdout

    def check_bytes(self, comms):
        """The largest collective that is compared in full. With many communicators comparing takes longer than all else;
        what NCCL allocates does not depend on it."""
        return min(self.max_bytes, (256 << 10) if comms > 8 or self.quick else (64 << 20))

    def pool_gib(self, wanted):
        return self.small_pool or wanted

    def peer_runs(self, comms):
        return 1 if comms > 8 else min(self.runs, 3) if self.quick else self.runs

    def start_runs(self, comms):
        return min(self.runs, 2 if comms > 8 else 3) if self.quick else self.runs

    def note(self, text):
        self.notes.append(text)
        print(f"  note: {text}", flush=True)


def describe(machine):
    about = {"machine": f"{platform.system()} {platform.release()}, {len(__import__('os').sched_getaffinity(0))} CPUs",
             "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"],
                              text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if done.returncode == 0 and done.stdout.strip():
            about["GPUs"] = "; ".join(sorted(set(done.stdout.strip().splitlines()))) + f" ({machine.bench.gpus.count()})"
    except OSError:
        pass
    try:
        version = machine.run([machine.program("amemd"), "--version"]).strip()
        about["amem"] = version
    except (Failure, Skip):
        pass
    if machine.bench.nccl:
        about["NCCL"] = str(machine.bench.nccl)
    return about


class Report:
    """The rows so far, written again whenever there are more: whoever started this may not let it come to its end."""

    def __init__(self, machine, out):
        self.machine = machine
        self.about = describe(machine)
        self.out = out
        self.rows = []
        self.skipped = []
        out.mkdir(parents=True, exist_ok=True)

    def write(self):
        (self.out / "bench.json").write_text(results.to_json(self.rows, self.about, self.skipped + self.machine.notes))
        (self.out / "bench.md").write_text(results.markdown(self.rows, self.about))
        (self.out / "bench.svg").write_text(results.svg(self.rows))
        (self.out / "bench-details.json").write_text(results.to_json([], self.machine.keep, []))


def run_part(report, machine, name, function, limit):
    """True unless it failed."""
    machine.bench.begin(name)
    machine.folder = machine.bench.folder
    begin = time.monotonic()
    verdict = "done"
    try:
        with time_limit(limit, f"its time, {limit} s, is over"):
            for row in function(machine):
                report.rows.append(row)
                print(f"  {row['part']}: {row['work']}: {row['who']}: {results.number(row['median'])} {row['unit']} "
                      f"({results.number(row['min'])} to {results.number(row['max'])}, {row['n']}) {row['note']}", flush=True)
                report.write()
    except Skip as skip:
        verdict = f"skipped: {skip}"
    except Exception as error:  # noqa: BLE001: whatever one part does, the next one must run
        verdict = f"failed: {error if isinstance(error, Failure) else f'{type(error).__name__}: {error}'}"
        show_logs(machine.bench)
    machine.bench.end(failed=not verdict.startswith("done"))
    print(f"{name}: {verdict} ({time.monotonic() - begin:.1f} s)", flush=True)
    if verdict != "done":
        report.skipped.append(f"{name}: {verdict}")
    report.write()
    return not verdict.startswith("failed")


def size(text):
    units = {"KiB": 10, "MiB": 20, "GiB": 30}
    for unit, shift in units.items():
        if text.endswith(unit):
            return int(text[:-3]) << shift
    return int(text)


def parse(arguments):
    parser = argparse.ArgumentParser(prog="run.sh", description="amem's benchmarks")
    parser.add_argument("parts", nargs="*", metavar="PART", help="only these; shell patterns")
    parser.add_argument("--prefix", type=pathlib.Path, required=True,
                        help="where bin/ and lib/ are: an installation, a bundle or a build directory")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("bench"), help="directory for the results; ./bench")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs to use; all")
    parser.add_argument("--nccl", type=pathlib.Path, help="libnccl.so.2 to use; PyTorch's")
    parser.add_argument("--runs", type=int, help="counted runs, after one that is not; 5")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and peers")
    parser.add_argument("--heap-bytes", type=size, default=8 * GIB)
    parser.add_argument("--swap-bytes", type=size, default=16 * GIB)
    parser.add_argument("--rank-bytes", type=size, default=15 * GIB, help="on each GPU, in heap_all and swap_all; in training")
    parser.add_argument("--max-bytes", type=size, default=256 << 20, help="largest collective")
    parser.add_argument("--pool", type=int, help="the broker's pool in GiB; as the part needs")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of one_byte; a random one, which it prints")
    parser.add_argument("--list", action="store_true", help="name the parts and stop")
    return parser.parse_args(arguments)


def main():
    options = parse(sys.argv[1:])
    options.prefix = options.prefix.resolve()
    chosen = [p for p in bench_parts.PARTS
              if not options.parts or any(fnmatch.fnmatch(p[0], pattern) for pattern in options.parts)]
    if options.list:
        for name, function, gpus, _ in chosen:
            print(f"{name:12} {gpus} GPUs  {function.__doc__.splitlines()[0]}")
        return 0
    if not chosen:
        print(f"no part matches {' '.join(options.parts)}", file=sys.stderr)
        return 2
    good = True
    with tempfile.TemporaryDirectory(prefix="amem-bench-") as folder:
        machine = Machine(options, pathlib.Path(folder))
        report = Report(machine, options.out)
        try:
            for name, function, gpus, limit in chosen:
                if machine.gpus < gpus:
                    print(f"{name}: skipped: {machine.gpus} GPUs, {gpus} needed", flush=True)
                    report.skipped.append(f"{name}: skipped: {machine.gpus} GPUs, {gpus} needed")
                    continue
                good = run_part(report, machine, name, function, limit) and good
        finally:
            machine.bench.end(failed=True)
            report.write()
    print(f"results: {options.out}/bench.md, bench.json, bench.svg")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
