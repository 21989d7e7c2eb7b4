#!/usr/bin/env python3
"""An example of a framework, some times without and with amem: are its numbers the same, and what do the switches take?

    frameworks.py trl|verl|openrlhf|vllm|sglang|jax --prefix PREFIX [--plain 2] [--amem 1] [--gpus 1] [--pool SIZE] [--out FOLDER] [-- OPTION...]

PREFIX: a bundle or a build tree. Runs examples/FRAMEWORK/run.sh of this tree, with the OPTIONs of the framework. This Python has the
framework. Prints the table of examples/FRAMEWORK/README.md. --from-logs FOLDER reads the logs of an earlier run instead. Exit status: 0 all
runs have ended well, 1 otherwise, 77 this Python lacks the framework.

What a step of a trainer spends with switching comes from timed/: the engine's sleep and wakes, and what the trainer does with its own
memory, by the framework's functions or by amem's. A step is what lies between two sleeps of the engine; medians are of the steps after the
first. The first process of the engine and the first one of the trainer count. An update of weights is what the framework calls so: it
includes the wakes within it.
"""

import argparse
import ast
import importlib.util
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
import zlib

HERE = pathlib.Path(__file__).resolve().parent
TIMED = HERE / "timed"
EXAMPLES = HERE.parents[2] / "examples"
sys.path[:0] = [str(HERE.parent / "frameworks"), str(HERE.parent / "programs")]

from harness import Failure, Program, end_processes  # noqa: E402

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
ASLEEP = re.compile(r"It took ([\d.]+) seconds to fall asleep")
AWAKE = re.compile(r"It took ([\d.]+) seconds to wake up tags")
IN_USE = re.compile(r"Sleep mode freed [\d.]+ GiB memory, ([\d.]+) GiB memory is still in use")  # of the whole device, as the driver says
CACHE = re.compile(r"GPU KV cache size: ([\d,]+) tokens")
OPENRLHF_STEP = re.compile(r"Global step \d+: (\{.*\})")
TURN = re.compile(r"^turn \d+: left in ([\d.]+) s, GPU memory in use meanwhile: (\d+|unknown)(?: MiB)?, returned in ([\d.]+) s$", re.M)
ANSWER = re.compile(r"^answer: (.*)$", re.M)
JAX_STEP = re.compile(r"^step \d+: loss (\S+)$", re.M)
COMPARED = re.compile(r"^(?!timing).*(reward|loss|grad_norm|answer)")


class Framework:
    """How to read what it reports.

    update, step: the keys of the seconds of a weight update and of a step; no step: the example reports its turns (made_up/turns.sh).
    needs: modules. model: whether it needs the one of made_up.
    """

    def __init__(self, needs, step=None, update=None, model=True):
        self.needs, self.step, self.update, self.model = needs, step, update, model


FRAMEWORKS = {
    "trl": Framework(("torch", "trl", "vllm", "datasets"), "step_time"),
    "verl": Framework(("torch", "verl", "vllm", "ray"), "timing_s/step", "timing_s/update_weights"),
    "openrlhf": Framework(("torch", "openrlhf", "vllm", "ray", "deepspeed"), "timing/step_total", "timing/broadcast"),
    "vllm": Framework(("torch", "vllm", "transformers")),
    "sglang": Framework(("torch", "sglang", "transformers")),
    "jax": Framework(("jax",), model=False),
}


def numbers(values):
    return {key: value for key, value in values.items() if isinstance(value, (int, float)) and not isinstance(value, bool)}


def steps_of(name, folder, log):
    """One dictionary of numbers for each step. `folder`: what the run wrote. `log`: its output."""
    if name == "verl":
        lines = [json.loads(line) for line in (folder / "verl.jsonl").read_text().splitlines()]
        return [numbers(line["data"]) for line in lines if "timing_s/step" in line["data"]]
    if name == "trl":
        states = sorted((folder / "trl").glob("checkpoint-*/trainer_state.json"), key=lambda path: int(path.parent.name.rpartition("-")[2]))
        return [numbers(each) for each in json.loads(states[-1].read_text())["log_history"] if "loss" in each] if states else []
    if name == "jax":
        return [{"loss": float(loss)} for loss in JAX_STEP.findall(log)]
    if FRAMEWORKS[name].step is None:
        return [{"answer": zlib.crc32(answer.encode())} for answer in ANSWER.findall(log)]
    found = [re.sub(r"[\w.]+\(([-+\w.]+)[^)]*\)", r"\1", each) for each in OPENRLHF_STEP.findall(log)]  # tensor(0.5), np.float64(0.5)
    return [numbers(ast.literal_eval(re.sub(r"\b(nan|inf)\b", "0.0", each))) for each in found]


def seconds(pattern, log):
    return [float(each) for each in pattern.findall(log)]


def spent(folder):
    """Of one run: {name of timed/: seconds of a step, a median}. Empty: timed/ has said nothing."""
    path = folder / "times"
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    process = {}
    for each in found:
        each["engine"] = each["name"] in ("sleep", "wake")
        process.setdefault(each["engine"], each["pid"])
    found = sorted((each for each in found if each["pid"] == process[each["engine"]]), key=lambda each: each["at"])
    sleeps = [each["at"] for each in found if each["name"] == "sleep"]
    steps = list(zip(sleeps, sleeps[1:]))
    answer = {}
    for name in sorted({each["name"] for each in found}) if steps else ():
        sums = [sum(each["seconds"] for each in found if each["name"] == name and begin <= each["at"] < end) for begin, end in steps]
        answer[name] = statistics.median(sums[1:] or sums)
    return answer


def summary(name, folder, log, times=None):
    """Of one run. Times are in seconds. `times`: the folder with the file of timed/, else there is none."""
    framework = FRAMEWORKS[name]
    log = COLOURS.sub("", log)
    steps = steps_of(name, folder, log)
    later = steps[1:] or steps  # the first step also compiles, and makes the optimizer's state

    def middle(key):
        return statistics.median([step[key] for step in later]) if later and key else None

    def median(values):
        return statistics.median(values[1:] or values) if values else None

    if framework.step:
        took = spent(times) if times else {}
        if not took:  # vLLM's own lines say at least this
            took = {"sleep": median(seconds(ASLEEP, log)), "wake": sum(seconds(AWAKE, log)) / max(1, len(steps)) or None}
        used = median([round(1024 * each) for each in seconds(IN_USE, log)])
    else:
        turns = TURN.findall(log)
        took = {"sleep": median([float(turn[0]) for turn in turns]), "wake": median([float(turn[2]) for turn in turns])}
        used = max((int(turn[1]) for turn in turns if turn[1] != "unknown"), default=None)
    caches = [int(each.replace(",", "")) for each in CACHE.findall(log)]
    parts = [took[each] for each in ("sleep", "wake", "leave", "return") if took.get(each) is not None]
    return {"steps": len(steps),
            "compared": [{key: float(value).hex() for key, value in step.items() if COMPARED.search(key)} for step in steps],
            "step": middle(framework.step), "update": middle(framework.update) if framework.update else took.get("update"),
            **{each: took.get(each) for each in ("sleep", "wake", "leave", "return")},
            "switched": sum(parts) if parts and framework.step else None, "used": None if used is None else int(used),
            "cache_tokens": min(caches) if caches else None}


def differences(first, other):
    """The keys whose numbers are not equal bit for bit, of the steps that both have."""
    return sorted({key for one, two in zip(first["compared"], other["compared"]) for key in {*one, *two} if one.get(key) != two.get(key)})


def cell(value, digits=3):
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def percent(part, whole):
    return "–" if part is None or not whole else f"{100 * part / whole:.1f} %"


def table(runs):
    """Markdown. `runs`: summaries by name."""
    rows = [("steps", lambda run: cell(run["steps"] if run["step"] is not None else None)),
            ("a step, median, s", lambda run: cell(run["step"])),
            ("sleep or pause, s", lambda run: cell(run["sleep"], 4)),
            ("wakes or resumes, s", lambda run: cell(run["wake"], 4)),
            ("the trainer's memory leaves, s", lambda run: cell(run["leave"], 4)),
            ("the trainer's memory returns, s", lambda run: cell(run["return"], 4)),
            ("all of these in a step, s", lambda run: cell(run["switched"], 4)),
            ("their share of a step", lambda run: percent(run["switched"], run["step"])),
            ("projected to a step of 10 s", lambda run: percent(run["switched"], 10)),
            ("projected to a step of 60 s", lambda run: percent(run["switched"], 60)),
            ("GPU memory in use while asleep or paused, MiB", lambda run: cell(run["used"])),
            ("weight update in a step, s", lambda run: cell(run["update"])),
            ("KV cache, tokens", lambda run: cell(run["cache_tokens"]))]
    rows = [row for row in rows if any(row[1](run) != "–" for run in runs.values())]
    lines = [f"| | {' | '.join(runs)} |", "| --- |" + " --- |" * len(runs)]
    lines += [f"| {title} | {' | '.join(value(run) for run in runs.values())} |" for title, value in rows]
    return "\n".join(lines)


def verdict(runs):
    """Sentences about what is compared, with a run without amem."""
    plain = [name for name in runs if not name.startswith("amem")]
    if not plain:
        return []
    said = []
    first = runs[plain[0]]["compared"]
    what = {"answer": "the answers", "loss": "the losses"}.get(",".join(first[0]) if first else "", "rewards, losses and gradient norms")
    for name in list(runs)[1:]:
        unequal = differences(runs[plain[0]], runs[name])
        steps, others = len(first), len(runs[name]["compared"])
        said.append(f"{plain[0]} and {name}: " + (f"{', '.join(unequal)} differ" if unequal else f"{what} are equal bit for bit") +
                    (f" in the first {min(steps, others)} steps. They have {steps} and {others} steps" if steps != others else ""))
    if any(differences(runs[plain[0]], runs[name]) for name in plain[1:]):
        keys = sorted({key for run in runs.values() for step in run["compared"] for key in step} - {"answer"})
        for key in keys:
            ends = [[float.fromhex(runs[name]["compared"][-1][key]) for name in names if runs[name]["compared"] and key in runs[name]["compared"][-1]]
                    for names in (plain, [name for name in runs if name not in plain])]
            if all(ends):
                said.append(f"{key} in the last step: without amem {min(ends[0]):.6g} to {max(ends[0]):.6g}, with amem "
                            f"{', '.join(f'{each:.6g}' for each in ends[1])}")
    return said


def run_once(name, options, made, out, kit, with_amem):
    """Gives (the summary, whether it ended well). Its log and its numbers are in `out`."""
    folder = out / "made"
    folder.mkdir(parents=True)
    for each in made.iterdir():
        (folder / each.name).symlink_to(each)
    environment = dict(kit.broker.environment if with_amem else kit.clean)
    environment.update(GPUS=str(options.gpus), PATH=f"{options.prefix / 'bin'}:{os.environ['PATH']}", PYTHONUNBUFFERED="1")
    environment.update(PYTHONPATH=f"{TIMED}:{environment['PYTHONPATH']}", FRAMEWORKS_TIMES=str((out / "times").resolve()))
    command = [EXAMPLES / name / "run.sh", *(["--amem"] if with_amem else []), folder, *options.more]
    log, began = out / "log", time.monotonic()
    program = Program(command, environment, log, log, f"{os.getpid()}.{out.name}")
    try:
        code = program.wait_any(options.limit).code
    except Failure as failure:
        code = str(failure)
    finally:
        end_processes(program.marker)  # what a job leaves, such as Ray's, would be on the GPU in the next run
    print(f"{out.name}: ended with {code} after {time.monotonic() - began:.0f} s", flush=True)
    text = log.read_text(errors="replace")
    if code != 0:
        print("\n".join(text.splitlines()[-40:]), flush=True)
        return None
    return summary(name, folder, text, out)


def run_all(name, options):
    from run_frameworks import Run

    keep = options.out or pathlib.Path(tempfile.mkdtemp(prefix="amem-frameworks-"))
    keep.mkdir(parents=True, exist_ok=True)
    made = (options.made_up or keep / "made-up").resolve()
    if not FRAMEWORKS[name].model:
        made.mkdir(exist_ok=True)
    elif not (made / "model").is_dir():
        subprocess.run([sys.executable, EXAMPLES / "made_up" / "make.py", made], check=True)
    kit = Run(options, keep)
    kit.install()
    runs = {}
    try:
        for at in range(options.plain + options.amem):
            with_amem = at >= options.plain
            title = f"amem {at - options.plain + 1}" if with_amem else f"plain {at + 1}"
            found = run_once(name, options, made, keep / title.replace(" ", "-"), kit, with_amem)
            if found is None:
                return runs, False
            runs[title] = found
            (keep / "summaries.json").write_text(json.dumps(runs, indent=1))
    finally:
        kit.broker.stop()
    return runs, True


def read_all(name, folder):
    found = sorted(folder.glob("plain-*/log")) + sorted(folder.glob("amem-*/log"))
    return {path.parent.name.replace("-", " "): summary(name, path.parent / "made", path.read_text(errors="replace"), path.parent)
            for path in found}


def options_of(arguments):
    """Parses the command line. `more` has the framework's own options, which follow "--"."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("--prefix", type=pathlib.Path, help="a bundle or a build tree")
    parser.add_argument("--plain", type=int, default=2, help="runs without amem")
    parser.add_argument("--amem", type=int, default=1, help="runs with amem")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--pool", default="40GiB")
    parser.add_argument("--limit", type=float, default=500, help="seconds for each run")
    parser.add_argument("--made-up", type=pathlib.Path, help="from examples/made_up/make.py. Default: it is made")
    parser.add_argument("--out", type=pathlib.Path, help="keeps the logs there")
    parser.add_argument("--from-logs", type=pathlib.Path)
    own = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:own])
    options.more = arguments[own + 1:]
    return options


def main():
    options = options_of(sys.argv[1:])
    well = True
    if options.from_logs:
        runs = read_all(options.framework, options.from_logs)
    else:
        missing = [each for each in FRAMEWORKS[options.framework].needs if importlib.util.find_spec(each) is None]
        if missing or options.prefix is None:
            print(f"SKIP: Python has no {', '.join(missing)}" if missing else "frameworks.py: --prefix is missing")
            return 77 if missing else 2
        options.prefix = options.prefix.resolve()
        runs, well = run_all(options.framework, options)
    if runs:
        print(table(runs))
        print("\n".join(verdict(runs)))
    return 0 if well and runs else 1


if __name__ == "__main__":
    sys.exit(main())
