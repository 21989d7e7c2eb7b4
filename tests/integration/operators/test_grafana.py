"""The board and the alerts of deploy/grafana, on a real Prometheus that scrapes a node."""
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from sim_node import eventually
from sim_node.prometheus import Prometheus, free_port
from sim_node.stage import pair, start_stage

GRAFANA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "deploy", "grafana")
ALERTS = os.path.normpath(os.path.join(GRAFANA, "alerts.yaml"))
needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus here (deploy/deps.sh installs it)")


def board():
    with open(os.path.join(GRAFANA, "amem.json"), encoding="utf-8") as file:
        return json.load(file)


def queries():
    """Titles of panels, and their queries with the variables as Grafana fills them in."""
    for panel in board()["panels"]:
        for target in panel.get("targets", []):
            text = target["expr"].replace("$__rate_interval", "1m").replace('"$instance"', '".*"').replace('"$group"', '".*"')
            assert "$" not in text, text
            yield panel["title"], text


# What shows nothing on a node on which nothing is wrong.
TURNS = {"Share of time, by group", "Waiting for a turn, by group", "How long groups waited", "Switches", "Time spent switching"}
QUIET = {"Ranks that are waited for", "Refused for a quota", "Memory that stays through a pause"} | TURNS


@needs_prometheus
def test_each_panel_shows_what_happened(bare_node):
    node, port = bare_node, free_port()
    node.start_broker("--metrics-listen", str(port))
    prometheus = node.adopt(Prometheus(node, {"amem": port}, ALERTS)).ready()
    node.job("rollout", allocations=4, size="2MiB")
    for _ in range(2):  # a rate needs two samples that differ
        node.ctl("pause", "rollout")
        count = prometheus.value('sum(amem_operations_total)') or 0
        node.ctl("resume", "rollout")
        eventually(lambda: (prometheus.value('sum(amem_operations_total)') or 0) > count + 1 - 1e-9, what="it is scraped")
    node.ctl("pause", "rollout")
    node.job("train", allocations=3, size="2MiB")
    node.ctl("swap", "train", "rollout")
    node.ctl.try_("pause", "train")
    eventually(lambda: prometheus.value('amem_operations_total{operation="swap"}') == 1, what="the swap is scraped")
    empty = [(title, text) for title, text in queries() if title not in QUIET and not prometheus.query(text)]
    assert not empty
    states = {each["metric"]["group"]: float(each["value"][1]) for title, text in queries() if title == "State"
              for each in prometheus.query(text)}
    assert states == {"train": 2, "rollout": 0}
    values = {title: prometheus.value(text) for title, text in queries() if title in ("Groups", "Paused", "Brokers that answer")}
    assert values == {"Groups": 2, "Paused": 1, "Brokers that answer": 1}
    assert not prometheus.ask("alerts")["alerts"]
    rules = prometheus.ask("rules")["groups"][0]["rules"]
    assert rules and all(rule["health"] == "ok" for rule in rules), rules


@needs_prometheus
def test_quiet_panels_show_what_is_wrong(bare_node):
    node, port = bare_node, free_port()
    node.start_broker("--metrics-listen", str(port))
    prometheus = node.adopt(Prometheus(node, {"amem": port})).ready()
    job = node.job("train", allocations=2, size="2MiB")
    job.ranks[1].faults("cuMemcpyDtoHAsync:1:hold")
    pause = node.ctl.start("pause", "train")
    pause.wait_phase("save")
    [query] = [text for title, text in queries() if title == "Ranks that are waited for"]
    eventually(lambda: [each["metric"]["rank"] for each in prometheus.query(query)] == ["1"], what="the panel names rank 1")
    job.ranks[1].faults()
    assert pause.finish().code == 0


@needs_prometheus
def test_panels_of_turns(bare_node):
    port = free_port()
    node = start_stage(bare_node, "--metrics-listen", str(port))
    prometheus = node.adopt(Prometheus(node, {"amem": port}, ALERTS)).ready()
    pair(node)
    for name in ("rollout", "train", "rollout"):  # a rate needs two samples that differ
        count = prometheus.value("sum(amem_stage_switches_total)") or 0
        node.ctl("lease", name, "--timeout", "20s")
        node.ctl("lease", name, "--yield")
        eventually(lambda count=count: (prometheus.value("sum(amem_stage_switches_total)") or 0) > count, what="it is scraped")
    empty = [(title, text) for title, text in queries() if title in TURNS and not prometheus.query(text)]
    assert not empty
    [share] = [text for title, text in queries() if title == "Share of time, by group"]
    shares = {each["metric"]["group"]: float(each["value"][1]) for each in prometheus.query(share)}
    assert set(shares) == {"train", "rollout"} and all(0 <= each <= 1.01 for each in shares.values()), shares


@needs_prometheus
def test_every_alert_fires_when_it_should(tmp_path):
    """promtool's unit tests of rules: what goes in, and which alert comes of it."""
    node = 'instance="n:1", job="amem"'
    cases = {
        "AmemdDown": ('up{job="amem", instance="n:1"}', "0x20"),
        "AmemdGone": ('up{job="amem", instance="n:1"}', "1x2 _x20"),
        "AmemNoHolder": (f"amem_holder_attached{{{node}}}", "0x20"),
        "AmemDeviceHangs": (f'amem_device_hanging{{{node}, device="0", UUID="GPU-1"}}', "1x20"),
        "AmemRankHoldsUpItsGroup": (f'amem_rank_waiting{{{node}, group="train", owner="0", rank="1", pid="12", phase="save"}}', "1x20"),
        "AmemOperationsFail": (f'amem_operations_total{{{node}, operation="pause", result="aborted"}}', "0+1x20"),
        "AmemPoolIncomplete": (f"amem_pool_reserve_bytes{{{node}}}", "8x20"),
        "AmemPoolTooLarge": (f'amem_pool_bytes{{{node}, state="free"}}', "8x20"),
        "AmemPoolNearlyFull": (f'amem_pool_bytes{{{node}, state="used"}}', "95x20"),
        "AmemQuotaRefusals": (f'amem_quota_refusals_total{{{node}, owner="1000", resource="pool"}}', "0+1x20"),
        "AmemGroupStopped": (f'amem_group_stopped_ranks{{{node}, group="train", owner="0"}}', "2x20"),
        "AmemGroupStarves": (f'amem_group_turn_seconds_total{{{node}, group="train", owner="0", stage="night", turn="waited"}}', "0+60x20"),
    }
    with open(ALERTS, encoding="utf-8") as file:
        assert set(re.findall(r"- alert: (\w+)", file.read())) == set(cases), "each alert has a case here"
    beside = {  # series that an expression needs besides
        "AmemGroupStopped": [(f'amem_group_memory_bytes{{{node}, group="train", owner="0", state="resident"}}', "5x20")],
        "AmemPoolIncomplete": [(f'amem_pool_bytes{{{node}, state="free"}}', "4x20")],
        "AmemPoolTooLarge": [(f"amem_pool_configured_bytes{{{node}}}", "4x20")],
        "AmemPoolNearlyFull": [(f'amem_pool_bytes{{{node}, state="free"}}', "5x20"), (f"amem_pool_configured_bytes{{{node}}}", "100x20")],
    }
    for name, (series, values) in cases.items():
        inputs = [{"series": series, "values": values}] + [{"series": one, "values": of} for one, of in beside.get(name, ())]
        inputs.append({"series": 'up{job="amem", instance="other:1"}', "values": "1x20"})
        file = tmp_path / f"{name}.json"  # which is YAML too
        file.write_text(json.dumps({"rule_files": [ALERTS], "evaluation_interval": "1m", "tests": [{
            "interval": "1m", "input_series": inputs,
            "promql_expr_test": [{"expr": f'count(ALERTS{{alertstate="firing", alertname="{name}"}})', "eval_time": "15m",
                                  "exp_samples": [{"labels": "{}", "value": 1}]},
                                 {"expr": f'count(ALERTS{{alertname!="{name}"}})', "eval_time": "15m", "exp_samples": []}]}]}))
        said = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=60)
        assert said.returncode == 0, f"{name}: {said.stdout}{said.stderr}"


@needs_prometheus
def test_a_pod_that_another_follows_is_not_gone(tmp_path):
    """With a PodMonitor the instance is the node. A node that was removed is forgotten after an hour. Without any target all are gone."""
    gone = 'ALERTS{alertstate="firing", alertname="AmemdGone"}'
    stays = ['up{job="amem", instance="node1", pod="a"}', "1x10 _x110"], ['up{job="amem", instance="node1", pod="b"}', "_x12 1x108"]
    leaves = ['up{job="amem", instance="node2", pod="c"}', "1x10 _x110"]
    tests = []
    for inputs, minute, instances in (((*stays, leaves), "14m", []), ((*stays, leaves), "22m", ["node2"]), ((*stays, leaves), "100m", []), ((), "10m", [None])):
        tests.append({"interval": "1m", "input_series": [{"series": series, "values": values} for series, values in inputs], "promql_expr_test": [{
            "expr": f"count by (instance) ({gone})", "eval_time": minute,
            "exp_samples": [{"labels": f'{{instance="{each}"}}' if each else "{}", "value": 1} for each in instances]}]})
    file = tmp_path / "gone.json"
    file.write_text(json.dumps({"rule_files": [ALERTS], "evaluation_interval": "1m", "tests": tests}))
    said = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, f"{said.stdout}{said.stderr}"


@needs_prometheus
def test_the_service_levels_are_queries(tmp_path):
    """What docs/fleet-operation.md asks Prometheus: promtool reads it, and a fleet that does well meets it."""
    with open(os.path.join(GRAFANA, "..", "..", "docs", "fleet-operation.md"), encoding="utf-8") as file:
        rows = re.findall(r"(?m)^\| ([^|]+) \| `(.+)` \|$", file.read().partition("## Service levels")[2])
    assert len(rows) >= 3
    inputs = {'up{job="amem", instance="n:1"}': "1x120", 'amem_operations_total{result="ok", operation="swap"}': "0+10x120",
              'amem_operations_total{result="aborted", operation="swap"}': "0x120", 'amem_operation_seconds_bucket{operation="swap", le="1"}': "0+10x120",
              'amem_operation_seconds_bucket{operation="swap", le="+Inf"}': "0+10x120",
              'amem_pool_bytes{state="free"}': "8x120", "amem_pool_configured_bytes": "8x120", "amem_pool_reserve_bytes": "8x120"}
    file = tmp_path / "levels.json"
    file.write_text(json.dumps({"evaluation_interval": "1m", "tests": [{
        "interval": "1m", "input_series": [{"series": series, "values": values} for series, values in inputs.items()],
        "promql_expr_test": [{"expr": f"count({query})", "eval_time": "2h", "exp_samples": [{"labels": "{}", "value": 1}]} for _, query in rows]}]}))
    said = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, f"{said.stdout}{said.stderr}"


def test_the_board_is_what_its_script_writes():
    said = subprocess.run([sys.executable, "-B", os.path.join(GRAFANA, "board.py")], capture_output=True, text=True, timeout=60)
    assert json.loads(said.stdout) == board(), "board.py > amem.json"
