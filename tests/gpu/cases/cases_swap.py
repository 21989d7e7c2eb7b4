"""The cases about swaps of jobs that fill their GPUs."""

import concurrent.futures
import json
import pathlib
import random
import signal
import statistics
import time

from cases_restart import at_rest
from cases_turns import START_S, STEP_S, Rank, fills, wait_until
from harness import Failure, Skip
from registry import case

DENSE, ZEROS = 3 / 125, 6 / 125  # of each job
KEPT_FREE_MIB = 6 * 1024  # for contexts, and what the driver needs
ROUNDS = 5
SWAPS, KILLS = 200, 50
SLOWER = 1.005  # a block in parts beside the same as one allocation


def whole_gpu(bench):
    """MiB of a job that fills a GPU, and of its blocks."""
    block_mib = 1024 if min(bench.gpus.total_mib()) > 32 * 1024 else 16
    return (min(bench.gpus.total_mib()) - KEPT_FREE_MIB * block_mib // 1024) // block_mib * block_mib, block_mib


def job(bench, gpu, name, mib, block_mib, **env):
    dense, zeros = (max(block_mib, int(mib * part) // block_mib * block_mib) for part in (DENSE, ZEROS))
    return Rank(bench, "full", name, dense, "--zeros-mib", zeros, "--drop-mib", (mib - dense - zeros) // block_mib * block_mib,
                "--block-mib", block_mib, scope="heap", env={"CUDA_VISIBLE_DEVICES": str(gpu), "AMEM_REQUIRED": "1", **env})


def pair_on(bench, broker, gpu, mib, block_mib, **env):
    """Two jobs; the first is paused, and the other runs."""
    pair = []
    for name in (f"one{gpu}", f"two{gpu}"):
        if pair:
            broker.amemctl("pause", pair[0].group)
        pair.append(job(bench, gpu, name, mib, block_mib, **env))
        wait_until(pair[-1].has_started, f"{name} has its memory", START_S)
    return pair


def step(pair):
    """What runs verifies its bytes, and changes some."""
    pair[1].ask()
    wait_until(lambda: pair[1].steps() >= pair[1].asked, f"{pair[1].group} has its bytes", STEP_S)


def end(broker, pairs):
    for pair in pairs:
        for each in pair:
            each.stop_file.touch()
        pair[1].program.wait(STEP_S)
        broker.amemctl("resume", pair[0].group)
        pair[0].program.wait(STEP_S).report()


def swap_ms(broker, out, back):
    report = [json.loads(line) for line in broker.amemctl("swap", out, back, "--json").splitlines()]
    return max(each.get("swap_us", 0) for each in report) / 1000


def hand_on(broker, config, on):
    """amemd reads its settings anew."""
    def reloads():
        return broker.log.read_text(errors="replace").count("settings reloaded")
    before = reloads()
    config.write_text(f"[swap]\nhand_on = {str(on).lower()}\n", encoding="ascii")
    broker.daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: reloads() > before, "the settings are read", STEP_S)


@case(560)
def hand_on_full(bench):
    """Twins that fill their GPU swap, on one GPU and on all at once; with memory handed on, and without, in turns."""
    mib, block_mib = whole_gpu(bench)
    gpus = range(bench.gpus.count())
    config = pathlib.Path(bench.folder) / "swap.toml"
    config.write_text("", encoding="ascii")
    broker = bench.broker_with(bench.pool, "--config", config)
    pairs = [pair_on(bench, broker, gpu, mib, block_mib) for gpu in gpus]

    def swap(pair):
        took = swap_ms(broker, pair[1].group, pair[0].group)
        pair.reverse()
        return took

    figures = {}
    with concurrent.futures.ThreadPoolExecutor(len(pairs)) as at_once:
        for number in range(ROUNDS + 1):
            for on in (True, False):
                hand_on(broker, config, on)
                for who, chosen in (("one GPU", pairs[:1]), *([("all GPUs", pairs)] if len(pairs) > 1 else [])):
                    took = list(at_once.map(swap, chosen))
                    list(at_once.map(step, chosen))
                    if number > 0:  # the first is a warm-up
                        figures.setdefault((who, on), []).append(max(took))
    end(broker, pairs)
    return f"{mib} MiB in blocks of {block_mib}: " + "; ".join(
        f"{who}, {'handed on' if on else 'made anew'}: median {statistics.median(times):.0f} ms of {[round(t) for t in times]}"
        for (who, on), times in sorted(figures.items(), key=str))


@case(560)
def hand_on_killed(bench):
    """Twins swap again and again with checksums of all that is saved, and then while amemd is killed at any moment of a swap."""
    large = min(bench.gpus.total_mib()) > 32 * 1024
    block_mib = 256 if large else 8
    mib = 16 * 1024 if large else 256
    swaps, kills = (SWAPS, KILLS) if large and not bench.quick else (8, 5)
    broker = bench.broker_with(bench.pool)
    pair = pair_on(bench, broker, 0, mib, block_mib, AMEM_VERIFY="1")
    with fills(bench, 2 * block_mib):
        def swap():
            swap_ms(broker, pair[1].group, pair[0].group)
            pair.reverse()
            step(pair)

        for _ in range(swaps):
            swap()
        longest = 0.3 if large else 0.05
        for _ in range(kills):
            for _ in range(2):
                swap()  # what an amemd has not made itself it does not hand on
            begun = broker.start("swap", pair[1].group, pair[0].group)
            time.sleep(random.uniform(0, longest))
            broker.kill_and_start_again()
            begun.wait(STEP_S)
            states = at_rest(broker, pair, 1)
            if states[pair[0].group] == "RUNNING":
                pair.reverse()
            elif states[pair[1].group] != "RUNNING":
                broker.amemctl("resume", pair[1].group)
            step(pair)
        moved = [each["memory"] for each in json.loads(broker.amemctl("history", "--json"))["operations"]]
    end(broker, [pair])
    return f"{mib} MiB in blocks of {block_mib}: {swaps} swaps, {kills} of which amemd was killed; the last amemd's operations: {moved[-4:]}"


def cycles(broker, one, steps):
    """{verb: ms of each pause or resume}, and how many bytes the driver made. `steps`: it verifies and changes bytes between two cycles."""
    times, made = {"pause": [], "resume": []}, 0
    for number in range(ROUNDS + 1):
        for verb, taken in times.items():
            done = json.loads(broker.amemctl(verb, one.group, "--json").splitlines()[-1])
            made += int(done.get("memory", {}).get("made_bytes", 0))
            if number > 0:
                taken.append(int(done["elapsed_us"]) / 1000)
        if steps:
            step((None, one))
    return times, made


def kept(bench, mib, block_mib, **env):
    """A job that keeps nearly all its bytes."""
    return Rank(bench, "full", "one", mib // block_mib * block_mib, "--zeros-mib", block_mib, "--drop-mib", block_mib, "--block-mib", block_mib,
                scope="heap", env={"CUDA_VISIBLE_DEVICES": "0", "AMEM_REQUIRED": "1", **env})


def elastic_rounds(bench, broker, one, prepares, reserve_mib):
    """[the last message of each pause], [ms from its command to its end], and how much is pinned when idle."""
    def pinned_mib():
        return int(broker.status()["pool"]["ready_bytes"]) >> 20
    lasts, walls = [], []
    for _ in range(bench.few):
        if reserve_mib:
            wait_until(lambda: pinned_mib() <= reserve_mib, "what nothing needs is given back", START_S)
        if prepares:
            broker.amemctl("prepare", one.group)
        began = time.monotonic()
        lasts.append(json.loads(broker.amemctl("pause", one.group, "--json").splitlines()[-1]))
        walls.append((time.monotonic() - began) * 1000)
        broker.amemctl("resume", one.group)
        step((None, one))
    return lasts, walls


@case(400)
def elastic_pool(bench):
    """A pool with a small reserve: pinned when idle, a pause of 8 GiB at once, and after `prepare` one as fast as with all of it pinned."""
    large = min(bench.gpus.total_mib()) > 32 * 1024
    mib, block_mib, reserve_mib = (8 * 1024, 256, 64) if large else (128, 4, 64)
    texts, medians = [], {}
    for what, reserve, prepares in (("all pinned", "all", False), ("at once", f"{reserve_mib}MiB", False), ("prepared", f"{reserve_mib}MiB", True)):
        # What is given back is compared with nothing, so neither is the rest.
        broker = bench.broker_with(f"{2 * mib}MiB", "--pool-reserve", reserve, "--pool-idle", "1s", "--without", "retain")
        idle_mib = int(broker.status()["pool"]["ready_bytes"]) >> 20
        one = kept(bench, mib, block_mib)
        wait_until(one.has_started, "it has its memory", START_S)
        lasts, walls = elastic_rounds(bench, broker, one, prepares, 0 if reserve == "all" else reserve_mib)
        one.finish()
        pinned = [int(each.get("pool_pinned_bytes", 0)) >> 20 for each in lasts]
        if (reserve != "all" and idle_mib > reserve_mib) or (min(pinned) > 0) != (what == "at once"):
            raise Failure(f"{what}: {idle_mib} MiB pinned when idle, {pinned} MiB pinned by the pauses")
        medians[what] = statistics.median(int(each["elapsed_us"]) / 1000 for each in lasts)
        texts.append(f"{what}: {idle_mib} MiB pinned when idle, pause {medians[what]:.0f} ms after {pinned[0]} MiB in "
                     f"{[round(int(each.get('pool_pinned_us', 0)) / 1000) for each in lasts]} ms, {[round(each) for each in walls]} ms in all")
        if what == "at once" and not any("of host memory first, in" in remark for remark in lasts[-1]["remarks"]):
            raise Failure(f"the text does not say how long pinning took: {lasts[-1]['remarks']}")
    if bench.time_limits and medians["prepared"] > 1.1 * medians["all pinned"]:
        raise Failure(f"a pause after `prepare` is slower: {medians}")
    return "; ".join(texts)


@case(400)
def hand_on_idle(bench):
    """Jobs that drop or keep their bytes are paused and resumed, with memory that waits for the resume, and without."""
    mib, block_mib = whole_gpu(bench)
    large = mib > 100 * 1024
    kept_mib, small_mib = (60 * 1024, 2048) if large else (mib // 4, 64)
    blocks = (256, 20) if large else (4, 2)
    jobs = {f"{mib} MiB in blocks of {block_mib}, most of it dropped": (lambda: job(bench, 0, "one", mib, block_mib), True),
            f"{small_mib} MiB kept, with checksums": (lambda: kept(bench, small_mib, blocks[0], AMEM_VERIFY="1"), True),
            # To verify all these bytes takes minutes.
            **{f"{kept_mib} MiB kept in blocks of {each}": (lambda each=each: kept(bench, kept_mib, each), False) for each in blocks}}
    figures = []
    for idle in ("5s", "0s"):
        broker = bench.broker_with(bench.pool, "--spare-idle", idle)
        for what, (start, verifies) in jobs.items():
            one = start()
            wait_until(one.has_started, "it has its memory", START_S)
            times, made = cycles(broker, one, verifies)
            if (made == 0) != (idle != "0s"):
                raise Failure(f"spare.idle = {idle}: the driver made {made} bytes")
            if verifies:
                one.finish()
            else:
                one.program.process.kill()
                one.program.process.wait()
            figures += [f"{what}, spare.idle {idle}: {verb} {statistics.median(taken):.0f} ms of {[round(t) for t in taken]}"
                        for verb, taken in times.items()]
    return "; ".join(figures)


@case(200)
def hand_on_start(bench):
    """A process starts on a GPU whose free memory waits for a resume: with amem it gets its context, without it does not."""
    large = min(bench.gpus.total_mib()) > 32 * 1024
    block_mib, mib, left_mib = (256, 8 * 1024, 64) if large else (4, 128, 4)
    broker = bench.broker_with(bench.pool, "--spare-idle", "120s")
    one = job(bench, 0, "one", mib, block_mib)
    wait_until(one.has_started, "it has its memory", START_S)
    broker.amemctl("pause", one.group)

    def spare_bytes():
        return sum(int(device["spare_bytes"]) for device in json.loads(broker.amemctl("status", "--json"))["devices"])

    with fills(bench, left_mib):
        bare = Rank(bench, "fill", "bare", 1, shim=False, env={"CUDA_VISIBLE_DEVICES": "0"})
        if bare.program.wait_any(START_S).code == 0:
            raise Failure("a program without amem has a context, so nothing is shown")
        waited = spare_bytes()
        began = time.monotonic()
        two = job(bench, 0, "two", mib // 4, block_mib)
        wait_until(two.has_started, "it has a context and its memory", START_S)
        took_s = time.monotonic() - began
        if not waited or spare_bytes():
            raise Failure(f"{waited} bytes waited before it started, and {spare_bytes()} after")
        two.finish()
        broker.amemctl("resume", one.group)
        step((None, one))
    one.finish()
    return f"{waited >> 20} MiB waited, {left_mib} were free; it started in {took_s:.1f} s"


@case(300)
def large_block(bench):
    """One large block of cuMemAlloc in parts beside the same as one allocation: to allocate, to write, to copy and to free."""
    mib = min(60 * 1024, min(bench.gpus.total_mib()) // 2)
    taken = {}
    for _ in range(1 if bench.quick else 3):
        for hand_on, form in (("true", "parts"), ("false", "one")):
            bench.broker_with(bench.pool, "--swap-hand-on", hand_on)
            program = bench.python_script("large_block.py", "--mib", mib, torch=False, scope="heap", group="large", env={"AMEM_REQUIRED": "1"})
            for what, ms in program.wait(STEP_S).report().items():
                taken.setdefault((what, form), []).extend(ms)
    medians = {key: statistics.median(ms) for key, ms in taken.items()}
    for what in ("write", "copy"):
        if bench.time_limits and medians[what, "parts"] > SLOWER * medians[what, "one"]:
            raise Failure(f"to {what} {mib} MiB takes {medians[what, 'parts']:.2f} ms in parts and {medians[what, 'one']:.2f} as one")
    return f"{mib} MiB: " + ", ".join(f"{what} {medians[what, 'parts']:.2f} ms in parts, {medians[what, 'one']:.2f} as one"
                                      for what in ("allocate", "write", "copy", "free"))


@case(200)
def hand_on_beside(bench):
    """Twins that fill a GPU swap beside a program without amem that allocates and frees 20 GiB on another GPU without end."""
    if bench.gpus.count() < 2:
        raise Skip("needs 2 GPUs")
    mib, block_mib = whole_gpu(bench)
    broker = bench.broker_with(bench.pool)
    pair = pair_on(bench, broker, 0, mib, block_mib)
    other = Rank(bench, "churn", "churn", 20 * block_mib, shim=False, env={"CUDA_VISIBLE_DEVICES": "1"})
    wait_until(lambda: other.steps() > 2, "the other program allocates and frees", START_S)
    times = []
    for _ in range(ROUNDS + 1):
        times.append(swap_ms(broker, pair[1].group, pair[0].group))
        pair.reverse()
        step(pair)
    rounds = other.finish()["rounds"]
    end(broker, [pair])
    return (f"{mib} MiB in blocks of {block_mib}: median {statistics.median(times[1:]):.0f} ms of {[round(t) for t in times[1:]]}, beside "
            f"{rounds} rounds of the other program")
