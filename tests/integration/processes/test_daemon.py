"""amemd as a program: configuration, logs, signals, its runtime directory; and amemctl's views of it."""
import json
import os
import signal
import subprocess

import pytest

from sim_node import Broker, eventually, patience, wire
from sim_node.child import sanitized
from sim_node.ctl import DEADLINE, UNREACHABLE
from sim_node.turns import states


def check_config(node, *flags, text=None, env=None):
    """amemd --check-config: exit status, what it would run with, what is wrong."""
    argv = [node.build.program("amemd"), "--check-config", *flags]
    if text is not None:
        path = os.path.join(node.dir, "amemd.toml")
        with open(path, "w") as file:
            file.write(text)
        argv += ["--config", path]
    done = subprocess.run(argv, env=node.env({"AMEM_RUNTIME_DIR": None, **(env or {})}), capture_output=True, text=True,
                          timeout=patience(20))
    return done.returncode, done.stdout, done.stderr


# ---- configuration ----

def test_defaults_are_a_configuration(bare_node):
    code, out, err = check_config(bare_node)
    assert (code, err) == (0, "")
    again = check_config(bare_node, text=out)
    assert again == (0, out, "")


def test_later_sources_win(bare_node):
    file = '[pool]\nsize = "3GiB"\nsegment = "512MiB"\nchunk = "4MiB"\n'
    code, out, err = check_config(bare_node, "--pool-size", "5GiB", text=file, env={"AMEM_POOL_SEGMENT": "256MiB"})
    assert code == 0, err
    assert 'size = "5GiB"' in out
    assert 'segment = "256MiB"' in out
    assert 'chunk = "4MiB"' in out


@pytest.mark.parametrize("text, named", [
    ('[pool]\nsize = "12 parsecs"\n', "pool.size"),
    ('[pool]\nsiez = "1GiB"\n', "siez"),
    ('[pol]\nsize = "1GiB"\n', "pol"),
    ('[pool]\nchunk = "3MiB"\n', "pool.chunk"),
    ('[pool]\nchunk = "1KiB"\n', "pool.chunk"),
    ('[pool]\nsegment = "1MiB"\nchunk = "2MiB"\n', "pool."),
    ('[pool]\nsize = \n', "amemd.toml"),
    ('[deadlines]\nquiesce = "soon"\n', "deadlines.quiesce"),
    ('[deadlines]\nsave = "0s"\n', "deadlines.save"),
    ('[log]\nlevel = "chatty"\n', "log.level"),
    ('[log]\nformat = "xml"\n', "log.format"),
    ('[sockets]\nsession_mode = "rw"\n', "sockets.session_mode"),
    ('runtime_dir = "relative/path"\n', "runtime_dir"),
])
def test_a_bad_file_is_refused_naming_the_key(bare_node, text, named):
    code, _, err = check_config(bare_node, text=text)
    assert code == 2
    assert named in err
    assert "amemd.toml" in err or "pool." in err


@pytest.mark.parametrize("flags, env, named", [
    (["--pool-size", "lots"], {}, "pool"),
    ([], {"AMEM_DEADLINES_SAVE": "never"}, "AMEM_DEADLINES_SAVE"),
    (["--no-such-flag"], {}, "--no-such-flag"),
    (["--config", "/no/such/file.toml"], {}, "/no/such/file.toml"),
])
def test_bad_flags_and_variables(bare_node, flags, env, named):
    code, _, err = check_config(bare_node, *flags, env=env)
    assert code == 2
    assert named in err


def test_a_bad_configuration_does_not_serve(bare_node):
    broker = bare_node.adopt(Broker(bare_node, ["--pool-size", "many"]))
    assert broker.wait() == 2
    assert not os.path.exists(bare_node.runtime_dir)


# ---- logs ----

def test_a_full_disk_for_logs_does_not_matter(bare_node):
    node = bare_node
    node.start_broker("--log-file", "/dev/full")
    job = node.job()
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    job.check()
    job.leave()
    assert node.broker.terminate() == 0


def test_a_log_file_that_cannot_be_opened(bare_node):
    broker = bare_node.start_broker("--log-file", "/no/such/dir/amemd.log")
    assert "No such file" in broker.wait_for("/no/such/dir/amemd.log")
    broker.wait_for("serves")  # the log goes on, on standard error


def test_json_lines(bare_node):
    node = bare_node
    node.start_broker("--log-format", "json")
    job = node.job()
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    job.leave()
    assert node.broker.terminate() == 0
    entries = [json.loads(line) for line in node.broker.output().splitlines()]
    assert len(entries) > 5
    assert len({frozenset(entry) for entry in entries}) == 1, "all lines have the same keys"
    assert any("train" in json.dumps(entry) for entry in entries)


def test_hangup_opens_the_log_file_anew(bare_node):
    node = bare_node
    path = os.path.join(node.dir, "amemd.log")
    node.start_broker("--log-file", path)
    os.rename(path, path + ".1")
    node.broker.signal(signal.SIGHUP)
    eventually(lambda: os.path.exists(path) and os.path.getsize(path) > 0, what="a new log file")
    node.ctl.status()


def test_hangup_takes_what_can_change_and_names_what_cannot(bare_node):
    node = bare_node
    path = os.path.join(node.dir, "amemd.toml")

    def write(text):
        with open(path, "w") as file:
            file.write(text)
        node.broker.signal(signal.SIGHUP)

    open(path, "w").close()
    node.start_broker(config=path)
    job = node.job()
    write('guests = "refuse"\n[quotas]\nsessions = 7\n[metrics]\nlisten = "127.0.0.1:9464"\n[pool]\nsize = "1GiB"\n')
    for line in ('guests = "refuse"', 'quotas.sessions = "7"', 'metrics.listen = "127.0.0.1:9464" requires a restart of amemd'):
        node.broker.wait_for(f"reload: {line}")
    node.broker.wait_for("settings reloaded")
    write("guests = 'pin'\nno_such = 1\n")
    node.broker.wait_for("no_such")
    node.broker.wait_for("keeps all its settings")
    write("")
    node.broker.wait_for('reload: guests = "pin"')
    node.broker.wait_for("settings reloaded")
    job.check()
    with open(node.broker.log_path) as log:
        assert "reload: pool.size" not in log.read(), "--pool-size wins over the file"


# ---- life and death ----

@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(bare_node, number):
    node = bare_node
    node.start_broker()
    job = node.job()
    watch = node.ctl.start("watch")
    node.broker.signal(number)
    assert node.broker.wait() == 0
    assert watch.finish().code == 3
    for name in ("session.sock", "control.sock"):
        assert not os.path.exists(os.path.join(node.runtime_dir, name)), name
    job.check()  # what is mapped stays
    job.leave()


def test_a_signal_while_a_pause_is_under_way(bare_node):
    node = bare_node
    node.start_broker()
    job, other = node.job(), node.job("rollout")
    job.ranks[0].ask("capture begin")
    pause = node.ctl.start("pause", "train")
    pause.wait_phase("quiesce")
    waits = node.ctl.start("wait", "idle")
    node.broker.signal(signal.SIGTERM)
    node.broker.wait_for("group 'train' is pausing (quiesce). It waits for that, at most 30s")
    refused = node.ctl.try_("pause", "rollout")
    assert refused.code == UNREACHABLE and "amemd is ending and begins no new operation" in refused.error, refused
    other.send("ncclPause")
    for rank in other.ranks:
        rank.failure()
        rank.wait_for("amemd is ending and begins no new operation")
    assert node.ctl.state("rollout") == "running" and pause.alive() and waits.alive()
    job.ranks[0].ask("capture end")
    assert pause.finish().code == 0
    assert node.broker.wait() == 0
    assert waits.finish().code in (0, UNREACHABLE)  # amemd may be gone before the next look
    node.start_broker(name="amemd-2")
    eventually(lambda: states(node) == ("paused", "running"), what="both groups are back")
    node.ctl("resume", "train")
    job.check()
    other.check()


def pause_that_waits(node, deadline):
    """A job, and a pause of it that waits for the end of a capture. amemd waits for the pause for `deadline` when it is told to end."""
    node.start_broker("--deadlines-end", deadline)
    job = node.job()
    job.ranks[0].ask("capture begin")
    pause = node.ctl.start("pause", "train")
    pause.wait_phase("quiesce")
    return job, pause


def test_a_pause_that_takes_longer_than_an_ending_amemd_waits(bare_node):
    node = bare_node
    job, pause = pause_that_waits(node, "300ms")
    assert node.broker.terminate() == 0
    assert "ends although group 'train' is pausing (quiesce): deadlines.end (300ms) has passed" in node.broker.output()
    assert pause.finish().code == UNREACHABLE
    node.start_broker(name="amemd-2")  # which calls the pause off
    job.ranks[0].ask("capture end")
    job.check()


def test_a_second_signal_ends_it_at_once(bare_node):
    node = bare_node
    job, pause = pause_that_waits(node, "10m")
    node.broker.signal(signal.SIGTERM)
    node.broker.wait_for("It waits for that")
    assert node.ctl.try_("upgrade").code == UNREACHABLE, "nor does another amemd take over"
    assert node.broker.terminate() == 0
    assert "amemd was told to end again and ends at once, although group 'train' is pausing (quiesce)" in node.broker.output()
    assert pause.finish().code == UNREACHABLE


def test_wait_idle_waits_for_an_operation(node):
    job = node.job()
    assert node.ctl("wait", "idle").json == {"idle": True}
    job.ranks[0].ask("capture begin")
    pause = node.ctl.start("pause", "train")
    pause.wait_phase("quiesce")
    waited = node.ctl.try_("wait", "idle", "--timeout", "200ms")
    assert waited.code == DEADLINE and "group train is pausing (quiesce)" in waited.error
    waits = node.ctl.start("wait", "idle")
    job.ranks[0].ask("capture end")
    assert pause.finish().code == 0
    assert waits.finish().json == {"idle": True}


def test_wait_for_a_group_to_come_run_pause_and_go(node):
    waits = node.ctl.start("wait", "group", "train", "--ranks", "2")
    early = node.ctl.try_("wait", "group", "train", "--timeout", "100ms")
    assert early.code == DEADLINE and "there is no such group" in early.error
    job = node.job()
    assert waits.finish().json == {"group": "train", "state": "running", "ranks": 2}
    few = node.ctl.try_("wait", "group", "train", "--ranks", "3", "--timeout", "100ms")
    assert few.code == DEADLINE and "to run with 3 ranks: it is running with 2 ranks" in few.error
    paused = node.ctl.start("wait", "group", "train", "--for", "paused")
    node.ctl("pause", "train")
    assert paused.finish().json["state"] == "paused"
    node.ctl("resume", "train")
    gone = node.ctl.start("wait", "group", "train", "--for", "gone")
    job.leave()
    assert gone.finish().json["state"] == "gone"


def test_wait_for_a_pool_begins_before_the_broker(bare_node):
    node = bare_node
    waits = node.ctl.start("wait", "pool")
    nobody = node.ctl.try_("wait", "pool", "--timeout", "100ms")
    assert nobody.code == UNREACHABLE and "for the pool to be filled: amemd does not run here" in nobody.error
    node.start_broker("--pool-size", "64MiB")
    assert waits.finish().json["ready_bytes"] >= 64 << 20


def test_a_second_broker_on_the_same_directory(node):
    second = node.adopt(Broker(node, name="second"))
    assert second.wait() == 1
    assert node.runtime_dir in second.output()
    job = node.job()
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    job.check()


def test_sockets_of_a_dead_broker_are_replaced(bare_node):
    node = bare_node
    node.start_broker().kill()
    assert os.path.exists(os.path.join(node.runtime_dir, "session.sock"))
    node.start_broker()
    node.job().check()


def test_no_driver(bare_node):
    broker = bare_node.adopt(Broker(bare_node, env={"LD_LIBRARY_PATH": bare_node.dir}))
    assert broker.wait() == 1
    assert "libcuda.so.1" in broker.output()


def test_an_unusable_runtime_directory(bare_node):
    path = os.path.join(bare_node.dir, "file")
    with open(path, "w"):
        pass
    broker = bare_node.adopt(Broker(bare_node, ["--runtime-dir", path]))
    assert broker.wait() == 1
    assert path in broker.output()


def test_it_holds_no_device_memory_and_little_of_its_own(node):
    assert all(device["used_bytes"] == 0 for device in node.ctl.devices())
    assert node.broker.rss_bytes() < 60 << 20
    if not sanitized(node.broker.pid):
        assert node.ctl.status()["rss_bytes"] < (60 << 20) + node.ctl.status()["pool"]["ready_bytes"]


# ---- amemctl ----

def test_views_for_people(node):
    job = node.job()
    for arguments, words in [
        (["status"], ["amemd", "pool", "train", "running", "GPU-"]),
        (["groups"], ["train", "running", "GPU-"]),
        (["ranks"], ["train", str(job.ranks[0].pid), "amem-workload"]),
        (["allocations"], ["train", "nccl", "device"]),
        (["allocations", "--summary"], ["train", "nccl"]),
        (["top", "--once"], ["train", "running", "pool"]),
        (["version"], ["amemctl", "amemd"]),
        (["pause", "train"], ["train", "paused"]),
        (["status"], ["paused"]),
        (["top", "--once"], ["paused"]),
        (["resume", "train"], ["train", "resumed"]),
    ]:
        out = node.ctl(*arguments, json_output=False).out
        for word in words:
            assert word in out, (arguments, out)


def test_watch_tells_what_happens(node):
    watch = node.ctl.start("watch")

    def is_watching():
        session = wire.Session(node.runtime_dir)
        session.hello("probe")
        session.close()
        return watch.rest("out")

    eventually(is_watching, what="amemctl watch tells of a rank")
    events = []

    def await_event(kind, **fields):
        while True:
            event = watch.json_line()
            events.append(event)
            if event["kind"] == kind and all(event[name] == value for name, value in fields.items()):
                return event

    job = node.job(ranks=1)
    await_event("rank_joined", group="train")
    node.ctl("pause", "train")
    await_event("state", state="GROUP_STATE_PAUSING")
    await_event("state", state="GROUP_STATE_PAUSED")
    node.ctl("resume", "train")
    await_event("state", state="GROUP_STATE_RUNNING")
    job.ranks[0].kill()
    await_event("rank_left", group="train")
    watch.signal(signal.SIGINT)
    assert watch.finish().code == 0


def test_unreachable(bare_node):
    for arguments in (["status"], ["pause", "train"], ["watch"], ["top", "--once"]):
        answer = bare_node.ctl.try_(*arguments)
        assert answer.code == 3, arguments
        assert bare_node.runtime_dir in answer.error


@pytest.mark.parametrize("arguments", [["pause"], ["pause", "a b"], ["fly"], [], ["swap", "a"],
                                       ["run", "--group", "g"], ["pause", "train", "--timeout", "soon"]])
def test_wrong_usage(node, arguments):
    answer = node.ctl.try_(*arguments)
    assert answer.code == 2
    assert answer.err
