"""The cases about stages: groups take turns on a GPU on which no two of them fit. amemd decides when."""

import concurrent.futures
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import time

from harness import Failure, Skip, tail
from registry import case
import cases_vllm as vllm

STAGE = "night"
LARGEST_MIB = 4096  # of a group; on a small GPU a quarter of its memory
START_S = 90
STEP_S = 90  # one step of one group, with the turns of the others before it
SLACK_S = 0.25
MAX_HOLD_S, SIMULATED_MAX_HOLD_S = 8.0, 4.0  # a start takes less
LAUNCH_RUNS, QUICK_LAUNCH_RUNS = 5, 3
GATE_NS = 1.0
FIRST_TOKEN_MS = 50  # of a paused engine, beyond the switch and its own time to the first token
REQUESTS_S, QUICK_REQUESTS_S, SIMULATED_REQUESTS_S = 180, 30, 10
REQUEST_EVERY_S, SIMULATED_REQUEST_EVERY_S = 6, 2
ENGINE_START_S, ENGINES_START_S = 240, 480  # one, and all one after the other
KILL_SPREAD_S = 1.2


@contextlib.contextmanager
def stage_broker(bench, pool_mib, margin_mib, *flags, **settings):
    """A broker with a stage of the first GPU that CUDA shows here. No other case gets it. Groups start alone, one after the other,
    and say when they have started: nothing here depends on how long a start pauses. `flags`: amemd's."""
    settings = {"start_idle": "10m", **settings}
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    path = bench.folder / "amemd.toml"
    lines = [f"[stage.{STAGE}]", f"devices = [{gpu if gpu.isdigit() else json.dumps(gpu)}]", f'margin = "{margin_mib}MiB"',
             *(f'{key} = "{value}"' for key, value in settings.items())]
    path.write_text("\n".join(lines) + "\n")
    yield bench.broker_with(f"{pool_mib}MiB", "--config", path, *flags)
    bench.stop_broker()


def the_stage(broker):
    [stage] = json.loads(broker.amemctl("turns", "--json"))["stages"]
    return stage


def running_in(stage):
    return [each["group"] for each in stage["groups"] if each["turn"] in ("starts", "runs", "leaves")]


def stage_of(broker):
    stage = the_stage(broker)
    running = running_in(stage)
    if len(running) > 1:
        raise Failure(f"{' and '.join(running)} run at the same time, and no two of the groups fit")
    return stage


def turn_of(broker, group):
    return next(each["turn"] for each in stage_of(broker)["groups"] if each["group"] == group)


def note_of(broker, group, words):
    """What the group says of why it waits, if it has these words."""
    return next((each["note"] for each in stage_of(broker)["groups"] if each["group"] == group and words in each["note"]), None)


def wait_until(true, what, limit=STEP_S, pause=0.02):
    """What is true then."""
    end = time.monotonic() + limit
    while not (found := true()):
        if time.monotonic() > end:
            raise Failure(f"not within {limit:.0f} s: {what}")
        time.sleep(pause)
    return found


class Rank:
    """One program of turns_rank.py."""

    def __init__(self, bench, role, group, mib, *arguments, **how):
        self.group = group
        tag = f"{len(bench.started)}-{group}"
        folder = how.pop("folder", bench.folder)
        self.progress, self.stop_file, self.work, self.started = (folder / f"{tag}.{name}" for name in ("progress", "stop", "work", "started"))
        if how.get("shim", True):
            how = {"scope": "heap", "env": {"AMEM_STAGE": STAGE, "AMEM_REQUIRED": "1"}, **how}
        self.program = bench.python_script("turns_rank.py", role, "--mib", mib, "--progress", self.progress, "--stop-file", self.stop_file,
                                           "--work", self.work, "--started", self.started, *arguments, torch=False, group=group, **how)
        self.asked = 0

    def check(self):
        if not self.program.running() and self.program.process.returncode != 0:
            raise Failure(f"{self.group} ended with {self.program.process.returncode}: {tail(self.program.err, 2)}")

    def steps(self):
        self.check()
        return int(self.progress.read_text()) if self.progress.exists() else 0

    iterations = steps  # as others call it

    def has_started(self):
        self.check()
        return self.started.exists()

    def ask(self):
        """One more step, of a program that serves."""
        self.asked += 1
        new = self.work.with_suffix(".new")
        new.write_text(str(self.asked))
        new.rename(self.work)

    def wait_steps(self, count, why, limit=STEP_S):
        wait_until(lambda: self.steps() >= count, f"{self.group} has done step {count} {why}", limit)

    def finish(self):
        self.stop_file.touch()
        return self.program.wait(STEP_S).report()


def group_mib(bench):
    return min(LARGEST_MIB, min(bench.gpus.total_mib()) // 4 // 16 * 16)


@contextlib.contextmanager
def taking_turns(bench, broker, starts, mib):
    """Starts the programs of the groups at once, and when each has had its first turn, what takes the rest of the GPU. One of them runs."""
    ranks = [start() for start in starts]
    left = list(ranks)

    def all_there():
        for rank in [each for each in left if each.has_started()]:
            broker.amemctl("lease", rank.group, "--yield")
            left.remove(rank)
        return not left
    wait_until(all_there, "all groups have their memory", len(ranks) * START_S)
    with no_two_fit(broker, bench, len(ranks), mib // 2):
        yield ranks


@contextlib.contextmanager
def no_two_fit(broker, bench, count, leave_mib):
    """So many groups have started, and one of them runs: what takes the rest of the GPU meanwhile."""
    def one_runs():
        stage = stage_of(broker)
        return not stage["switching"] and sorted(each["turn"] for each in stage["groups"]) == ["idle"] * (count - 1) + ["runs"]
    wait_until(one_runs, "all first turns are over, and one group runs", START_S)
    with fills(bench, leave_mib):
        yield


@contextlib.contextmanager
def fills(bench, leave_mib=0, take_mib=0):
    """A program without amem takes so much of the GPU meanwhile, or all but so much of what is free."""
    filler = Rank(bench, "fill", "fill", take_mib, "--leave-mib", leave_mib, shim=False)
    wait_until(lambda: filler.steps() == 1, "the rest of the GPU is taken", START_S)
    yield
    filler.stop_file.touch()
    filler.program.wait(STEP_S)


# ---- an RL loop without a controller ----------------------------------------------------------------------------


def rl_halves(bench, mib, iterations, turns, folder, **how):
    folder.mkdir()
    arguments = ("--iterations", iterations, "--turns", turns, "--folder", folder)
    return [lambda role=role: Rank(bench, role, role, mib, *arguments, **how) for role in ("train", "rollout")]


def ended(ranks, iterations):
    """What both have given."""
    for rank in ranks:
        rank.wait_steps(iterations, "of the loop", 2 * STEP_S)
    return [rank.finish() for rank in ranks]


def switches_of(broker):
    """The swaps that have succeeded: (when each began, how long it took, both in ms, which groups came in)."""
    found = {}
    for each in json.loads(broker.amemctl("history", "--json", "--most", "0"))["operations"]:
        if each["swap"] and not each["code"]:
            found.setdefault(each["transaction"], []).append(each)
    for parts in found.values():
        began = min(each["began_us"] for each in parts)
        ended_us = max(each["began_us"] + each["us"] for each in parts)
        yield began / 1e3, (ended_us - began) / 1e3, [each["group"] for each in parts if each["operation"] == "resume"]


@case(300)
def turns_rl_loop(bench):
    """An RL loop of two groups that take their turns by lease, without a controller; the bits of the undisturbed run."""
    mib, iterations = group_mib(bench), bench.cycles
    reports, seconds = {}, {}
    for way in ("lease", "told"):
        halves = rl_halves(bench, mib, iterations, way, bench.folder / way)
        with stage_broker(bench, 3 * mib, mib // 8, policy="lease") as broker, taking_turns(bench, broker, halves, mib) as ranks:
            (bench.folder / way / "go").touch()
            if way == "told":
                control(broker, bench.folder / way, iterations)
            reports[way] = ended(ranks, iterations)
            seconds[way] = [ms / 1e3 for _, ms, _ in switches_of(broker)]
    ranks = [start() for start in rl_halves(bench, mib, iterations, "none", bench.folder / "none", shim=False)]
    (bench.folder / "none" / "go").touch()
    undisturbed = ended(ranks, iterations)
    for way, both in reports.items():
        for half, alone in zip(both, undisturbed):
            if (half["given"], half["final"]) != (alone["given"], alone["final"]):
                raise Failure(f"other bits with turns ({way}): {half}; undisturbed: {alone}")
    shown = {way: f"{sum(each) / iterations:.2f} s switched a step ({len(each)} switches, median {statistics.median(each):.2f} s)"
             for way, each in seconds.items()}
    return f"{iterations} iterations of two groups with {mib} MiB, all bits equal; by lease {shown['lease']}, by a controller {shown['told']}"


def control(broker, folder, iterations):
    """The controller that lease does without: it says whose turn it is."""
    running = next(role for role in ("train", "rollout") if turn_of(broker, role) == "runs")
    for number in range(1, iterations + 1):
        for role, result in (("rollout", "tokens"), ("train", "weights")):
            if running != role:
                broker.amemctl("swap", running, role)
                running = role
            (folder / f"{role}.{number}").write_text("1")
            wait_until((folder / f"{result}.{number}").exists, f"{role} has done iteration {number}", pause=0.005)


# ---- a job that never yields ------------------------------------------------------------------------------------


@case(300)
def turns_max_hold(bench):
    """A job that works without end and never yields leaves within max_hold and one switch when another one asks."""
    mib, max_hold = group_mib(bench), SIMULATED_MAX_HOLD_S if bench.one_pool else MAX_HOLD_S
    starts = [lambda group=group: Rank(bench, "busy", group, mib) for group in ("asks", "stays")]
    took = []
    with (stage_broker(bench, 3 * mib, mib // 8, policy="lease", max_hold=f"{max_hold}s", min_residency="0s") as broker,
          taking_turns(bench, broker, starts, mib) as (asks, stays)):
        broker.amemctl("lease", "stays", "--timeout", "60s")
        for number in range(1, bench.few + 1):
            before = stays.steps()
            wait_until(lambda: stays.steps() > before, "stays works")
            began = time.monotonic()
            broker.amemctl("lease", "asks", "--timeout", "60s")
            seconds = time.monotonic() - began
            switch = stage_of(broker)["last"]["us"] / 1e6
            took.append((seconds, switch))
            if bench.given_time_limits and seconds > max_hold + switch + SLACK_S:
                raise Failure(f"turn {number}: asked for {seconds:.2f} s; max_hold {max_hold} s and the switch of {switch:.2f} s are the limit")
            reached = asks.steps()
            asks.wait_steps(reached + 1, "in its turn")
            broker.amemctl("lease", "asks", "--yield")
            wait_until(lambda: turn_of(broker, "stays") == "runs", "stays, which has not yielded, runs again")
        steps = finish_each(broker, (stays, asks))
    return (f"{len(took)} times: at most {max(each[0] for each in took):.2f} s from the asking to the turn, max_hold {max_hold} s, switches "
            f"{min(each[1] for each in took):.2f} to {max(each[1] for each in took):.2f} s; {steps} steps, all bytes right")


def finish_each(broker, ranks):
    """Each ends in a turn of its own, in which it verifies its bytes. The steps that they did."""
    steps = 0
    for rank in ranks:
        broker.amemctl("lease", rank.group, "--timeout", "60s")
        steps += rank.finish()["iterations"]
    return steps


# ---- a launch ---------------------------------------------------------------------------------------------------


def no_slower(what, unit, base, again, new, allowed):
    """The rule for comparisons (tests/bench): beyond what two runs of the same differ by."""
    if new - max(base, again) > allowed + abs(again - base):
        raise Failure(f"{what}: {new:.2f} {unit} in a stage, {base:.2f} and {again:.2f} without")
    return f"{what} {base:.2f} and {again:.2f} {unit} without a stage, {new:.2f} in one"


@case(240)
def turns_launch(bench):
    """A launch in a group of a stage and in one of none, in turns, medians: a real one, and through the gate alone."""
    said = []
    runs = QUICK_LAUNCH_RUNS if bench.quick else LAUNCH_RUNS
    gate = bench.prefix / "bin" / "amem_gate_bench"
    if gate.exists():
        # What the shim does for a group of a stage beyond the gate: it looks for work.
        found = {"launch/gate": [], "launch/gate_with_reports": []}
        for _ in range(runs):
            for name in ("launch/gate", "launch/gate_with_reports", "launch/gate"):
                program = bench.start([gate, "--benchmark_format=json", "--benchmark_min_time=0.2",
                                       f"--benchmark_filter=^{name}(/real_time)?(/threads:1)?$"], shim=False)
                text = program.wait(30).out.read_text()
                found[name] += [each["cpu_time"] for each in json.loads(text[text.index("{"):])["benchmarks"]]
        plain = found["launch/gate"]
        base, again, new = (statistics.median(each) for each in (plain[::2], plain[1::2], found["launch/gate_with_reports"]))
        said.append(no_slower("the gate alone:", "ns", base, again, new, GATE_NS) if bench.given_time_limits else
                    f"the gate alone: {base:.2f} and {again:.2f} ns, {new:.2f} in a stage")
    real = real_launches(bench, runs)
    if real:
        said.append(real)
    if not said:
        raise Skip("no amem_gate_bench, and this driver loads no kernel")
    return "; ".join(said)


def real_launches(bench, runs):
    """Of amem_launch_bench, as shares of a launch past the shim. Empty: this driver loads no kernel."""
    mib = group_mib(bench)
    taken = {"base": [], "again": [], "stage": []}
    with stage_broker(bench, mib, mib // 8, policy="demand", start="beside"):
        for _ in range(runs):
            for who, each in taken.items():
                done = bench.launch_bench(env={"AMEM_STAGE": STAGE} if who == "stage" else {}).wait_any(40)
                if done.code != 0 and "NOT_SUPPORTED" in tail(done.err) + tail(done.out):
                    return ""
                if done.code != 0:
                    raise Failure(f"amem_launch_bench ended with {done.code}")
                report = done.report()
                each.append(100 * report["launch_ns"] / report["direct_ns"])
    base, again, new = (statistics.median(each) for each in taken.values())
    return no_slower("a launch:", "% of the driver's own", base, again, new, 2)


# ---- amemd dies -------------------------------------------------------------------------------------------------


@case(340)
def turns_killed(bench):
    """amemd is killed at random while three groups take turns by demand: no turn is lost, and never two groups run that do not fit."""
    mib = group_mib(bench)
    starts = [lambda group=group: Rank(bench, "serve", group, mib) for group in ("a", "b", "c")]
    kills = min(3, bench.operator_pauses) if bench.one_pool else bench.operator_pauses
    switches, back = 0, []
    with (stage_broker(bench, 4 * mib, mib // 8, policy="demand", grace="50ms", idle="200ms", min_residency="0s") as broker,
          taking_turns(bench, broker, starts, mib) as ranks):
        for number in range(1, kills + 1):
            for rank in random.sample(ranks, random.randint(1, len(ranks))):
                rank.ask()
            end = time.monotonic() + random.uniform(0, KILL_SPREAD_S)
            while time.monotonic() < end:
                stage_of(broker)  # which checks that no two run
                time.sleep(0.02)
            switches += stage_of(broker)["switches"]
            back.append(broker.kill_and_start_again())
            if number % 5 == 0 or number == kills:  # until then what was asked before several kills waits together
                wait_until(lambda: stage_of(broker) and all(rank.steps() >= rank.asked for rank in ranks), f"all steps are done after kill {number}")
        steps = sum(rank.finish()["iterations"] for rank in ranks)
        switches += stage_of(broker)["switches"]
    if steps != sum(rank.asked for rank in ranks):
        raise Failure(f"{steps} steps done, {sum(rank.asked for rank in ranks)} asked")
    return f"{len(back)} kills, {switches} switches, {steps} steps, none lost, all bytes right; serves again after at most {max(back):.2f} s"


# ---- vLLM -------------------------------------------------------------------------------------------------------


class Engine:
    """One `vllm serve` as it is, and what it gave undisturbed."""

    def __init__(self, bench, broker, number):
        self.group = f"vllm-{number}"
        self.server = vllm.Server(bench, None, graphs=True, group=self.group, tp=1, env={"AMEM_STAGE": STAGE}, start_s=ENGINES_START_S)
        # Until its first turn ends, nobody else has the GPU.
        self.server.call("rescale")
        self.tokens = self.server.tokens()
        if self.server.tokens() != self.tokens:
            raise Failure(f"two undisturbed runs of {self.group} give different tokens")
        self.first_ms = statistics.median(self.timed(0, 1)[1] for _ in range(10))
        self.whole_ms = statistics.median(self.timed(prompt, vllm.vllm_engine.MOST_NEW)[1] for prompt in range(len(self.tokens)))
        broker.amemctl("lease", self.group, "--yield")  # which fails if the first turn is over

    def timed(self, prompt, new):
        """(Unix time at which it was sent, ms until the answer)."""
        sent, began = time.time(), time.monotonic()
        [tokens] = self.server.tokens([prompt], new, timeout=170)
        ms = (time.monotonic() - began) * 1000
        if tokens != self.tokens[prompt][:len(tokens)] or not tokens:
            raise Failure(f"{self.group}: other tokens for prompt {prompt}: {tokens}, and not {self.tokens[prompt]}")
        return sent, ms

    def requests(self, end, seed, every_s):
        """One at a time, at random, until then: the first token alone, then all of them. [(sent, ms, tokens)]"""
        chance, done = random.Random(seed), []
        while True:
            time.sleep(chance.expovariate(1 / every_s))
            if time.monotonic() > end:
                return done
            prompt = chance.randrange(len(self.tokens))
            for new in (1, vllm.vllm_engine.MOST_NEW):
                done.append((*self.timed(prompt, new), new))


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def resumed_for(switches, group, sent_ms, answered_ms):
    """The switch that brought the group in while a request waited: (when it began, how long it took); None: none."""
    return next(((began, took) for began, took, groups in switches if group in groups and sent_ms <= began <= answered_ms), None)


@case(560)
def turns_vllm(bench):
    """Three unmodified vLLM servers start and take turns by demand for three minutes of random requests. No two fit on the GPU. The tokens stay the same."""
    vllm.needs_vllm()
    if bench.one_pool:
        seconds, every_s, pool_mib = SIMULATED_REQUESTS_S, SIMULATED_REQUEST_EVERY_S, 256
    else:
        seconds, every_s, pool_mib = QUICK_REQUESTS_S if bench.quick else REQUESTS_S, REQUEST_EVERY_S, 2 * vllm.pool_of(1) << 10
    with stage_broker(bench, pool_mib, min(512, min(bench.gpus.total_mib()) // 128), policy="demand", grace="100ms", idle="1s",
                      max_hold=f"{ENGINE_START_S}s") as broker:
        engines = all_at_once(broker, [lambda number=number: Engine(bench, broker, number) for number in (1, 2, 3)])
        need = max(broker.group(engine.group)["allocated_bytes"] >> 20 for engine in engines)
        with no_two_fit(broker, bench, len(engines), need // 2):
            before = stage_of(broker)["switches"]
            answers = random_requests(broker, engines, time.monotonic() + seconds, every_s)
            switches, count = list(switches_of(broker)), stage_of(broker)["switches"] - before
        for engine in engines:
            os.killpg(engine.server.program.process.pid, signal.SIGKILL)
    return judge_requests(bench, engines, answers, switches, count, seconds)


def all_at_once(broker, tasks):
    """What each gives."""
    with concurrent.futures.ThreadPoolExecutor(len(tasks)) as threads:
        running = [threads.submit(task) for task in tasks]
        while not all(each.done() for each in running):
            stage_of(broker)  # which checks that no two run
            time.sleep(0.1)
        return [each.result() for each in running]


def random_requests(broker, engines, end, every_s):
    """To all engines at the same time, until then. The answers of each."""
    return all_at_once(broker, [lambda seed=seed, engine=engine: engine.requests(end, seed, every_s) for seed, engine in enumerate(engines)])


def judge_requests(bench, engines, answers, switches, count, seconds):
    rows = [("ms", "requests", "alone: first token", "all", "turns: median", "p99", "found paused", "wait for the switch: median", "max",
             "beyond switch and first token: median")]
    beyond, waits, paused = [], [], 0
    for engine, done in zip(engines, answers):
        mine, mine_waits = [], []
        for sent, ms, new in done:
            found = resumed_for(switches, engine.group, sent * 1000, sent * 1000 + ms)
            if found is None:
                continue
            paused += 1
            mine_waits.append(found[0] - sent * 1000)
            if new == 1:
                mine.append(sent * 1000 + ms - found[0] - found[1] - engine.first_ms)
        beyond += mine
        waits += mine_waits
        times = [ms for _, ms, _ in done] or [0]
        rows.append((engine.group, len(done), f"{engine.first_ms:.0f}", f"{engine.whole_ms:.0f}", f"{statistics.median(times):.0f}",
                     f"{percentile(times, 0.99):.0f}", len(mine_waits), *(f"{each:.0f}" for each in (
                         statistics.median(mine_waits or [0]), max(mine_waits or [0]), statistics.median(mine or [0])))))
    print("\n".join("  " + " | ".join(map(str, row)) for row in rows), flush=True)
    if not beyond:
        raise Failure(f"no first token of a paused engine in {seconds} s: nothing is shown")
    late = statistics.median(beyond)
    if bench.given_time_limits and late > FIRST_TOKEN_MS:
        raise Failure(f"from the moment of the switch, first tokens take {late:.0f} ms more than the switch and an engine's own time, {FIRST_TOKEN_MS} are the limit")
    times = [ms for done in answers for _, ms, _ in done]
    took = [each for _, each, _ in switches]
    return (f"{len(times)} requests in {seconds} s, all answered, all tokens equal; {count} switches, median {statistics.median(took):.0f} ms; {paused} "
            f"requests found their engine paused and waited {statistics.median(waits):.0f} ms (median) for the switch to begin; first tokens "
            f"{late:+.0f} ms beside switch and own time; end to end median {statistics.median(times):.0f}, p99 {percentile(times, 0.99):.0f} ms")
