#!/usr/bin/env python3
"""Writes Grafana's board: board.py > amem.json. A panel an entry of PANELS; tests/integration/operators/test_grafana.py runs the
queries on a real Prometheus, and deploy/grafana/check.sh has Grafana's own library read the board."""
import json
import sys

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
ON = 'instance=~"$instance"'
OF = f'{ON},group=~"$group"'
OPTIONS = {
    "timeseries": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
                   "tooltip": {"mode": "multi", "sort": "desc"}},
    "stat": {"colorMode": "value", "graphMode": "none", "justifyMode": "auto", "textMode": "auto", "orientation": "auto",
             "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}},
    "state-timeline": {"showValue": "auto", "mergeValues": True, "rowHeight": 0.9, "alignValue": "left",
                       "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []},
                       "tooltip": {"mode": "single", "sort": "none"}},
}
STATES = ("running", "green"), ("pausing", "yellow"), ("paused", "blue"), ("resuming", "orange")


def panel(title, unit, what, *queries, kind="timeseries", stack=False, wide=12, high=8, mappings=()):
    """`queries`: pairs of an expression and its legend. `wide`: of 24 columns."""
    defaults = {"unit": unit, "mappings": list(mappings), "min": 0}
    if kind == "timeseries":
        defaults["custom"] = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 25 if stack else 0, "showPoints": "never",
                              "stacking": {"mode": "normal" if stack else "none", "group": "A"}}
    return {
        "type": kind, "title": title, "description": what, "datasource": SOURCE, "options": OPTIONS[kind],
        "gridPos": {"w": wide, "h": high, "x": 0, "y": 0}, "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [{"datasource": SOURCE, "expr": expression, "legendFormat": legend, "refId": chr(ord("A") + number),
                     "instant": kind == "stat", "range": kind != "stat"}
                    for number, (expression, legend) in enumerate(queries)],
    }


def row(title):
    return {"type": "row", "title": title, "collapsed": False, "gridPos": {"w": 24, "h": 1, "x": 0, "y": 0}, "panels": []}


def number(title, unit, what, expression):
    return panel(title, unit, what, (expression, ""), kind="stat", wide=4, high=4)


def quantile(q, metric, by):
    return f"histogram_quantile({q}, sum by (le, {by}) (rate({metric}_bucket{{{ON}}}[$__rate_interval])))"


def turns(turn):
    times = [f'rate(amem_group_turn_seconds_total{{{OF},turn="{each}"}}[$__rate_interval])' for each in (turn, "there")]
    return " / ".join(f"sum by (instance, stage, owner, group) ({each})" for each in times)


def which_state():
    numbers = [f'{number} * amem_group_state{{{OF},state="{name}"}}' for number, (name, _) in enumerate(STATES)]
    return "sum by (instance, owner, group) (" + " or ".join(numbers) + ")"


PANELS = [
    row("Now"),
    number("Brokers that answer", "none", "Brokers that Prometheus reaches and that answer in time", f"sum(amem_up{{{ON}}})"),
    number("Groups", "none", "Groups that have ranks", f'sum(amem_group_state{{{OF}}})'),
    number("Paused", "none", "Groups whose memory is paused", f'sum(amem_group_state{{{OF},state="paused"}})'),
    number("Pool in use", "percentunit", "Of the pinned host memory that the pool may have",
           f'sum(amem_pool_bytes{{{ON},state="used"}}) / sum(amem_pool_configured_bytes{{{ON}}})'),
    number("Failed in the last hour", "none", "Pauses, resumes and swaps",
           f'sum(increase(amem_operations_total{{{ON},result!="ok"}}[1h])) or vector(0)'),
    number("Devices that hang", "none", "A call to the driver does not return. The log names it",
           f"sum(amem_device_hanging{{{ON}}})"),
    row("Groups"),
    panel("State", "none", "What each group does", (which_state(), "{{group}} ({{owner}}) on {{instance}}"), kind="state-timeline",
          mappings=[{"type": "value", "options": {str(at): {"text": name, "color": color, "index": at}
                                                  for at, (name, color) in enumerate(STATES)}}]),
    panel("Ranks that are waited for", "none", "One that stays here holds up its group",
          (f"sum by (instance, group, rank, pid, phase) (amem_rank_waiting{{{OF}}})", "{{group}} rank {{rank}} (pid {{pid}}): {{phase}}")),
    panel("Memory on devices, by group and tag", "bytes", "What a pause could free, but for what is pinned",
          (f'sum by (group, tag) (amem_group_memory_bytes{{{OF},state="resident"}})', "{{group}} {{tag}}"), stack=True),
    panel("Memory paused, by group and tag", "bytes", "Saved: the pool has its bytes. Dropped: a resume provides zeros",
          (f'sum by (group, tag, state) (amem_group_memory_bytes{{{OF},state!="resident"}})', "{{group}} {{tag}}: {{state}}"),
          stack=True),
    row("How long it takes"),
    panel("Operations", "s", "Median and 99th percentile of those that succeeded",
          (quantile(0.5, "amem_operation_seconds", "operation"), "{{operation}}, median"),
          (quantile(0.99, "amem_operation_seconds", "operation"), "{{operation}}, 99 %")),
    panel("Where the time goes", "s", "Mean time of each phase",
          (f"sum by (operation, phase) (rate(amem_transition_seconds_sum{{{ON}}}[$__rate_interval])) / "
           f"sum by (operation, phase) (rate(amem_transition_seconds_count{{{ON}}}[$__rate_interval]))",
           "{{operation}}: {{phase}}"), stack=True),
    panel("Operations by result", "ops", "The text of a failure says what to do next: amemctl watch, and amemd's log",
          (f"sum by (operation, result) (rate(amem_operations_total{{{ON}}}[$__rate_interval]))", "{{operation}}: {{result}}")),
    panel("Bytes copied", "Bps", "To the pool by pauses, from it by resumes",
          (f"sum by (operation) (rate(amem_transition_bytes_sum{{{ON}}}[$__rate_interval]))", "{{operation}}")),
    panel("Device memory of pauses and resumes", "Bps", "Handed on between groups costs the driver little; made and closed costs time on all GPUs of the node",
          (f"sum by (how) (rate(amem_moved_memory_bytes_total{{{ON}}}[$__rate_interval]))", "{{how}}")),
    row("Turns"),
    panel("Share of time, by group", "percentunit", "How much of its time in its stage each group ran",
          (turns("ran"), "{{group}} ({{stage}} on {{instance}})")),
    panel("Waiting for a turn, by group", "percentunit", "A group that stays near 100 % starves",
          (turns("waited"), "{{group}} ({{stage}} on {{instance}})")),
    panel("How long groups waited", "s", "Median and 99th percentile of the waits that ended with a turn",
          (quantile(0.5, "amem_stage_wait_seconds", "stage"), "{{stage}}, median"),
          (quantile(0.99, "amem_stage_wait_seconds", "stage"), "{{stage}}, 99 %")),
    panel("Switches", "ops", "By result. amemctl history has the reason of each switch",
          (f"sum by (instance, stage, result) (rate(amem_stage_switches_total{{{ON}}}[$__rate_interval]))",
           "{{stage}} on {{instance}}: {{result}}"), wide=6),
    panel("Time spent switching", "percentunit", "The part of its time that a stage spends on switches",
          (f"sum by (instance, stage) (rate(amem_stage_switching_seconds_total{{{ON}}}[$__rate_interval]))",
           "{{stage}} on {{instance}}"), wide=6),
    row("What there is"),
    panel("Devices", "bytes", "In use by anybody, and of this the part that belongs to groups",
          (f"sum by (instance, device) (amem_device_used_bytes{{{ON}}})", "{{instance}} {{device}}: in use"),
          (f"sum by (instance, device) (amem_device_brokered_bytes{{{ON}}})", "{{instance}} {{device}}: brokered"),
          (f"sum by (instance, device) (amem_device_size_bytes{{{ON}}})", "{{instance}} {{device}}: size")),
    panel("Pool", "bytes", "Pinned host memory; configured is the size in the settings",
          (f"sum by (state) (amem_pool_bytes{{{ON}}})", "{{state}}"),
          (f"sum(amem_pool_configured_bytes{{{ON}}})", "configured")),
    panel("Memory that stays through a pause", "bytes", "Not brokered, by what allocated it; or pinned, for example registered with a NIC",
          (f"sum by (group, kind) (amem_group_unbrokered_bytes{{{OF}}})", "{{group}}: not brokered, {{kind}}"),
          (f"sum by (group) (amem_group_pinned_bytes{{{OF}}}) > 0", "{{group}}: pinned"), stack=True),
    panel("Refused for a quota", "ops", "amemctl quotas says who has how much",
          (f"sum by (owner, resource) (rate(amem_quota_refusals_total{{{ON}}}[$__rate_interval])) > 0", "{{owner}}: {{resource}}")),
]


def variable(name, label, query):
    return {"type": "query", "name": name, "label": label, "datasource": SOURCE, "query": query,
            "refresh": 2, "multi": True, "includeAll": True, "allValue": ".*", "sort": 1, "hide": 0, "skipUrlSync": False,
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]}, "options": [], "regex": ""}


def placed(panels):
    """From left to right, then from top to bottom."""
    x = y = high = 0
    for number, each in enumerate(panels, 1):
        at = each["gridPos"]
        if x + at["w"] > 24:
            x, y, high = 0, y + high, 0
        at["x"], at["y"], each["id"] = x, y, number
        x, high = x + at["w"], max(high, at["h"])
    return panels


BOARD = {
    "uid": "amem-node", "title": "amem", "description": "GPU memory that amemd brokers: groups, pauses, resumes and swaps",
    "tags": ["amem", "gpu"], "timezone": "", "editable": True, "graphTooltip": 1, "schemaVersion": 39, "version": 1,
    "refresh": "10s", "time": {"from": "now-1h", "to": "now"}, "timepicker": {}, "annotations": {"list": []}, "links": [],
    "templating": {"list": [
        {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus", "refresh": 1, "hide": 0,
         "multi": False, "includeAll": False, "skipUrlSync": False, "options": [], "regex": ""},
        variable("instance", "Node", "label_values(amem_build_info, instance)"),
        variable("group", "Group", "label_values(amem_group_state, group)")]},
    "panels": placed(PANELS),
}

if __name__ == "__main__":
    json.dump(BOARD, sys.stdout, indent=1)
    print()
