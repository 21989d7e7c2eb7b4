"""Figures of the GPU tests: what the broker's answers and log, and the programs' reports, say. Pure functions."""

import json
import re
import statistics
from typing import NamedTuple

GB = 1e9


# ---- the broker's answers ---------------------------------------------------------------------------------------


def group_of(status, name):
    """A group of `amemctl status --json`, or None."""
    for group in status["groups"]:
        if group["name"] == name:
            return group
    return None


def resident_on(group, uuid):
    for device in group["devices"]:
        if device["uuid"] == uuid:
            return device["resident_bytes"]
    return 0


def tag_of(group, tag):
    """The usage of a tag; zeros when the group has no memory of it."""
    for usage in group["tags"]:
        if usage["tag"] == tag:
            return usage
    return {"tag": tag, "allocation_count": 0, "allocated_bytes": 0, "resident_bytes": 0, "saved_bytes": 0,
            "pinned_bytes": 0, "discard_bytes": 0, "dropped_bytes": 0}


# ---- the broker's log -------------------------------------------------------------------------------------------

_TOOK = re.compile(r"group '(?P<group>[^']+)': (?P<op>pause|resume)(?: of (?P<what>.+?))? took (?P<ms>[0-9.]+) ms "
                   r"\((?P<phases>[^)]*)\)")


def operations(log, group):
    """Pauses and resumes of a group that ended well, oldest first: {"op", "what", "ms", "phases": {name: ms}}."""
    found = []
    for match in _TOOK.finditer(log):
        if match["group"] != group:
            continue
        phases = {}
        for part in filter(None, match["phases"].split(", ")):
            name, _, ms = part.rpartition(" ")
            phases[name] = float(ms)
        found.append({"op": match["op"], "what": match["what"] or "", "ms": float(match["ms"]), "phases": phases})
    return found


def rate(size, ms):
    """GB/s."""
    return size / GB / (ms / 1000) if ms > 0 else 0.0


def copy_rates(done, saved_bytes, gpus):
    """GB/s per GPU of each pause's save and each resume's load, which begins with create and ends with map+load.
    `saved_bytes`: of all GPUs, one per pause; of a resume those of the pause before it."""
    rates = {"save": [], "load": []}
    pauses = 0
    for operation in done:
        what, phases = ("save", ["save"]) if operation["op"] == "pause" else ("load", ["create", "map+load"])
        pauses += operation["op"] == "pause"
        if phases[-1] not in operation["phases"] or not 1 <= pauses <= len(saved_bytes):
            continue
        rates[what].append(rate(saved_bytes[pauses - 1] / gpus, sum(operation["phases"].get(p, 0) for p in phases)))
    return rates


def too_slow(rates, limits):
    """Why the rates are below their phases' limits, else "". The first counts by itself, of the later ones the median."""
    for phase, all_of_them in rates.items():
        limit = limits[phase]
        if not all_of_them:
            return f"no {phase} was found in the broker's log"
        if all_of_them[0] < limit:
            return f"{phase}: {all_of_them[0]:.1f} GB/s per GPU the first time, {limit} is the limit"
        if len(all_of_them) > 1 and statistics.median(all_of_them[1:]) < limit:
            return f"{phase}: {statistics.median(all_of_them[1:]):.1f} GB/s per GPU later, {limit} is the limit"
    return ""


def show_rates(rates):
    return ", ".join(f"{phase} {values[0]:.1f} GB/s first, {statistics.median(values):.1f} median, {min(values):.1f} least"
                     for phase, values in rates.items() if values)


# ---- the programs' reports --------------------------------------------------------------------------------------


def describe(times):
    return {"n": len(times), "first": round(times[0], 2), "median": round(statistics.median(times), 2),
            "min": round(min(times), 2), "max": round(max(times), 2)}


def fold(total, parts):
    """A running checksum over whole numbers of any sign; order counts."""
    for part in parts:
        total = (total * 1_000_003 + part) % ((1 << 61) - 1)
    return total


def distance(one, other):
    """The largest difference between two curves; infinite when they have not the same length."""
    if len(one) != len(other):
        return float("inf")
    # Not a number differs from everything.
    differences = [abs(a - b) if a == a and b == b else float("inf") for a, b in zip(one, other)]
    return max(differences, default=0.0)


def within(curve, reference, again=None):
    """Whether a curve is that of an undisturbed run, and how it compares: equal bit for bit, or no further away than a
    second undisturbed run. `again`: that run, None when there was none."""
    away = distance(curve, reference)
    if away == 0:
        return True, "equal bit for bit"
    if again is None:
        return False, f"{away:g} away, and not compared with a second run"
    spread = distance(again, reference)
    return away <= spread < float("inf"), f"{away:g} away from the run without pauses, two of which differ by {spread:g}"


# ---- amem_call_bench --------------------------------------------------------------------------------------------


class CallLimits(NamedTuple):
    """What brokered memory may take, in microseconds: `times` what the driver's own does and `more_us`; an allocation
    `allocation_times` what its driver calls take between two bare processes, nine times in ten, and `allocation_more_us`:
    a large one takes one or two milliseconds, as the driver's clock falls, and medians are either."""

    times: float
    more_us: float
    allocation_times: float
    allocation_more_us: float


def calls(texts):
    """What amem_call_bench wrote in several runs of the same kind: {(case, work): figure}. Medians and shares are the
    medians of those of the runs."""
    found = {}
    for text in texts:
        for line in text.splitlines():
            if line.startswith("{"):
                figure = json.loads(line)
                found.setdefault((figure["case"], figure["work"]), []).append(figure)
    together = {"median_us": statistics.median, "min_us": min, "p90_us": statistics.median, "max_us": max,
                "there": statistics.median}
    return {key: {name: of_all(run[name] for run in runs) for name, of_all in together.items()}
            for key, runs in found.items()}


def is_allocation(key):
    case, work = key
    return case.startswith("memory, ") and work == "allocate"


def call_limit(key, driver, bare, limits):
    """Microseconds; None for a free, which has none. `driver`, `bare`: the figures of the driver's own memory, and of an
    allocation's driver calls alone."""
    if is_allocation(key):
        return limits.allocation_times * bare[key]["p90_us"] + limits.allocation_more_us
    if key[0].startswith("memory, "):
        return None
    return limits.times * driver[key]["median_us"] + limits.more_us


def slow_calls(driver, bare, amem, limits):
    """A line for each call that takes longer on brokered memory than it may."""
    found = []
    for key, figure in amem.items():
        limit = call_limit(key, driver, bare, limits)
        if limit is not None and figure["median_us"] > limit:
            found.append(f"{': '.join(key)}: {figure['median_us']:.1f} us, {limit:.1f} is the limit")
    return found


def otherwise_there(driver, amem, most):
    """A line for each case whose result is there when the call returns in another share of the samples, by more than
    `most`. Both lines of a case have the same share."""
    shares = {case: (amem[case, work]["there"], figure["there"]) for (case, work), figure in driver.items()}
    return [f"{case}: the result was there at the return in {here:.0%} of the samples, {without:.0%} without amem"
            for case, (here, without) in shares.items() if abs(here - without) > most]


# ---- first_use.py -----------------------------------------------------------------------------------------------


def got_through(report):
    """Processes in a second that did all that they were to."""
    return (report["finished"] + report["crashed"]) / report["elapsed_s"]


def first_uses(alone, amem, least):
    """Why the run in scope heap is no pass beside that without amem, else "", and a line on both. `least`: how many times as
    many processes must get through in the same time."""
    share = got_through(amem) / got_through(alone) if got_through(alone) > 0 else 0.0
    shown = ", ".join(f"{who} {report['started']} processes in {report['elapsed_s']:.0f} s ({report['finished']} finished, "
                      f"{report['crashed']} crashed on purpose, {report['killed']} killed; {report['uses']} first uses, "
                      f"{report['malloc_ms']:.2f} ms for a cudaMalloc)"
                      for who, report in (("without amem", alone), ("in scope heap", amem)))
    shown = f"in scope heap {share:.2f} x as many got through: {shown}"
    for who, report in (("without amem", alone), ("in scope heap", amem)):
        if report["wrong"] or report["texts"]:
            return f"{who}: {'; '.join(report['texts'])}", shown
    return (f"{least} x is the least" if share < least else ""), shown


# ---- the profiler and NCCL's log --------------------------------------------------------------------------------


def kind_of(name):
    """What an event of the profiler is: "symmetric" (a symmetric kernel of NCCL's), "nccl" (another of its kernels),
    "copy" (on the GPU), "batch" (a call that copies many pieces, which the GPU's own events may not show) or "other"."""
    if name.startswith("ncclSymk"):
        return "symmetric"
    if name.startswith("ncclDevKernel") or name.startswith("ncclKernel"):
        return "nccl"
    if name.startswith("Memcpy"):
        return "copy"
    if "MemcpyBatch" in name:
        return "batch"
    return "other"


def count_kinds(names):
    counts = {"symmetric": 0, "nccl": 0, "copy": 0, "batch": 0}
    for name in names:
        kind = kind_of(name)
        if kind in counts:
            counts[kind] += 1
    return counts


def registrations(log):
    """How often NCCL's log (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=REG) says that a peer mapped a registered buffer, and that
    it could not."""
    return {"peers": log.count(" - IPC register buffer "), "failed": log.count(" failed to IPC register ")}


# ---- stops longer than the time limit of collectives ------------------------------------------------------------

OWN_LIMITS = ("the NCCL watchdog", "a blocking wait")  # PyTorch's, as torch_watchdog.py names them


def watchdog(report, must_survive=False):
    """What became of a job in a report of torch_watchdog.py, as text. ValueError: it did not survive where it must, or was
    ended by anything but PyTorch's own time limit."""
    how = "pauses" if report["how"] == "pause" else "stops by a signal"
    if report["extend"]:
        how += ", with extend_timeouts()"
    parts = []
    for kind in sorted({each["kind"] for each in report["outcomes"]}):
        of_kind = [each for each in report["outcomes"] if each["kind"] == kind]
        ended = [each for each in of_kind if not each["survived"]]
        for each in ended:
            if must_survive or each["by"] not in OWN_LIMITS:
                raise ValueError(f"{how}: a job with {kind} collectives was ended {each['when']} by {each['by']}: {each['text']}")
        parts.append(f"{kind} {len(of_kind) - len(ended)} of {len(of_kind)} survived"
                     + (f", ended by {ended[0]['by']}" if ended else ""))
    return f"{report['stop_s']:.0f} s {how}, limit {report['timeout_s']:.0f} s: {', '.join(parts)} (PyTorch {report['torch']})"


def watchdog_ended_none(reports):
    """PyTorch's watchdog has ended no job of these reports. Where it should have, survival proves nothing."""
    return all(each.get("by") != OWN_LIMITS[0] for report in reports for each in report["outcomes"])
