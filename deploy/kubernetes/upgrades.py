"""What an upgrade does to the pods that run: what the hook may-upgrade says of it, and which pods DaemonSets end at once."""
import copy
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import cluster

HERE = pathlib.Path(__file__).resolve().parent
SPEAKS = pathlib.Path("files", "speaks")  # in the chart
LATER = "session 1000, holder 1, amem record 1000"
LABELLED = {"amem/node": "true"}


def is_hook(each):
    return "helm.sh/hook" in each["metadata"].get("annotations", {})


def templates_of(objects):
    return [each["spec"]["template"] for each in objects if each["kind"] == "DaemonSet"]


def pods_of(objects, names):
    """The pods of a revision's DaemonSets on these nodes."""
    return [cluster.pod(template, name, f"{name}-{number}") for number, template in enumerate(templates_of(objects)) for name in names]


def as_of_0_1_0(pods):
    pods = copy.deepcopy(pods)
    for each in pods:
        each["metadata"]["annotations"] = {}
    return pods


def config_map(data):
    return {"kind": "ConfigMap", "metadata": {"name": "amem", "namespace": "amem"}, "data": data}


def ask_hook(following, objects, image, secret=(), **state):
    """What the hook of the revision `following` says in a cluster with these objects, in an image whose amemd speaks `image`, where the
    Secret has the keys `secret`: exit status, text, and the cluster's objects after it."""
    hooks = {each["kind"]: each for each in following if is_hook(each)}
    pod = hooks["Job"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    for kind in "Role", "ClusterRole":
        binding = hooks[f"{kind}Binding"]
        assert binding["roleRef"]["name"] == hooks[kind]["metadata"]["name"] and binding["subjects"][0]["name"] == pod["serviceAccountName"], binding
    assert hooks["ServiceAccount"]["metadata"]["name"] == pod["serviceAccountName"] and pod.get("automountServiceAccountToken", True)
    orders = {kind: int(each["metadata"]["annotations"]["helm.sh/hook-weight"]) for kind, each in hooks.items()}
    assert all(orders["Job"] > order for kind, order in orders.items() if kind != "Job"), "its rights are there before it"
    mounts = {each["mountPath"]: each["name"] for each in container.get("volumeMounts", [])}
    assert all(each["secret"]["optional"] for each in pod.get("volumes", [])), "the hook says what the Secret lacks"
    with tempfile.TemporaryDirectory() as folder:
        programs, keys, account = (pathlib.Path(folder, name) for name in ("bin", "tls", "account"))
        for each in programs, keys, account:
            each.mkdir()
        for each in secret if "/tls" in mounts else ():
            (keys / each).touch()
        (account / "token").write_text(cluster.TOKEN, encoding="utf-8")
        (account / "ca.crt").write_text("the-authority", encoding="utf-8")
        file = pathlib.Path(folder, "cluster.json")
        file.write_text(json.dumps({"objects": objects, "rules": hooks["Role"]["rules"], "cluster_rules": hooks["ClusterRole"]["rules"], **state}), encoding="utf-8")
        for name, script in (("amemd", f"[ \"$*\" = --speaks ] && printf '%s\\n' '{image}'"),
                             ("curl", f"exec {shlex.join([sys.executable, '-B', str(HERE / 'cluster.py'), str(file)])} \"$@\"")):
            (programs / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
            (programs / name).chmod(0o755)
        environment = {each["name"]: each["value"] for each in container["env"]}
        done = subprocess.run(container["command"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
                              env={**environment, "PATH": f"{programs}:{os.defpath}", "ACCOUNT": str(account), "TLS": str(keys), "PAUSES": "0 0"})
        return done.returncode, done.stdout, json.loads(file.read_text(encoding="utf-8"))["objects"]


class Chart:
    """Revisions of the chart: other values, other protocols, other versions."""

    def __init__(self, folder, objects_of):
        self.folder, self.objects_of = folder, objects_of
        self.speaks = (folder / SPEAKS).read_text(encoding="utf-8").strip()

    def revision(self, values=None, speaks=None, version=None):
        with tempfile.TemporaryDirectory() as folder:
            made = pathlib.Path(folder, "amem")
            shutil.copytree(self.folder, made)
            (made / SPEAKS).write_text(f"{speaks or self.speaks}\n", encoding="utf-8")
            if version:
                text = (made / "Chart.yaml").read_text(encoding="utf-8")
                (made / "Chart.yaml").write_text(re.sub(r"(?m)^(version|appVersion): \S+", rf"\1: {version}", text), encoding="utf-8")
            return self.objects_of(made, values)


def faults_of_protocols(chart):
    """Of what the hook says of protocols: it compares with the pods that run, and takes what is lost for one pair of versions alone."""
    now, nodes = chart.speaks, [cluster.node(name, LABELLED) for name in "abc"]
    this = chart.revision(version="1.0.0")
    changed = chart.revision({"pool": {"sizeGiB": 1}, "metrics": {"port": 9464}}, version="1.0.0")
    next_, third = chart.revision(speaks=LATER, version="2.0.0"), chart.revision(speaks=LATER.replace("1000", "1001"), version="3.0.0")
    def allowed(pair):
        return chart.revision({"allowIncompatibleUpgrade": pair}, LATER, "2.0.0")
    old, new, newest, former = pods_of(this, "abc"), pods_of(next_, "abc"), pods_of(third, "abc"), as_of_0_1_0(pods_of(this, "abc"))
    half = pods_of(this, "a") + pods_of(next_, "bc")
    holders = [each for each in old if each["metadata"]["labels"]["app.kubernetes.io/component"] == "holder"]
    without = [each for each in new if each["metadata"]["labels"]["app.kubernetes.io/component"] == "amemd"]
    of_other = copy.deepcopy(old)
    for each in of_other:
        each["metadata"]["labels"]["app.kubernetes.io/instance"] = "other"
    ended = [cluster.pod(template, "a", 9, phase) for template in templates_of(this) for phase in ("Succeeded", "Failed")]
    waiting = [cluster.pod(templates_of(this)[0], None, 10)]
    second, twelfth = LATER.replace("holder 1,", "holder 2,"), LATER.replace("holder 1,", "holder 12,")
    lost = (now, LATER, "jobs that run would be lost", "allowIncompatibleUpgrade=1.0.0->2.0.0")
    for name, running, following, image, status, words in (
            ("an installation", [], this, now, 0, ("no pod of this release runs",)),
            ("an installation of another image", [], this, LATER, 1, ("chart and image of one version",)),
            ("the same protocols", old, this, now, 0, ("may be followed",)),
            ("other values", old, changed, now, 0, ("may be followed",)),
            ("an image of another version", old, this, LATER, 1, (now, LATER, "chart and image of one version")),
            ("other protocols", old, next_, LATER, 1, (*lost, "on node a")),
            ("other protocols, allowed", old, allowed("1.0.0->2.0.0"), LATER, 0, ("may be followed",)),
            ("other protocols, another pair is allowed", old, allowed("0.9.0->1.0.0"), LATER, 1, lost),
            ("other protocols, an older pair is allowed", old, allowed("0.9.0->2.0.0"), LATER, 1, lost),
            ("after one that was done by halves", half, next_, LATER, 1, (*lost, "on node a")),
            ("a rollback after one that was done by halves", half, this, now, 1, (LATER, "on node b", "allowIncompatibleUpgrade=2.0.0->1.0.0")),
            ("a rollback to other protocols", new, this, now, 1, (now, LATER, "jobs that run would be lost")),
            ("pods of three versions", newest + old, next_, LATER, 1, ("and 3 more", "delete the pods of version 3.0.0", "allowIncompatibleUpgrade=1.0.0->2.0.0")),
            ("older holders of the same protocol", without + holders, next_, LATER, 0, ("may be followed",)),
            ("holders of another protocol", holders, chart.revision(speaks=second, version="2.0.0"), second, 1, ("jobs that run would be lost",)),
            ("holders of one whose number begins alike", holders, chart.revision(speaks=twelfth, version="2.0.0"), twelfth, 1, ("jobs that run would be lost",)),
            ("pods that have ended, wait, or are of another release", [*of_other, *ended, *waiting], next_, LATER, 0, ("no pod of this release runs",)),
            ("pods of 0.1.0", former + [config_map({"speaks": now})], this, now, 0, ("may be followed",)),
            ("pods of 0.1.0 of other protocols", former + [config_map({"speaks": now})], next_, LATER, 1, lost),
            ("pods of 0.1.0, allowed", former + [config_map({"speaks": now})], allowed("1.0.0->2.0.0"), LATER, 0, ("may be followed",)),
            ("pods of 0.1.0 that do not say", former + [config_map({"amemd.toml": ""})], this, now, 1, ("does not say what it speaks",)),
            ("pods of 0.1.0 without their ConfigMap", former, this, now, 1, ("does not say what it speaks",))):
        code, text, after = ask_hook(following, [*nodes, *running], image)
        missing = [each for each in words if each not in text]
        if code != status or missing:
            yield f"upgrade, {name}: the hook ends with {code}, not {status}, and does not say {missing}: {text}"
        for before, kept in zip([*nodes, *running], after):
            wanted = copy.deepcopy(before)
            if before["kind"] == "ConfigMap" and status == 0:
                wanted["immutable"] = True
                wanted["metadata"]["annotations"] = {"helm.sh/resource-policy": "keep"}
            if kept != wanted:
                yield f"upgrade, {name}: the hook makes {kept} of {before}"
    for name, state, status, words in (("no API server", {"away": 9}, 1, "Failed to connect"), ("an API server that comes late", {"away": 2}, 0, "may be followed"),
                                       ("no rights", {"rules": []}, 1, "cannot list resource pods"),
                                       ("no rights on nodes", {"cluster_rules": []}, 1, "cannot list resource nodes")):
        code, text, _ = ask_hook(this, [*nodes, *old], now, **state)
        if code != status or words not in text:
            yield f"upgrade, {name}: the hook ends with {code}: {text}"
    rights = [{"resources": ["pods"], "verbs": ["list"]}]
    for more, words in (([], "does not give the ConfigMap amem"), ([{"resources": ["configmaps"], "verbs": ["get"]}], "cannot keep the ConfigMap amem")):
        code, text, _ = ask_hook(this, [*nodes, *former, config_map({"speaks": now})], now, rules=rights + more)
        if code != 1 or words not in text:
            yield f"upgrade from 0.1.0, with the rights {more}: the hook ends with {code}: {text}"
    many = [f"n{number}" for number in range(130)]
    code, text, _ = ask_hook(next_, [cluster.node(name, LABELLED) for name in many] + pods_of(next_, many[:-1]) + pods_of(this, many[-1:]), LATER)
    if code != 1 or "on node n129" not in text:
        yield f"upgrade of many pods, the last of another version: the hook ends with {code}: {text}"
    several = chart.revision({"control": {"port": 7070, "secret": "node-keys"}})
    for keys, status, words in (((), 1, ("Secret node-keys has no ca.crt", "kubectl create secret generic node-keys")),
                                (("ca.crt", "tls.crt"), 1, ("Secret node-keys has no tls.key",)),
                                (("ca.crt", "tls.crt", "tls.key"), 0, ("no pod of this release runs",))):
        code, text, _ = ask_hook(several, [], now, keys)
        if code != status or not all(each in text for each in words):
            yield f"a Secret with {keys}: the hook ends with {code}, not {status}: {text}"


def required(*terms):
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def one(key, operator, *values):
    return {"matchExpressions": [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


def faults_of_placement(chart):
    """The hook refuses a revision exactly if the DaemonSet controller would end pods, and names their nodes."""
    gpu, exists = {"nvidia.com/gpu.present": "true"}, {"operator": "Exists"}
    nodes = [cluster.node("plain"), cluster.node("gpu", gpu), cluster.node("ours", LABELLED), cluster.node("both", {**gpu, **LABELLED, "gpus": "8"}),
             cluster.node("other", {"amem/node": "false", "gpus": "4"}), cluster.node("tainted", LABELLED, [("dedicated", "NoExecute")]),
             cluster.node("busy", LABELLED, [("nvidia.com/gpu", "NoExecute"), ("x", "NoSchedule")]),
             cluster.node("away", LABELLED, [("node.kubernetes.io/unreachable", "NoExecute")])]
    selectors = ({"amem/node": "true"}, gpu, {"amem/node": "true", "gpus": "8"}, None, {"amem/node": None})
    tolerations = ([{"key": "nvidia.com/gpu", **exists}], None, [{"key": "dedicated", "value": "other", "effect": "NoExecute"}],
                   [{"key": "dedicated", "effect": "NoSchedule", **exists}],
                   [{"key": "dedicated", "effect": ""}, {"key": "", "effect": "NoExecute", **exists}])
    affinities = (
        required(one("gpus", "Gt", "4")), required(one("gpus", "Lt", "8")), required(one("amem/node", "NotIn", "true")), required(one("gpus", "DoesNotExist")),
        required(one("gpus", "In", "4", "2"), {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["plain"]}]}),
        required({"matchExpressions": one("gpus", "Exists")["matchExpressions"] + one("nvidia.com/gpu.present", "Exists")["matchExpressions"]}), required({}))
    placements = [*({"nodeSelector": each} for each in selectors), *({"tolerations": each} for each in tolerations),
                  *({"nodeSelector": {"amem/node": None}, "affinity": each} for each in affinities)]
    for number, values in enumerate(placements):
        following = chart.revision(values)
        ends = {each["metadata"]["name"] for each in nodes for template in templates_of(following) if not cluster.keeps_running(template["spec"], each)}
        for on in ([each["metadata"]["name"] for each in nodes], ["both"])[:2 if number < 3 else 1]:
            code, text, _ = ask_hook(following, [*nodes, *pods_of(following, on)], chart.speaks)
            wanted = ends & set(on)
            if (code != 0) != bool(wanted) or wanted and (f"on {len(wanted)} of the nodes" not in text or wanted == {"both"} and "both " not in text):
                yield f"{values}: pods on {wanted} would end, and the hook ends with {code}: {text}"
    # From 0.1.0, whose nodes had the label of NVIDIA's operator.
    following, gpus = chart.revision(), [cluster.node(name, gpu) for name in "ab"]
    running = as_of_0_1_0(pods_of(following, "ab")) + [config_map({"speaks": chart.speaks})]
    code, text, after = ask_hook(following, gpus + running, chart.speaks)
    if code != 1 or "kubectl label node a b amem/node=true" not in text or after != gpus + running:
        yield f"from 0.1.0, without labels: the hook ends with {code}: {text}"
    for each in gpus:
        each["metadata"]["labels"].update(LABELLED)
    code, text, _ = ask_hook(following, gpus + running, chart.speaks)
    if code != 0:
        yield f"from 0.1.0, with labels: the hook ends with {code}: {text}"


def faults_of_daemon_sets(chart):
    """A label of somebody else that goes, and a taint of anybody that comes, end neither amemd nor its holder."""
    for template in templates_of(chart.revision()):
        name = template["metadata"]["labels"]["app.kubernetes.io/component"]
        labels = {**LABELLED, "nvidia.com/gpu.present": "true"}
        for what, node in (("NVIDIA's label goes", cluster.node("n", LABELLED)), ("a taint comes", cluster.node("n", labels, [("maintenance", "NoExecute")])),
                           ("a node is cordoned", cluster.node("n", labels, [("node.kubernetes.io/unschedulable", "NoSchedule")]))):
            if not cluster.keeps_running(template["spec"], node):
                yield f"{what}: {name} ends"
        if cluster.keeps_running(template["spec"], cluster.node("n", {"nvidia.com/gpu.present": "true"})):
            yield f"{name} runs on a node that has no label of amem"


def faults(folder, objects_of):
    chart = Chart(folder, objects_of)
    for look in faults_of_protocols, faults_of_placement, faults_of_daemon_sets:
        yield from look(chart)
