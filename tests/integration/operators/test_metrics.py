"""Metrics: what a real Prometheus scrapes is what amemctl says, whoever asks sees what he may, and nobody holds up the broker."""
import contextlib
import http.server
import os
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error

import pytest

from sim_node import NOBODY, as_user, eventually
from sim_node.prometheus import Prometheus, free_port, get

needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus here (deploy/deps.sh installs it)")


@pytest.fixture
def serving(bare_node):
    """A node whose broker serves metrics, and their port."""
    port = free_port()
    bare_node.start_broker("--metrics-listen", str(port))
    yield bare_node, port
    assert bare_node.broker.alive()


def scrape(port, **options):
    return get(f"http://127.0.0.1:{port}/metrics", **options)[0]


def metric(text, name):
    """The value of a sample that is written so."""
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found, f"no {name} in:\n{text}"
    return float(found[1])


def listening(pid):
    """Ports at which a process takes TCP connections."""
    sockets = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    ports = []
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}") as file:
            for line in list(file)[1:]:
                _, local, _, state, *rest = line.split()
                if state == "0A" and f"socket:[{rest[5]}]" in sockets:
                    ports.append(int(local.rpartition(":")[2], 16))
    return ports


def done(answer):
    return {line["group"]: line for line in answer.lines if line.get("done")}


@needs_prometheus
def test_a_real_prometheus_records_a_swap_as_amemctl_told_it(serving):
    node, port = serving
    prometheus = node.adopt(Prometheus(node, {"amem": port})).ready()
    rollout = node.job("rollout", allocations=4, size="2MiB")
    first = node.ctl("pause", "rollout")
    node.job("train", allocations=3, size="2MiB")
    swap = node.ctl("swap", "train", "rollout")
    rollout.verify()
    pauses = [done(first)["rollout"], done(swap)["train"]]
    [resume] = [done(swap)["rollout"]]
    # What the swap left is scraped when this is.
    eventually(lambda: prometheus.value('amem_operations_total{operation="swap",result="ok"}') == 1, what="the swap is scraped")

    def seconds(operation):
        return prometheus.value(f'amem_operation_seconds_sum{{operation="{operation}"}}')

    assert seconds("pause") == pytest.approx(sum(each["elapsed_us"] for each in pauses) / 1e6, abs=1e-9)
    assert seconds("resume") == pytest.approx(resume["elapsed_us"] / 1e6, abs=1e-9)
    assert seconds("swap") == pytest.approx(swap.lines[-1]["swap_us"] / 1e6, abs=0.05)
    phases = {}
    for last in pauses:
        for phase in last["times"]:
            key = (("operation", "pause"), ("phase", phase["phase"]))
            phases[key] = phases.get(key, 0) + phase["us"] / 1e6
    recorded = prometheus.samples('amem_transition_seconds_sum{operation="pause"}')
    assert recorded == pytest.approx(phases)
    copied = sum(int(rank.get("bytes", 0)) for last in pauses for phase in last["times"] for rank in phase.get("ranks", []))
    assert prometheus.value('amem_transition_bytes_sum{operation="pause"}') == copied > 0

    status = node.ctl.status()
    groups = {each["name"]: each for each in status["groups"]}
    for name, group in groups.items():
        state = group["state"].removeprefix("GROUP_STATE_").lower()
        assert prometheus.value(f'amem_group_state{{group="{name}",state="{state}"}}') == 1
        assert prometheus.value(f'sum(amem_group_state{{group="{name}"}})') == 1
        for state, expected in (("resident", group["resident_bytes"]),
                                ("saved", group["allocated_bytes"] - group["resident_bytes"])):
            assert prometheus.value(f'sum(amem_group_memory_bytes{{group="{name}",state="{state}"}})') == expected
        assert prometheus.value(f'sum(amem_group_pool_bytes{{group="{name}"}})') == group["saved_bytes"]
        assert prometheus.value(f'sum(amem_sessions{{group="{name}"}})') == group["rank_count"]
    assert groups["train"]["resident_bytes"] == 0 < groups["train"]["saved_bytes"]
    for device in status["devices"]:
        labels = f'{{device="{device["ordinal"]}",UUID="{device["uuid"]}"}}'
        assert prometheus.value("amem_device_brokered_bytes" + labels) == device["brokered_bytes"]
        assert prometheus.value("amem_device_used_bytes" + labels) == device["used_bytes"]
        assert prometheus.value("amem_device_size_bytes" + labels) == device["total_bytes"]
    assert prometheus.value('amem_pool_bytes{state="used"}') == status["pool"]["used_bytes"]
    assert prometheus.value("sum(amem_pool_bytes)") == status["pool"]["ready_bytes"]
    assert prometheus.value("amem_holder_attached") == 1
    assert prometheus.value("amem_up") == 1


@needs_prometheus
def test_promtool_finds_no_fault_with_the_names(serving):
    node, port = serving
    node.job("train")
    node.ctl("pause", "train")
    for text in (scrape(port), node.ctl("metrics", "--format", "prometheus", json_output=False).out):
        said = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
        assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


@needs_prometheus
def test_prometheus_reads_the_open_metrics_of_amemctl(node):
    node.job("train")
    node.ctl("pause", "train")
    text = node.ctl("metrics", json_output=False).out
    assert text.endswith("\n# EOF\n") and "# TYPE amem_operations counter\n" in text

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        prometheus = node.adopt(Prometheus(node, {"amemctl": server.server_address[1]})).ready()
        assert prometheus.value('amem_operations_total{operation="pause",result="ok"}') == 1
        assert prometheus.value('amem_operation_seconds_count{operation="pause"}') == 1
    finally:
        server.shutdown()
        server.server_close()


def test_the_documentation_names_every_metric(serving):
    node, port = serving
    job = node.job("train")
    node.ctl("pause", "train")
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), *[".."] * 3, "docs", "metrics.md"), encoding="utf-8") as file:
        rows = re.findall(r"^\| `(\w+)` \| (gauge|counter|histogram) \|", file.read(), re.MULTILINE)
    served = re.findall(r"^# TYPE (\w+) (\w+)$", scrape(port), re.MULTILINE)
    assert job.ranks
    served = {each for each in served if not each[0].startswith("exposer_")}
    rare = {"amem_rank_waiting", "amem_group_unbrokered_bytes", "amem_group_turn_seconds_total", "amem_stage_switches_total",
            "amem_stage_switching_seconds_total", "amem_stage_wait_seconds"}  # of what is not so here
    assert served - set(rows) == set()
    assert {name for name, _ in set(rows) - served} <= rare


def test_what_waits_for_which_rank(serving):
    node, port = serving
    job = node.job("train")
    job.ranks[0].faults("cuMemcpyDtoHAsync:1:hold")
    pause = node.ctl.start("pause", "train")
    pause.wait_phase("save")

    def waits():
        return re.findall(r'amem_rank_waiting\{.*rank="(\d+)",pid="(\d+)",phase="save"\} 1', scrape(port))

    eventually(lambda: waits() == [("0", str(job.ranks[0].pid))], what="only rank 0 is waited for")
    job.ranks[0].faults()
    assert pause.finish().code == 0
    assert "amem_rank_waiting" not in scrape(port)


def test_a_device_that_hangs_is_told_of(serving):
    node, port = serving
    job = node.job("train")
    node.ctl("pause", "train")
    node.broker.faults("cuMemCreate:1:hold")
    resume = node.ctl.start("resume", "train")

    def hanging():
        return sorted(re.findall(r'amem_device_hanging\{device="(\d)",UUID="GPU-[^"]+"\} ([01])', scrape(port)))

    eventually(lambda: ("0", "1") in hanging() or ("1", "1") in hanging(), deadline=60, what="a device hangs")
    node.broker.faults()
    resume.finish()
    eventually(lambda: hanging() == [("0", "0"), ("1", "0")], what="it does not any more")
    if node.ctl.state("train") == "paused":
        node.ctl("resume", "train")
    job.verify()


def test_failures_count_by_result(serving):
    node, port = serving
    job = node.job("train")
    job.ranks[0].faults("cuMemcpyDtoHAsync:1:kill")
    assert node.ctl.try_("pause", "train").code == 1
    text = scrape(port)
    assert metric(text, 'amem_operations_total{operation="pause",result="aborted"}') == 1
    assert metric(text, 'amem_events_total{kind="error"}') >= 1
    assert listening(node.broker.pid) == [port]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_a_stranger_sees_no_other_groups(node_with):
    node = node_with("--sockets-control-mode", "0660", "--sockets-group", "nogroup")
    node.job("secret")
    mine = node.ctl("metrics", json_output=False).out
    assert 'group="secret"' in mine and "amem_events_total" in mine
    nobody = node.ctl.by(as_user(NOBODY))
    text = nobody("metrics", json_output=False).out
    assert "amem_build_info" in text and "secret" not in text
    assert "amem_operations" not in text and "amem_events" not in text and 'state="used"' not in text


def test_nothing_is_served_unless_it_is_asked_for(node):
    assert not [line for line in node.broker.rest() if "amemd serves metrics" in line]
    assert not listening(node.broker.pid)


@pytest.mark.parametrize("address, says", [
    ("nonsense", '"nonsense" is not a valid address'), ("localhost:80", "is not a valid address"), ("70000", "is not a valid address"),
    ("0", "is not a valid address"), ("1.2.3:80", "is not a valid address"), ("[::1:80", "is not a valid address")])
def test_an_address_that_is_none_is_refused(build, address, says):
    said = subprocess.run([build.program("amemd"), "--config", "/dev/null", "--metrics-listen", address, "--check-config"],
                          capture_output=True, text=True, timeout=20)
    assert said.returncode == 2 and says in said.stderr, said


def test_a_port_in_use_is_told_of_and_taken_when_it_is_free(bare_node):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        broker = bare_node.start_broker("--metrics-listen", str(port))
        assert f"cannot serve http://127.0.0.1:{port}/metrics" in broker.wait_for("metrics.listen")
        job = bare_node.job("train")
        bare_node.ctl("pause", "train")
        bare_node.ctl("resume", "train")
        job.verify()
    broker.wait_for("amemd serves metrics", deadline=30)
    assert metric(scrape(port), "amem_up") == 1
    assert broker.terminate() == 0


def test_scrapers_that_hang_hold_up_nothing(serving):
    node, port = serving
    job = node.job("train")
    hung = [socket.create_connection(("127.0.0.1", port)) for _ in range(12)]
    for number, scraper in enumerate(hung):
        if number % 2:
            scraper.sendall(b"GET /metr")
    try:
        began = time.monotonic()
        node.ctl("pause", "train")
        node.ctl("resume", "train")
        assert time.monotonic() - began < 5
        job.verify()

        def answered():
            try:
                return metric(scrape(port, deadline=30), "amem_up") == 1
            except (urllib.error.URLError, TimeoutError, OSError):
                return False

        eventually(answered, deadline=60, what="who does not hang is answered")
        began = time.monotonic()
        assert node.broker.terminate() == 0
        assert time.monotonic() - began < 5
    finally:
        for scraper in hung:
            scraper.close()
    node.start_broker("--metrics-listen", str(port))  # for the fixture


def test_a_stopped_broker_is_down_and_does_not_hang_who_scrapes(serving):
    node, port = serving
    node.broker.signal(19)  # SIGSTOP
    with pytest.raises((TimeoutError, urllib.error.URLError, OSError)):
        scrape(port, deadline=1)
    node.broker.signal(18)  # SIGCONT
    assert metric(scrape(port), "amem_up") == 1


def test_the_next_amemd_serves_at_the_same_port(bare_node):
    folder = os.path.join(bare_node.dir, "bin")
    os.mkdir(folder)
    for name in ("amemd", "amem-holder"):
        shutil.copy(bare_node.build.program(name), folder)
    port = free_port()
    broker = bare_node.start_broker("--metrics-listen", str(port), program=os.path.join(folder, "amemd"))
    started = metric(scrape(port), "process_start_time_seconds")
    bare_node.job("train")
    bare_node.ctl("upgrade")
    eventually(lambda: metric(scrape(port), "process_start_time_seconds") > started, what="the next one serves")
    assert metric(scrape(port), 'amem_sessions{group="train",owner="0",state="connected"}') == 2
    assert broker.terminate() == 0
