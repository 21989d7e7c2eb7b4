"""--trace of a pause, a resume, a swap and the history: Chrome's trace events, and the picture that is drawn of them."""
import json
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as xml

DRAW = str(pathlib.Path(__file__).parents[3] / "deploy" / "draw_trace.py")


def events(path, kind="X"):
    with open(path, encoding="utf-8") as file:
        return [each for each in json.load(file)["traceEvents"] if each["ph"] == kind]


def lanes(path):
    """Names of lanes by process and thread."""
    return {(each["pid"], each["tid"]): each["args"]["name"] for each in events(path, "M") if each["name"] == "thread_name"}


def test_a_trace_of_a_swap(node, tmp_path):
    """Slices lie in those that they are part of, and say what the last message of the operation said."""
    node.job("train", allocations=6, size="2MiB")
    node.ctl("pause", "train")
    node.job("rollout", allocations=6, size="2MiB")
    path = str(tmp_path / "swap.json")
    said = node.ctl("swap", "rollout", "train", "--trace", path)
    done = {each["group"]: each for each in said.lines if each["done"]}
    slices, names = events(path), lanes(path)
    by_lane = {}
    for each in slices:
        by_lane.setdefault(names[each["pid"], each["tid"]], []).append(each)
    for lane in ("group train", "group rollout", "rank 0", "rank 1", "rank 0: load", "rank 0: cuMemMap", "rank 1: cuMemUnmap"):
        assert lane in by_lane, sorted(by_lane)
    for group, operation in (("train", "resume"), ("rollout", "pause")):
        whole, *phases = by_lane["group " + group]
        assert whole["name"] == operation and whole["dur"] == done[group]["elapsed_us"]
        ends = whole["ts"]
        for phase in phases:
            assert whole["ts"] <= ends <= phase["ts"] and phase["ts"] + phase["dur"] <= whole["ts"] + whole["dur"]
            ends = phase["ts"] + phase["dur"]
        assert abs(sum(each["dur"] for each in phases) - whole["dur"]) <= 2 * len(phases), "nothing between the phases"
    for each in slices:  # slices of one lane are apart, or one is in the other
        for other in slices:
            if (each["pid"], each["tid"]) == (other["pid"], other["tid"]) and each["ts"] < other["ts"]:
                assert other["ts"] >= each["ts"] + each["dur"] or other["ts"] + other["dur"] <= each["ts"] + each["dur"]
    drawn = subprocess.run([sys.executable, "-B", DRAW, path], capture_output=True, text=True, timeout=60, check=True).stdout
    written = {each.text for each in xml.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")}
    assert set(names.values()) < written, "every lane is drawn"
    copies = [each for each in slices if each["name"] == "copy"]
    assert len(copies) == 4 and all(each["args"]["bytes"] > 0 for each in copies), "each rank saves or loads"
    work = {each["name"] for each in by_lane["rank 0"]}
    assert {"quiesce", "save", "release", "map", "open"} <= work


def test_a_trace_of_the_past(node, tmp_path):
    node.job("train")
    for _ in range(2):
        node.ctl("pause", "train")
        node.ctl("resume", "train")
    path = str(tmp_path / "past.json")
    node.ctl("history", "train", "--trace", path)
    assert [each["name"] for each in events(path) if each["name"] in ("pause", "resume")] == ["pause", "resume"] * 2


def test_a_trace_of_what_failed(node, tmp_path):
    job = node.job("train")
    job.ranks[0].faults("cuMemcpyDtoHAsync:1")
    path = str(tmp_path / "failed.json")
    assert node.ctl.try_("pause", "train", "--trace", path).code != 0
    [whole] = [each for each in events(path) if each["name"] == "pause"]
    assert "saving" in whole["args"]["error"]


def test_a_file_that_cannot_be_written_stops_it_before_it_begins(node, tmp_path):
    node.job("train")
    said = node.ctl.try_("pause", "train", "--trace", str(tmp_path / "nowhere" / "x.json"))
    assert said.code != 0 and "nowhere/x.json" in said.error and "No such file" in said.error
    assert node.ctl.state("train") == "running"
    said = node.ctl.try_("pause", "train", "--trace", "/dev/full")
    assert said.code != 0 and "/dev/full" in said.error
    assert node.ctl.state("train") == "paused", "it is the trace that is missing, and that is said"
    said = node.ctl.try_("pause", "train", "--trace", os.devnull)
    assert said.code == 5, "refused, with its own error"
