"""Whether one build is slower than another: both take turns in one run, the older one twice.

    compare.py --base DIRECTORY --new DIRECTORY [--turns 5] [gate control launch calls heap swap nccl_2x4]

A directory is a bundle (tests/gpu/make_bundle.sh), an installation or a build directory. A figure is the median of the turns. The new
build may take 2 % more than the base, beyond the difference that two copies of the base show in the same run; a call through the
gate 1 ns more. Prints a table; exit status 1: something is slower. Parts that need more GPUs than there are do not run.
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import types

import bench  # finds the modules of the GPU tests

import bench_parts
import figures
import heap_parts
from harness import Failure, Skip
from results import slower_by
from run_cases import show_logs

GATE_NS = 1.0
WHO = ("base", "base again", "new")


def gate(machine):
    """A call through the gate, with a driver that does nothing: ns."""
    text = machine.run([machine.program("amem_gate_bench"), "--check-limit-ns=1000000"])
    return {"a call through the gate, ns": float(text.split("the gate costs ")[1].split(" ns")[0])}


def launch(machine):
    """A real launch through the shim, as a share of one past it: %. Both are of one process: a launch varies by more from one process to
    the next than the shim costs."""
    report = machine.bench.launch_bench().wait(60).report()
    return {"a launch through the shim, % of the driver's own": 100 * report["launch_ns"] / report["direct_ns"]}


def control(machine):
    """The broker alone, with light ranks: ms of a whole pause and resume."""
    out = machine.folder / "control.json"
    machine.run([machine.program("amem_control_bench"), "--amemd", machine.program("amemd"), "--driver",
                 machine.prefix / "lib/amem_number_driver.so", "--ranks", "1,16", "--allocations", "500,2000", "--cycles", 7, "--json", out])
    return {f"control, {point['ranks']} x {point['allocations_per_rank']}, {work}, ms": point[work]["wall_ms"]["median"]
            for point in json.loads(out.read_text(encoding="ascii")) for work in ("pause", "resume")}


def heap(machine):
    """8 GiB of one process, dense and kept: ms."""
    times = heap_parts.pause_often(machine, "heap", 8 * bench_parts.GIB, 1)
    return {f"heap, 8 GiB, {verb}, ms": statistics.median(taken[1:]) for verb, taken in times.items()}


def swap(machine):
    """16 GiB out and 16 GiB in on one GPU: ms."""
    times = heap_parts.swap_two(machine, "swap", 16 * bench_parts.GIB, 1)
    return {"swap, 16 GiB out and in, ms": statistics.median(times[1:])}


def calls(machine):
    """Single driver calls in scope heap: us."""
    program = machine.bench.start([machine.program("amem_call_bench"), "--processes", "1", "--runs", "100"], scope="heap",
                                  env={"AMEM_REQUIRED": "1"})
    found = figures.calls([program.wait(60).out.read_text()])
    return {f"{case}: {work}, us": figure["median_us"] for (case, work), figure in found.items()}


def nccl_2x4(machine):
    """Two ranks with four communicators: ms."""
    report = bench_parts.cycle(machine, 2, 4, "--cycles", 7)
    return {f"NCCL 2 x 4, {work}, ms": report[f"{work}_ms"]["median"] for work in ("pause", "resume")}


PARTS = {"gate": (gate, 0), "control": (control, 0), "launch": (launch, 1), "calls": (calls, 1), "heap": (heap, 1), "swap": (swap, 1),
         "nccl_2x4": (nccl_2x4, 2)}


def machine_of(prefix, folder):
    options = types.SimpleNamespace(prefix=prefix.resolve(), gpus=0, nccl=None, runs=5, quick=True, heap_bytes=0, swap_bytes=0,
                                    rank_bytes=0, max_bytes=64 << 20, pool=None, seed=0)
    folder.mkdir()
    machine = bench.Machine(options, folder)
    machine.bench.begin(folder.name)
    return machine


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=list(PARTS))
    parser.add_argument("--base", type=pathlib.Path, required=True)
    parser.add_argument("--new", type=pathlib.Path, required=True)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    slower = 0
    with tempfile.TemporaryDirectory(prefix="amem-compare-") as folder:
        root = pathlib.Path(folder)
        machines = {who: machine_of(options.new if who == "new" else options.base, root / who.replace(" ", "-"))
                    for who in WHO}
        try:
            for part in options.parts:
                function, gpus = PARTS[part]
                if machines["new"].bench.gpus.count() < gpus:
                    print(f"{part}: needs {gpus} GPUs", flush=True)
                    continue
                for machine in machines.values():
                    machine.bench.stop_broker()  # a part may want a larger pool
                    machine.bench.begin(part)
                read = {who: [] for who in WHO}
                for turn in range(options.turns + 1):
                    for who in WHO[turn % 3:] + WHO[:turn % 3]:  # who comes after another may find the machine slower
                        value = function(machines[who])
                        if turn > 0:  # the first one warms up
                            read[who].append(value)
                for figure in read["new"][0]:
                    base, again, new = (statistics.median(turn[figure] for turn in read[who]) for who in WHO)
                    share, too_much = slower_by(base, again, new, GATE_NS if part == "gate" else None)
                    slower += too_much
                    print(f"{'SLOWER' if too_much else 'ok':6} {figure}: {base:.4g} and {again:.4g}, new {new:.4g} "
                          f"({100 * share:+.1f} %)", flush=True)
        except (Failure, Skip) as failure:
            print(f"failed: {failure}")
            for machine in machines.values():
                show_logs(machine.bench)
            return 1
        finally:
            for machine in machines.values():
                machine.bench.end(failed=True)
    print("OK" if not slower else f"{slower} figures are slower")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
