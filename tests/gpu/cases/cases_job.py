"""The cases about job control: Ctrl-Z in a terminal frees the GPU, and `fg` brings the job back."""

import json
import pathlib
import shlex
import statistics
import sys
import time

import harness
from harness import Failure, Skip, has_torch
from registry import case
from terminal import Terminal

SHARE = 0.25     # of the GPU's memory, of the job that is stopped
WHOLE = 0.85     # of the one that runs meanwhile: both do not fit
STEPS = 600
PROGRAM = pathlib.Path(harness.__file__).with_name("job_steps.py")
CUBLAS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # deterministic


def report_in(path):
    for line in path.read_text(errors="replace").splitlines():
        if line.startswith("{"):
            return json.loads(line)
    raise Failure(f"no report in {path.name}")


def stops_in_a_terminal(bench, command, pool_mib, out, times):
    """Runs it in the foreground, and stops it so often while another training has the whole GPU. [s of a stop], [s of fg]"""
    broker = bench.broker_with(f"{pool_mib}MiB")
    total = min(bench.gpus.total_mib())
    terminal = Terminal({**bench.environment, **CUBLAS, "AMEM_RUNTIME_DIR": str(broker.runtime)})
    run = [bench.prefix / "bin" / "amemctl", "run", "--job-control", "--group", "train", "--scope", "heap", "--", *command]
    stops, returns = [], []
    try:
        terminal.type(f"{shlex.join(map(str, run))} > {out}\n")
        terminal.expect("step ", 120)
        for number in range(times):
            began = time.monotonic()
            terminal.type("\x1a")
            terminal.expect("GPU memory is free", 60)
            terminal.expect("Stopped", 60)
            stops.append(time.monotonic() - began)
            # Of another user of the GPU, who has no amem.
            bench.python_script("job_steps.py", "--mib", int(total * WHOLE), "--steps", 3, shim=False, env=CUBLAS, group=f"other-{number}").wait(120)
            began = time.monotonic()
            terminal.type("fg\n")
            terminal.expect("the GPU memory is back", 60)
            returns.append(time.monotonic() - began)
            time.sleep(0.2)  # some steps
        terminal.expect(Terminal.PROMPT, 200)
    except AssertionError as error:
        raise Failure(str(error)) from None
    finally:
        terminal.close()
    return stops, returns


def job(bench, launcher, times):
    if not has_torch():
        raise Skip("no PyTorch")
    mib = int(min(bench.gpus.total_mib()) * SHARE)
    command = [*launcher, PROGRAM, "--mib", mib, "--steps", STEPS]
    alone = bench.start(command, shim=False, env=CUBLAS, group="alone").wait(250).report()
    out = bench.folder / "stopped.out"
    stops, returns = stops_in_a_terminal(bench, command, mib * bench.ranks * 9 // 8, out, times)
    stopped = report_in(out)
    if stopped["hash"] != alone["hash"]:
        raise Failure(f"the weights differ: {stopped} is not {alone}")
    return (f"{len(stops)} stops of {mib // 1024} GiB: {statistics.median(stops):.2f} s, fg {statistics.median(returns):.2f} s, at most "
            f"{max(stops):.2f}, {max(returns):.2f}; equal bits after {alone['steps']} steps, {alone['seconds']} s undisturbed")


@case(560)
def job_control(bench):
    """A training in a terminal is stopped 20 times by Ctrl-Z, while another one needs the whole GPU, and returns by fg: bits equal."""
    return job(bench, [sys.executable], 20)


@case(560)
def job_control_ranks(bench):
    """The same with torchrun and two ranks with NCCL, in the middle of a step."""
    bench.needs_peers()
    return job(bench, ["torchrun", "--standalone", "--nproc-per-node", "2"], bench.few)
