"""crowd.py decides what counts as a failure of many processes, so it is tested itself. Run by pytest, without a GPU."""

import os
import pathlib
import signal
import sys
import threading

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "programs"))

import crowd  # noqa: E402


def finish(_seed):
    return {"outcome": "finished", "uses": 1}


def wait_for_ever(_seed):
    threading.Event().wait()


def run(work, seconds=0.2, workers=3, killed_share=0.0, hung_s=60):
    processes = crowd.Crowd(work, workers, 7, killed_share, hung_s)
    processes.run(seconds)
    assert not processes.alive
    return processes


def test_all_that_are_started_are_seen_to_their_ends():
    processes = run(finish)
    assert processes.started > 0
    assert processes.outcomes() == {"finished": processes.started, "crashed": 0, "wrong": 0}
    assert processes.failures() == []
    assert len({report["seed"] for report in processes.reports}) == processes.started
    assert processes.elapsed_s >= 0.2


def test_a_wrong_result_is_a_failure():
    processes = run(lambda _: {"outcome": "wrong", "text": "7, 8 is right"})
    assert processes.outcomes() == {"finished": 0, "crashed": 0, "wrong": processes.started}
    assert len(processes.failures()) == processes.started > 0
    assert processes.failures()[0].endswith(": 7, 8 is right")


def test_a_crash_on_purpose_is_no_failure():
    processes = run(lambda _: {"outcome": "crashed"})
    assert processes.outcomes() == {"finished": 0, "crashed": processes.started, "wrong": 0}
    assert processes.failures() == []


@pytest.mark.parametrize(("death", "told"), [
    (lambda _: os.kill(os.getpid(), signal.SIGKILL), "ended with -9"), (lambda _: os._exit(3), "ended with 3"),
    (lambda _: {}["nothing"], "ended with 1")])
def test_a_process_that_dies_is_a_failure(death, told):
    processes = run(death, workers=1)
    assert len(processes.deaths) == processes.started and told in processes.deaths[0]


def test_a_process_that_hangs_is_a_failure():
    processes = run(wait_for_ever, workers=2, hung_s=0.3)
    assert processes.failures() == ["a process had not ended after 0.3 s"] * processes.started


def test_a_process_that_is_killed_on_purpose_is_none(monkeypatch):
    monkeypatch.setattr(crowd, "KILL_AFTER_S", (0.01, 0.05))
    processes = run(wait_for_ever, killed_share=1.0)
    assert processes.killed == processes.started > 0
    assert processes.failures() == []
