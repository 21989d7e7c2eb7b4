"""Runs the GPU tests: see run.sh for what a person types."""

import argparse
import fnmatch
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import time

# The programs that cases start lie there, and what they share with the cases.
PROGRAMS = pathlib.Path(__file__).resolve().parents[1] / "programs"
sys.path.append(str(PROGRAMS))

import cases  # noqa: E402, F401: registers what it has
import cases_deep  # noqa: E402, F401
import cases_job  # noqa: E402, F401
import cases_nccl  # noqa: E402, F401
import cases_nodes  # noqa: E402, F401
import cases_nvls  # noqa: E402, F401
import cases_pools  # noqa: E402, F401
import cases_restart  # noqa: E402, F401
import cases_space  # noqa: E402, F401
import cases_swap  # noqa: E402, F401
import cases_torch  # noqa: E402, F401
import cases_turns  # noqa: E402, F401
import cases_vllm  # noqa: E402, F401
import figures  # noqa: E402
from harness import (Broker, Failure, Gpus, Program, SKIPPED, Skip, end_processes, find_nccl, has_torch,  # noqa: E402
                     tail, time_limit, torchrun)
from registry import all_cases  # noqa: E402


class Bench:
    """What a case works with: the broker, programs under the shim, a folder of its own."""

    def __init__(self, options, folder):
        self.prefix = options.prefix
        self.root = folder
        self.folder = folder
        self.gpus = Gpus()
        self.ranks = options.gpus or max(2, self.gpus.count())
        # Ranks of one GPU are hosts of their own to NCCL: its sockets carry what NVLink would, and nothing can be timed.
        self.shared = self.ranks > self.gpus.count()
        self.given_pool = options.pool
        self.pool = self.pool_of(self.ranks)
        self.one_pool = options.one_pool
        self.quick = options.quick
        self.cycles = 4 if options.quick else 20
        self.few = 3 if options.quick else 6
        self.operator_pauses = 5 if options.quick else 50
        self.first_use_s = options.first_use_s
        self.given_time_limits = options.time_limits  # of what one rank does
        self.time_limits = options.time_limits and not self.shared
        self.nccl = options.nccl or find_nccl()
        # PyTorch finds its own by its path; a library of the same name that is there already goes before.
        self.torch_environment = {"LD_PRELOAD": str(options.nccl.resolve())} if options.nccl else {}
        self.torch_refuses = None  # not asked yet
        self.marker = ""
        self.started = []
        self.running_broker = None
        self.brokers = 0  # with arguments of their own
        self.environment = {**os.environ,
                            "PATH": f"{self.prefix / 'bin'}:{os.environ.get('PATH', '')}",
                            "PYTHONUNBUFFERED": "1", "SHARE_GPUS": "1" if self.shared else "0",
                            # The package amem.
                            "PYTHONPATH": ":".join(filter(None, (str(self.prefix / "python"),
                                                                 os.environ.get("PYTHONPATH"))))}
        shim = self.prefix / "lib" / "libamem_shim.so"
        if shim.exists():  # amem.launch looks for it in the package
            self.environment["AMEM_SHIM"] = str(shim)
        for name in ("LD_PRELOAD", "AMEM_GROUP", "AMEM_GROUPID", "AMEM_DISABLE", "AMEM_REQUIRED", "AMEM_SCOPE",
                     "AMEM_GATE", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            self.environment.pop(name, None)

    def pool_of(self, ranks):
        """For so many of the ranks: NCCL's memory of each grows with the number of all."""
        return self.given_pool or f"{3 * self.ranks * ranks}GiB"

    def begin(self, name):
        self.folder = self.root / name
        self.folder.mkdir()
        self.marker = f"{os.getpid()}.{name}"
        self.started = []

    def end(self, failed):
        end_processes(self.marker)
        # One broker serves all cases as long as it is well; a failed case takes it along.
        if self.running_broker is not None and (failed or not self.running_broker.healthy()):
            self.stop_broker()

    def broker(self, pool_gib=0):
        """The broker that serves all cases; another one when its pool is smaller than this, but for --one-pool."""
        if self.one_pool:
            pool_gib = 0
        if self.running_broker is not None and self.running_broker.pool_gib() < pool_gib:
            self.stop_broker()
        if self.running_broker is None:
            folder = self.folder / "broker"
            pool = f"{pool_gib}GiB" if pool_gib else self.pool
            self.running_broker = Broker(self.prefix, folder, pool, self.environment)
            self.running_broker.wait_ready()
        return self.running_broker

    def broker_with(self, pool, *arguments):
        """Another broker, with a pool of just this size. The case stops it at its end."""
        self.stop_broker()
        self.brokers += 1
        self.running_broker = Broker(self.prefix, self.folder / f"broker-{self.brokers}", pool, self.environment, *arguments)
        return self.running_broker.wait_ready()

    def stop_broker(self):
        broker, self.running_broker = self.running_broker, None
        return broker.stop() if broker is not None else None

    def start(self, argv, group="train", shim=True, preload=False, env=None, scope=None, prefix=()):
        """`shim`: under the shim, by amemctl run; `preload`: by LD_PRELOAD, without a broker. `prefix`: a command that starts it."""
        environment = {**self.environment, **(env or {})}
        if preload:
            environment["LD_PRELOAD"] = str(self.prefix / "lib" / "libamem_shim.so")
            environment["AMEM_GROUP"] = group
        elif shim:
            environment["AMEM_RUNTIME_DIR"] = str(self.broker().runtime)
            scope = ["--scope", scope] if scope else []
            argv = [self.prefix / "bin" / "amemctl", "run", "--group", group, *scope, "--", *argv]
        number = len(self.started)
        program = Program([*prefix, *argv], environment, self.folder / f"{number}-{group}.out",
                          self.folder / f"{number}-{group}.err", self.marker)
        self.started.append(program)
        return program

    def needs_peers(self):
        """For what NCCL does between GPUs of one host alone, or one process on several."""
        if self.shared:
            raise Skip(f"{self.gpus.count()} GPUs, {self.ranks} needed")

    def nccl_cycle(self, *arguments, group="train", **how):
        nccl = [*(["--nccl", self.nccl] if self.nccl else []), *(["--share"] if self.shared else [])]
        return self.start([self.prefix / "bin" / "amem_nccl_cycle", "--gpus", self.ranks, *nccl, *arguments],
                          group=group, **how)

    def check_torch(self):
        """PyTorch may need more of NCCL than the library of --nccl has."""
        if not self.torch_environment:
            return
        if self.torch_refuses is None:
            done = subprocess.run([sys.executable, "-c", "import torch"], env={**self.environment, **self.torch_environment},
                                  stderr=subprocess.PIPE, text=True, timeout=120, check=False)
            self.torch_refuses = done.stderr.strip().splitlines()[-1] if done.returncode else ""
        if self.torch_refuses:
            raise Skip(f"PyTorch does not start with this NCCL: {self.torch_refuses}")

    def torch_script(self, name, *arguments, ranks=0, group="train", **how):
        """One of the programs, by torchrun, one process per GPU."""
        if not has_torch():
            raise Skip("no PyTorch")
        self.check_torch()
        environment = {**self.torch_environment, **(how.pop("env", None) or {})}
        return self.start(torchrun(ranks or self.ranks, PROGRAMS / name, *arguments), group=group, env=environment, **how)

    def python_script(self, name, *arguments, torch=True, **how):
        """One that starts its processes itself. `torch`: it needs PyTorch."""
        if torch and not has_torch():
            raise Skip("no PyTorch")
        return self.start([sys.executable, PROGRAMS / name, *arguments], **how)

    def torch_cycle(self, *arguments, **how):
        return self.torch_script("torch_cycle.py", *arguments, **how)

    def launch_bench(self, **how):
        return self.start([self.prefix / "bin" / "amem_launch_bench"], **how)

    def call_times(self, processes, runs, turns, limit):
        """What amem_call_bench reads (figures.calls) of the driver's own memory, of the driver calls alone that an allocation
        for another process takes, and in scope heap. In turns: what the machine does meanwhile falls on all of them."""
        kinds = (([], {"shim": False}), (["--memory", "shared", "--only", "memory"], {"shim": False}),
                 ([], {"scope": "heap", "env": {"AMEM_REQUIRED": "1"}}))
        texts = [[] for _ in kinds]
        for _ in range(turns):
            for (arguments, how), of_kind in zip(kinds, texts):
                program = self.start([self.prefix / "bin" / "amem_call_bench", "--processes", processes, "--runs", runs,
                                      *arguments], **how)
                of_kind.append(program.wait(limit).out.read_text())
        driver, bare, amem = map(figures.calls, texts)
        if not bare or not driver.keys() == amem.keys() >= bare.keys():
            raise Failure(f"amem_call_bench measured {len(driver)} calls without amem, {len(amem)} with it, {len(bare)} bare")
        return driver, bare, amem


def show_logs(bench):
    logs = [log for program in bench.started for log in (program.err, program.out)]
    if bench.running_broker is not None:
        logs.append(bench.running_broker.log)
    for log in logs:
        text = tail(log)
        if text:
            print(f"---- {log.relative_to(bench.root)}\n{text}")


def run_case(bench, name, function, limit):
    """Returns ("PASS" or "FAIL" or "SKIP", detail)."""
    try:
        with time_limit(limit, "the case's time is over"):
            return "PASS", function(bench)
    except Skip as skip:
        return "SKIP", str(skip)
    except Failure as failure:
        return "FAIL", str(failure)
    except Exception as error:  # noqa: BLE001: whatever one case does, the next one must run
        return "FAIL", f"{type(error).__name__} in {name}: {error}"


def run_all(bench, chosen):
    results = []
    for name, function, limit in chosen:
        bench.begin(name)
        begin = time.monotonic()
        verdict, detail = run_case(bench, name, function, limit)
        seconds = time.monotonic() - begin
        print(f"{verdict} {name} {seconds:.1f}s {detail}", flush=True)
        if verdict == "FAIL":
            show_logs(bench)
        bench.end(verdict == "FAIL")
        results.append({"case": name, "verdict": verdict, "seconds": round(seconds, 1), "detail": detail})
        if os.environ.get("OUT"):  # each time: whoever started this may not let it come to its end
            keep(results, bench.root, pathlib.Path(os.environ["OUT"]))
    return results


def keep(results, folder, out):
    """The results, and all logs in one archive; the largest logs are cut so that it stays small."""
    limit = 2 << 20
    out.mkdir(parents=True, exist_ok=True)
    (out / "gpu-results.json").write_text(json.dumps(results, indent=1) + "\n")
    for log in folder.rglob("*"):
        if log.is_file() and log.stat().st_size > limit:
            data = log.read_bytes()
            log.write_bytes(data[:limit // 2] + b"\n[...]\n" + data[-limit // 2:])
    with tarfile.open(out / "gpu-logs.tar.gz", "w:gz") as archive:
        for log in sorted(folder.rglob("*")):
            if log.is_file():
                archive.add(log, arcname=str(log.relative_to(folder)), recursive=False)


def parse(arguments):
    parser = argparse.ArgumentParser(prog="run.sh", description="amem's tests on real GPUs")
    parser.add_argument("patterns", nargs="*", metavar="CASE", help="only these; shell patterns")
    parser.add_argument("--prefix", type=pathlib.Path, required=True,
                        help="where bin/ and lib/ are: an installation, a bundle or a build directory")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs to use, and ranks; all, at least two ranks")
    parser.add_argument("--nccl", type=pathlib.Path, help="libnccl.so.2 to use, also by PyTorch's programs; PyTorch's")
    parser.add_argument("--pool", help="the broker's host pool; 12GiB for 2 GPUs, 48GiB for 4, 192GiB for 8")
    parser.add_argument("--one-pool", action="store_true", help="that of --pool for all cases, also for those that want more")
    parser.add_argument("--quick", action="store_true", help="fewer cycles")
    parser.add_argument("--first-use", dest="first_use_s", type=int, default=20, metavar="SECONDS",
                        help="how long first_use starts processes, without amem and with it; 20, at most 120")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    parser.add_argument("--no-time-limits", dest="time_limits", action="store_false",
                        help="pauses may take as long as they take")
    options = parser.parse_args(arguments)
    if not 0 < options.first_use_s <= 120:  # the case's own limit
        parser.error(f"--first-use {options.first_use_s}: 1 to 120 seconds are right")
    return options


def main():
    options = parse(sys.argv[1:])
    options.prefix = options.prefix.resolve()
    chosen = [c for c in all_cases()
              if not options.patterns or any(fnmatch.fnmatch(c[0], p) for p in options.patterns)]
    if options.list:
        for name, function, _ in chosen:
            print(f"{name:20} {function.__doc__}")
        return 0
    if not chosen:
        print(f"no case matches {' '.join(options.patterns)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="amem-gpu-") as folder:
        bench = Bench(options, pathlib.Path(folder))
        if bench.ranks < 2 or bench.gpus.count() == 0:
            print(f"SKIP all 0.0s {bench.gpus.count()} GPUs, one at least and two ranks needed")
            return SKIPPED
        print(f"{bench.gpus.count()} GPUs, {bench.ranks} ranks{' that share them' if bench.shared else ''}, pool {bench.pool}, "
              f"NCCL {bench.nccl or 'by name'}", flush=True)
        try:
            results = run_all(bench, chosen)
        finally:  # also when somebody interrupts it
            bench.end(failed=True)
    counts = {v: sum(r["verdict"] == v for r in results) for v in ("PASS", "FAIL", "SKIP")}
    print(f"{counts['PASS']} passed, {counts['FAIL']} failed, {counts['SKIP']} skipped")
    if counts["FAIL"]:
        return 1
    return 0 if counts["PASS"] else SKIPPED


if __name__ == "__main__":
    sys.exit(main())
