#!/usr/bin/env python3
"""Two vLLM engines take turns on one GPU: first with vLLM's own sleep mode, then with amem's. A table compares them.

    python3 deploy/vllm_turns.py                     a Llama of 8 B parameters with made-up weights, 90 % of the GPU each
    python3 deploy/vllm_turns.py --model DIR --turns 10 --json times.json

Requires vLLM, and amemd and amemctl in PATH or in a build tree (--prefix). Starts amemd if none runs. Each engine must generate
the same tokens in each turn. Exit status 0: it has. docs/frameworks.md explains the rows.
"""

import argparse
import contextlib
import json
import os
import pathlib
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
START_S, CALL_S, END_S = 400, 120, 10


class Failure(Exception):
    """A check has failed. The text says which."""


class Engine:
    """A process with an engine. It gets commands line by line, and every answer has a deadline."""

    def __init__(self, name, argv, environment, log, program=HERE / "vllm_engine.py"):
        self.name, self.log = name, log
        commands, mine = os.pipe()
        self.answers, answers = os.pipe()
        self.rest = b""
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [str(each) for each in (*argv[0], sys.executable, program, "--commands", commands, "--answers", answers,
                                        *argv[1])],
                env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, pass_fds=(commands, answers),
                start_new_session=True)
        os.close(commands)
        os.close(answers)
        self.commands = os.fdopen(mine, "w", buffering=1)

    def tell(self, do, **arguments):
        try:
            self.commands.write(json.dumps({"do": do, **arguments}) + "\n")
        except BrokenPipeError:
            raise Failure(self.why(f"has ended before the command {do}")) from None

    def answer(self, seconds=CALL_S):
        """(what it answered, milliseconds that it took there)"""
        end = time.monotonic() + seconds
        while b"\n" not in self.rest:
            ready, _, _ = select.select([self.answers], [], [], max(0, end - time.monotonic()))
            if not ready:
                raise Failure(self.why(f"did not answer within {seconds} s"))
            data = os.read(self.answers, 1 << 16)
            if not data:
                raise Failure(self.why("has ended"))
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        told = json.loads(line)
        if not told["ok"]:
            raise Failure(self.why(told["error"]))
        return told["answer"], told["ms"]

    def ask(self, do, seconds=CALL_S, **arguments):
        self.tell(do, **arguments)
        return self.answer(seconds)

    def why(self, text):
        return f"engine {self.name}: {text}. Its log is {self.log}"

    def end(self):
        with contextlib.suppress(OSError):
            self.commands.close()  # it ends at the end of its commands
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(END_S)
        with contextlib.suppress(OSError):
            os.close(self.answers)


class Node:
    """Programs of amem, the broker that serves here, and the engines."""

    def __init__(self, options, folder, environment=None):
        self.options, self.folder = options, folder
        self.engines, self.daemon = [], None
        self.environment = dict(os.environ if environment is None else environment)
        python = options.prefix / "python" if options.prefix else None
        if python and python.is_dir():
            self.environment["PYTHONPATH"] = ":".join(filter(None, (str(python), os.environ.get("PYTHONPATH"))))
        if options.gpu:
            self.environment["CUDA_VISIBLE_DEVICES"] = options.gpu
        if not self.serves():
            self.start_broker()

    def program(self, name):
        here = self.options.prefix / "bin" / name if self.options.prefix else None
        found = str(here) if here and here.exists() else shutil.which(name)
        if not found:
            raise Failure(f"there is no {name}. Install amem's wheel, or name a build tree with --prefix")
        return found

    def amemctl(self, *arguments):
        return subprocess.run([self.program("amemctl"), *arguments], env=self.environment, text=True, timeout=CALL_S,
                              capture_output=True, check=False)

    def serves(self):
        return self.amemctl("status", "--json").returncode == 0

    def status(self):
        done = self.amemctl("status", "--json")
        if done.returncode != 0:
            raise Failure(f"amemd does not answer: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def start_broker(self):
        runtime = self.folder / "run"
        runtime.mkdir(mode=0o700)
        self.environment["AMEM_RUNTIME_DIR"] = str(runtime)
        plain = {name: value for name, value in self.environment.items() if name != "CUDA_VISIBLE_DEVICES"}
        with (self.folder / "amemd.log").open("wb") as log:
            self.daemon = subprocess.Popen(
                [self.program("amemd"), "--runtime-dir", str(runtime), "--pool-size", self.options.pool], env=plain,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + CALL_S
        while not (self.serves() and self.status()["pool"]["ready_bytes"] >= self.status()["pool"]["configured_bytes"]):
            if self.daemon.poll() is not None or time.monotonic() > end:
                raise Failure(f"amemd and its pool of {self.options.pool} are not ready. Its log is {self.folder}/amemd.log")
            time.sleep(0.1)

    def used_mib(self):
        """On each GPU of an engine, as the driver has it."""
        devices = self.status()["devices"]
        visible = [each for each in self.environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
        chosen = [device for name in visible for device in devices if name in (str(device["ordinal"]), device["uuid"])]
        return [device["used_bytes"] >> 20 for device in (chosen or devices)[:self.options.tp]]

    def start(self, name, sleep, group=None, **environment):
        """An engine that has not begun yet. `sleep`: "own"; "amem"; "none", which is brokered and does not know it. `group`: another
        than its own. `environment`: more variables."""
        launcher = [self.program("amemctl"), "run", "--group", group or f"vllm-{name}", "--scope", "heap", "--required",
                    "--"] if sleep != "own" else []
        options = self.options
        arguments = ["--sleep", sleep, "--model", options.model, "--tp", options.tp, "--utilization", options.utilization,
                     "--cache-gib", options.cache_gib, "--more", options.more_b if name == "B" else options.more]
        engine = Engine(f"{name} ({sleep})", (launcher, arguments), {**self.environment, **environment},
                        self.folder / f"{sleep}-{name}.log")
        self.engines.append(engine)
        return engine

    def end_engines(self):
        while self.engines:
            self.engines.pop().end()

    def end(self):
        self.end_engines()
        if self.daemon is not None:
            self.daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.daemon.wait(END_S)
            self.daemon.kill()
            self.daemon.wait(END_S)


class Pair:
    """Two engines, of which one is awake."""

    def __init__(self, node, sleep):
        self.node = node
        before = node.used_mib()
        self.figures = {"cold_start_s": [], "first_sleep_ms": [], "sleep_ms": [], "wake_ms": [], "turn_ms": []}
        self.tokens = {}
        self.asleep = self.begin("A", sleep)
        self.figures["first_sleep_ms"].append(self.asleep.ask("sleep")[1])
        # Of one engine, asleep, on the GPU on which it is most.
        self.figures["left_mib"] = max(now - then for now, then in zip(node.used_mib(), before))
        self.awake = self.begin("B", sleep)

    def begin(self, name, sleep):
        engine = self.node.start(name, sleep)
        self.figures["cold_start_s"].append(engine.ask("start", START_S)[1] / 1000)
        engine.ask("generate")  # what is compiled on first use
        self.tokens[engine] = engine.ask("generate")[0]
        self.check(engine, "before its first sleep")
        return engine

    def check(self, engine, when):
        tokens, _ = engine.ask("generate")
        if tokens != self.tokens[engine]:
            raise Failure(engine.why(f"generates other tokens {when}"))

    def turn(self):
        """The one that is awake sleeps, then the other wakes. From the telling to the other's first token."""
        out, into = self.awake, self.asleep
        began = time.monotonic()
        slept = out.ask("sleep")[1]
        woke = into.ask("wake")[1]
        self.ends(out, into, began)
        self.figures["sleep_ms" if len(self.figures["first_sleep_ms"]) == 2 else "first_sleep_ms"].append(slept)
        self.figures["wake_ms"].append(woke)

    def turn_together(self):
        """The other brings its weights back while this one's are on their way, as soon as this one's cache has gone."""
        out, into = self.awake, self.asleep
        began = time.monotonic()
        out.tell("sleep")
        into.tell("wake", parts=[["weights"], ["kv_cache"]], within=CALL_S / 2)
        out.answer()
        into.answer()
        self.ends(out, into, began)

    def ends(self, out, into, began):
        into.ask("generate", prompts=1, new=1)
        self.figures["turn_ms"].append((time.monotonic() - began) * 1000)
        self.awake, self.asleep = into, out
        self.check(into, f"after turn {len(self.figures['turn_ms'])}")

    def cache_first(self):
        for engine in (self.awake, self.asleep):
            engine.ask("call", method="cache_first", arguments=[True])


def run(node, options, say=print):
    """The figures by way."""
    ways = {}
    if options.own:
        say("two engines, vLLM's own sleep mode")
        ways["vLLM's own"] = turns(Pair(node, "own"), "turn", options.turns)
        node.end_engines()
    say("two engines, amem's sleep mode")
    pair = Pair(node, "amem")
    ways["amem"] = turns(pair, "turn", options.turns)
    say("two engines, amem's sleep mode, one wakes while the other goes to sleep")
    pair.cache_first()
    ways["amem, together"] = turns(pair, "turn_together", options.turns)
    return ways


def turns(pair, way, count):
    pair.figures["turn_ms"] = []
    for _ in range(count):
        getattr(pair, way)()
    return dict(pair.figures)


def table(ways):
    rows = [("first sleep, ms", "first_sleep_ms"), ("sleep, ms", "sleep_ms"), ("wake, ms", "wake_ms"),
            ("sleep command to the other's first token, ms", "turn_ms"), ("still on the GPU asleep, MiB", "left_mib"),
            ("cold start, s", "cold_start_s")]
    together = ("turn_ms", "left_mib")  # what else its engines have measured is the column's beside it
    lines = [["medians", *ways]]
    for text, name in rows:
        line = [text]
        for way, figures in ways.items():
            values = figures[name] if isinstance(figures[name], list) else [figures[name]]
            shown = values and (not way.endswith("together") or name in together)
            line.append(f"{statistics.median(values):.0f}" if shown else "–")
        lines.append(line)
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    return "\n".join("  ".join([line[0].ljust(widths[0]), *(each.rjust(width) for each, width in zip(line[1:], widths[1:]))])
                     for line in lines)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="dummy", help="the folder of a model; dummy: a Llama of 8 B parameters with made-up weights")
    parser.add_argument("--turns", type=int, default=6, help="how many turns of each kind")
    parser.add_argument("--tp", type=int, default=1, help="how many GPUs each engine uses; both use the same")
    parser.add_argument("--utilization", type=float, default=0.9, help="share of the GPU's memory for each engine")
    parser.add_argument("--cache-gib", type=float, default=0, help="size of the KV cache; 0: all memory that the utilization leaves")
    parser.add_argument("--gpu", default="", help="CUDA_VISIBLE_DEVICES")
    parser.add_argument("--pool", default="48GiB", help="pool size of the amemd that it starts: both engines' memory without the KV cache")
    parser.add_argument("--prefix", type=pathlib.Path, help="the folder with bin/ and python/ of amem: a build tree or a bundle")
    parser.add_argument("--no-own", dest="own", action="store_false", help="skip vLLM's own sleep mode")
    parser.add_argument("--json", type=pathlib.Path, help="write all figures to this file")
    parser.add_argument("--logs", type=pathlib.Path, help="keep the logs in this folder; default: keep them only if it fails")
    parser.add_argument("--more", default="{}", help="JSON with more arguments of vLLM's LLM")
    parser.add_argument("--more-b", help="the same for the second engine, such as another model; default: what --more says")
    options = parser.parse_args(arguments)
    if options.more_b is None:
        options.more_b = options.more
    if options.turns < 1:
        parser.error(f"--turns {options.turns} is not valid. It must be 1 or more")
    if options.prefix:
        options.prefix = options.prefix.resolve()
    return options


def main(arguments=None):
    options = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("FAILED: terminated"))
    # A socket's path must be short.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="amem-vllm-", dir=None if len(tempfile.gettempdir()) < 50 else "/tmp"))
    node, failed = None, True
    try:
        node = Node(options, folder)
        ways = run(node, options, lambda text: print(text, flush=True))
        failed = False
    except (Failure, OSError, ValueError, KeyError, subprocess.TimeoutExpired) as failure:
        print(f"FAILED: {failure}\nlogs: {options.logs or folder}", file=sys.stderr)
    finally:
        if node is not None:
            node.end()
        if options.logs:
            options.logs.mkdir(parents=True, exist_ok=True)
            for log in folder.glob("*.log"):
                shutil.copy(log, options.logs)
        if options.logs or not failed:
            shutil.rmtree(folder, ignore_errors=True)
    if failed:
        return 1
    if options.json:
        options.json.write_text(json.dumps(ways, indent=1) + "\n")
    print(f"\n{table(ways)}\n\nOK: the engines generated the same tokens in all {options.turns} turns of each kind")
    return 0


if __name__ == "__main__":
    sys.exit(main())
