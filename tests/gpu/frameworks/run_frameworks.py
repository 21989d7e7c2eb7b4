#!/usr/bin/env python3
"""Frameworks with and without amem on a machine with GPUs: the same results, and what taking turns costs.

    run_frameworks.py --prefix PREFIX [--pool SIZE] [--out DIRECTORY] [PART ...]

PREFIX: a bundle or a build tree. A part whose framework Python cannot import is skipped. One table for each part; the last line
says how many passed. Exit status: 0 none failed, 1 some have, 77 none could run.
"""

import argparse
import importlib.util
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "programs"))

from harness import Broker, Failure, Program, Skip, torchrun  # noqa: E402

HOOK = "torch_memory_saver_hook_mode_preload.abi3.so"
ENTRY_POINTS = """[vllm.general_plugins]
amem = amem.vllm:register
[sglang.srt.plugins]
amem = amem.sglang:register
"""
PARTS = {}


def part(*needs):
    """A function that runs programs and prints a table. `needs`: modules without which it is skipped."""
    def add(function):
        PARTS[function.__name__] = (function, needs)
        return function
    return add


class Run:
    """Programs beside one broker, with their logs."""

    def __init__(self, options, folder):
        self.options, self.folder, self.number = options, folder, 0
        self.clean = {name: value for name, value in os.environ.items()
                      if not name.startswith(("AMEM_", "TMS_")) and name != "LD_PRELOAD"}
        paths = [str(options.prefix / "python"), os.environ.get("PYTHONPATH", "")]
        self.clean.update(PYTHONPATH=":".join(filter(None, paths)), PYTHONWARNINGS="ignore", GLOO_SOCKET_IFNAME="lo")
        self.broker = Broker(options.prefix, folder / "broker", options.pool, self.clean)
        self.broker.wait_ready()

    def install(self):
        """The two distributions as pip lays them out, on the path. Gives the hook library of torch_memory_saver."""
        site = self.folder / "site"
        shim = (self.options.prefix / "lib" / "libamem_shim.so").resolve()
        self.broker.environment["AMEM_SHIM"] = str(shim)  # amem.ray looks for it in the package, where no bundle has it
        if not site.is_dir():
            (site / "amem-0.1.0.dist-info").mkdir(parents=True)
            (site / "amem-0.1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: amem\nVersion: 0.1.0\n")
            (site / "amem-0.1.0.dist-info" / "entry_points.txt").write_text(ENTRY_POINTS)
            (site / "torch_memory_saver").symlink_to((self.options.prefix / "dropin" / "torch_memory_saver").resolve())
            (site / HOOK).symlink_to(shim)
            self.broker.environment["PYTHONPATH"] = f"{site}:{self.clean['PYTHONPATH']}"
        return site / HOOK

    def program(self, argv, *, group=None, scope="regions", variables=None, limit=300):
        """Its report. `group` None: without amem."""
        self.number += 1
        launcher = [self.broker.ctl, "run", "--group", group, "--scope", scope, "--required", "--"] if group else []
        log = self.folder / f"{self.number}.log"
        environment = {**self.broker.environment, **(variables or {})}
        program = Program([*launcher, *argv], environment, log.with_suffix(".out"), log, f"{os.getpid()}.{self.number}")
        try:
            return program.wait(limit).report()
        except Failure as failure:
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            raise Failure(f"{failure}; {log}:\n    " + "\n    ".join(lines[-15:])) from None


def table(head, rows):
    widths = [max(len(str(each)) for each in column) for column in zip(head, *rows)]
    for row in (head, *rows):
        print("  " + "  ".join(str(each).ljust(width) for each, width in zip(row, widths)), flush=True)


def same(reports, first, *keys):
    """Of all reports, bit for bit; a Failure names the first difference."""
    for name, report in reports.items():
        for key in keys:
            if report[key] != reports[first][key]:
                raise Failure(f"{key} of {name} are {report[key]}, of {first} {reports[first][key]}")


@part("megatron.core")
def megatron(run):
    """megatron-core trains, and its memory is paused in a phase that stands for a rollout."""
    reports = {}
    for way in ("alone", "copies", "amem", "argument", "params"):
        ours = way in ("amem", "argument", "params")
        reports[way] = run.program(torchrun(run.options.ranks, HERE / "megatron_rollout.py", "--way", way, *run.options.more),
                                   group="train" if ours else None)
    rows = []
    for way, report in reports.items():
        paused, back = (statistics.median(report[key][2:]) for key in ("paused_ms", "back_ms"))  # the first phases move memory
        rate = [f"{report['kept_bytes'] / ms / 1e6:.1f}" if ms > 1 else "" for ms in (paused, back)]
        rows.append([way, f"{report['kept_bytes'] / 2**30:.2f}", f"{min(report['freed_bytes'][2:]) / 2**30:.2f}",
                     f"{paused:.1f}", f"{back:.1f}", *rate])
    table(["way", "kept GiB", "freed GiB", "paused ms", "back ms", "paused GB/s", "back GB/s"], rows)
    same(reports, "alone", "losses", "norms", "tokens")
    values = [float.fromhex(each) for each in reports["alone"]["losses"]]
    print(f"  losses, norms and tokens of all are equal bit for bit: {values}")


@part("torch")
def weights(run):
    """slime's, AReaL's and verl's sequences of calls with stand-ins: the same numbers every time."""
    reports, rows = {}, []
    for way in ("alone", "slime", "guest"):
        reports[way] = report = run.program([sys.executable, HERE / "weights_by_ipc.py", "--way", way, "--hook", run.install(),
                                             "--rounds", run.options.rounds])
        rows.append([way, report["rounds"], report["trainer_mib"], report["engine_mib"], report["round_ms"],
                     *(report["ms"].get(name, "") for name in ("trainer.sleep", "trainer.wake_up", "trainer.bucket", "engine.load",
                                                               "engine.release", "engine.resume"))])
    table(["way", "rounds", "trainer MiB", "engine MiB", "round ms", "sleep ms", "wake ms", "bucket ms", "load ms", "release ms",
           "resume ms"], rows)
    same(reports, "alone", "sums")
    print("  every element was right in every round")


@part("torch", "trl", "vllm", "datasets")
def trl(run):
    """TRL's GRPO with vLLM in the trainer's process, which sleeps by itself and by amem."""
    run.install()
    reports, rows = {}, []
    for way in ("vllm", "amem", "awake"):
        ours = way == "amem"
        reports[way] = report = run.program([sys.executable, HERE / "trl_colocate.py", "--way", way], group="trl" if ours else None,
                                            variables={"AMEM_ON": "require"} if ours else None)
        share = 100 * report["switch_ms"] / report["step_ms"]
        rows.append([way, report["step_ms"], report["switch_ms"], f"{share:.1f}", [round(each, 4) for each in report["rewards"]]])
    table(["sleep mode", "step ms", "of it switching", "%", "rewards"], rows)
    same({way: reports[way] for way in ("vllm", "amem")}, "vllm", "rewards", "losses", "norms")
    print("  rewards, losses and norms are equal bit for bit")


@part("torch", "sglang", "sgl_kernel")
def sglang(run):
    """SGLang releases and resumes its memory by amem, NCCL's too, and gives the tokens that it gave."""
    run.install()
    reports = {}
    for way in ("alone", "amem"):
        reports[way] = run.program([sys.executable, HERE / "sglang_release.py", "--way", way, "--ranks", run.options.ranks],
                                   group="engine0" if way == "amem" else None)
    ours = reports["amem"]
    table(["SGLang", "release ms", "resume ms", "on the GPU MiB", "asleep MiB"],
          [[ours["sglang"], ours["release"], ours["resume"], ours["resident_mib"], ours["asleep_mib"]]])
    same(reports, "alone", "tokens")
    print("  all tokens are those of an engine without a memory saver")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prefix", type=pathlib.Path, required=True)
    parser.add_argument("--pool", default="40GiB")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--out", type=pathlib.Path, help="keeps the logs there")
    parser.add_argument("--more", action="append", default=[], help="an argument for the programs of the parts")
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], metavar="PART", help=", ".join(PARTS))
    options = parser.parse_args()
    options.prefix = options.prefix.resolve()
    passed, failed = 0, 0
    with tempfile.TemporaryDirectory(prefix="amem-frameworks-") as kept:
        for name in options.parts or PARTS:
            function, needs = PARTS[name]
            missing = [each for each in needs if importlib.util.find_spec(each.partition(".")[0]) is None]
            if missing:
                print(f"SKIP {name}: Python has no {', '.join(missing)}", flush=True)
                continue
            folder = (options.out or pathlib.Path(kept)) / name
            folder.mkdir(parents=True)
            print(f"{name}: {function.__doc__}", flush=True)
            run = None
            try:
                run = Run(options, folder)
                function(run)
                passed += 1
                print(f"PASS {name}", flush=True)
            except (Failure, subprocess.TimeoutExpired) as failure:
                failed += 1
                print(f"FAIL {name}: {failure}", flush=True)
            except Skip as skip:
                print(f"SKIP {name}: {skip}", flush=True)
            finally:
                if run is not None:
                    run.broker.stop()
    print(f"{passed} passed, {failed} failed", flush=True)
    return 1 if failed else 0 if passed else 77


if __name__ == "__main__":
    sys.exit(main())
