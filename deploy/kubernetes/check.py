#!/usr/bin/env python3
"""Reads the chart as Helm does, and what it renders and the examples as Kubernetes does. Needs helm-python-sdk, kubernetes-validate.

check.py [AMEMD]: AMEMD is the program that reads the configurations, where there is one. `check.py --render` prints the chart's
manifests, which are amem.yaml. `check.py --archive FILE` reads the chart that a release has.
"""
import os
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import helm_python
import kubernetes_validate
import yaml

import custom
import policy
import upgrades

HERE = pathlib.Path(__file__).resolve().parent
VERSION = (HERE.parents[1] / "VERSION").read_text(encoding="utf-8").strip()
MANIFEST = HERE / "amem.yaml"
# The oldest that the chart says it is for, the one of resource claims, and the newest known here.
CHART_FOR, EXAMPLES_FOR = ("1.29", "1.34", "1.37"), ("1.34", "1.37")
POLICIES = ["MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"]
FROM = {"ResourceClaimTemplate": "1.34", **dict.fromkeys(POLICIES, "1.36")}  # else the oldest
HEADER = """\
# amemd on each GPU node, for kubectl apply, as the chart beside it has it with its own values: check.py --render.
apiVersion: v1
kind: Namespace
metadata:
  name: amem
  labels:
    pod-security.kubernetes.io/enforce: privileged  # hostPath and hostPID
"""
JOB = "batch.kubernetes.io/job-name"
SHIM = "/amem/libamem_shim.so"
DIGEST = "sha256:" + 64 * "a"
PEER = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
# Values, and the kinds that they add to two DaemonSets and the hook. All values of values.yaml are another in one of them.
GOOD = (
    ({}, []),
    ({"isolation": "cgroup", "metrics": {"port": 9464}}, []),
    ({"isolation": "userns", "runtimeClassName": "", "nodeSelector": {}, "tolerations": [], "priorityClassName": "", "jobs": {"inject": True}},
     POLICIES),
    ({"settings": {"guests": "refuse", "quotas": {"pool": "100%", "sessions": 64}, "swap": {"duplex": False}, "log": {"format": "json"},
                   "stage": {"night.1": {"devices": [0, 1], "policy": "demand"}}},
      "pool": {"sizeGiB": 512}, "runtimeDir": "/run/other", "image": {"repository": "r.example:5000/amem", "tag": "x", "digest": DIGEST, "pullPolicy": "Always"},
      "imagePullSecrets": [{"name": "pull"}], "affinity": {"nodeAffinity": {}}}, []),
    ({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}}, "drainSeconds": 120,
      "allowIncompatibleUpgrade": "0.1.0->0.2.0", "settings": {"deadlines": {"save": "90s"}}}, []),
    ({"metrics": {"port": 9464, "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}, "interval": "30s"},
                  "alerts": {"enabled": True, "labels": {"release": "prometheus"}, "runbooks": "https://amem.example/runbooks.html"},
                  "dashboard": {"enabled": True, "labels": {"grafana_dashboard": "yes"}}},
      "control": {"port": 7070, "hostPort": False, "secret": "amem-tls"},
      "networkPolicy": {"enabled": True, "metricsFrom": PEER, "controlFrom": PEER}},
     ["PodMonitor", "PrometheusRule", "ConfigMap", "NetworkPolicy"]),
    ({"nameOverride": "broker", "fullnameOverride": "gpu-memory", "labels": {"team": "ml"}, "annotations": {"owner": "ml"},
      "podLabels": {"tier": "node"}, "podAnnotations": {"sidecar.istio.io/inject": "false"}, "extraEnv": [{"name": "TZ", "value": "UTC"}],
      "extraVolumes": [{"name": "log", "hostPath": {"path": "/var/log/amem"}}], "extraVolumeMounts": [{"name": "log", "mountPath": "/var/log/amem"}],
      "serviceAccount": {"create": True, "name": "broker", "annotations": {"a": "b"}}, "seLinuxOptions": {"type": "spc_t"}, "hostPID": False,
      "gpus": "claim", "deviceClassName": "all.example", "priorityQuota": True, "resources": {"amemd": {"cpu": "1", "memoryGiB": 8}, "holder": {"cpu": "1", "memory": "1Gi"}},
      "jobs": {"shimDir": "/opt/amem", "cdiDir": "/var/run/cdi", "inject": True, "scope": "regions"}},
     ["ServiceAccount", "ResourceQuota", "ResourceClaimTemplate", *POLICIES]),
    ({"gpus": "mounts", "jobs": {"shimDir": ""}, "networkPolicy": {"enabled": True}}, ["NetworkPolicy"]),
    # As 0.1.0 had them.
    ({"gpus": "privileged", "nodeSelector": {"amem/node": None, "nvidia.com/gpu.present": "true"}, "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
      "allowIncompatibleUpgrade": False, "image": {"repository": "amem", "tag": "x"}}, []),
    ({"gpus": "none", "control": {"port": 7070, "secret": "amem-tls"}}, []),
)
# Values, and what Helm says of them: the value's name, or what to do.
BAD = (
    ({"pool": {"sizeGiB": "64GiB"}}, "sizeGiB"),
    ({"pool": {"size": 64}}, "size"),
    ({"image": {"digest": "sha256:0a1b"}}, "digest"),
    ({"isolation": "none"}, "isolation"),
    ({"settings": {"pool": {"size": "1GiB"}}}, "size"),
    ({"settings": {"pool": {"sise": "1GiB"}}}, "sise"),
    ({"settings": {"no_such_table": {"a": 1}}}, "no_such_table"),
    ({"settings": {"stage": {"a": {"policy": "demand"}}}}, "devices"),
    ({"settings": {"control": {"listen": "0.0.0.0:1"}}}, "control"),
    ({"metrics": {"port": 99999}}, "port"),
    ({"metrics": {"podMonitor": {"enabled": True}}}, "require metrics.port, for example 9464"),
    ({"metrics": {"alerts": {"enabled": True}}}, "require metrics.port"),
    ({"metrics": {"dashboard": {"enabled": True}}}, "require metrics.port"),
    ({"metrics": {"podMonitor": {"enable": True}}}, "enable"),
    ({"control": {"port": 7070}}, "control.port requires control.secret, a Secret with ca.crt, tls.crt and tls.key"),
    ({"control": {"secret": "tls"}}, "control.secret requires control.port"),
    ({"control": {"port": 7070, "secret": "tls"}, "metrics": {"port": 7070}}, "the same"),
    ({"networkPolicy": {"enabled": True}, "metrics": {"port": 9464}}, "networkPolicy.metricsFrom is empty"),
    ({"isolation": "userns", "hostPID": False}, "isolation: userns requires hostPID: true"),
    ({"isolation": "cgroup", "hostPID": False}, "isolation: cgroup requires hostPID: true"),
    ({"gpus": "all"}, "gpus"),
    ({"jobs": {"inject": True, "shimDir": ""}}, "jobs.inject requires jobs.shimDir"),
    ({"jobs": {"cdiDir": "/var/run/cdi", "shimDir": ""}}, "jobs.cdiDir requires jobs.shimDir"),
    ({"jobs": {"shimDir": "/run"}}, "jobs.shimDir: /run contains /run/amem-holder, the holder's folder"),
    ({"runtimeDir": "/srv/amem/run/", "jobs": {"shimDir": "/srv/amem"}}, "contains /srv/amem/run-holder"),
    ({"jobs": {"scope": "all"}}, "scope"),
    ({"seLinuxOptions": {"typ": "spc_t"}}, "typ"),
    ({"resources": {"amemd": {"memory": "1Gi"}}}, "memory"),
    ({"updateStrategy": {"type": "Recreate"}}, "type"),
    ({"drainSeconds": 0}, "drainSeconds"),
    ({"allowIncompatibleUpgrade": True}, "allowIncompatibleUpgrade: true was for every upgrade; it is now for one pair of versions"),
    ({"allowIncompatibleUpgrade": "0.2.0"}, "allowIncompatibleUpgrade"),
    ({"settings": {"deadlines": {"end": "5s"}}}, "end"),
    ({"runtimeDir": "run/amem"}, "runtimeDir"),
    ({"no_such_value": 1}, "no_such_value"),
)
OLD = ({"gpus": "claim"}, "1.33.5", "gpus: claim requires Kubernetes 1.34"), ({"jobs": {"inject": True}}, "1.35.2", "jobs.inject: true requires Kubernetes 1.36")


def documents(text):
    return [each for each in yaml.safe_load_all(text) if each]


def render(chart, values):
    """{template: text}, without what is for people alone."""
    texts = chart.render(values, name="amem", namespace="amem")
    return {name: text.strip("\n") + "\n" for name, text in sorted(texts.items()) if not name.endswith("NOTES.txt") and text.strip()}


def manifest(chart):
    """Without hooks, which are Helm's."""
    return "---\n".join([HEADER, *(text for text in render(chart, {}).values() if not any(map(upgrades.is_hook, documents(text))))])


def objects_of(folder, values=None):
    with helm_python.Chart.load(folder) as chart:
        return [each for text in render(chart, values or {}).values() for each in documents(text)]


def number(version):
    return tuple(map(int, version.split(".")))


def faults_of_objects(objects, versions):
    for each in objects:
        found = custom.faults_of_custom(each)
        yield from found or ()
        if each.get("kind") == "JobSet":
            yield from faults_of_objects(custom.jobs_of(each), versions)
        for version in () if found is not None else versions:
            if number(version) < number(FROM.get(each.get("kind"), "0")):
                continue
            try:
                kubernetes_validate.validate(each, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                yield f"{each.get('kind')} {each['metadata']['name']}, Kubernetes {version}: {'.'.join(map(str, error.path))}: {error.message}"


def faults_of_settings(objects, amemd):
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(settings_of(objects))
        file.flush()
        done = subprocess.run([amemd, "--check-config", "--config", file.name], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        yield f"amemd does not take its configuration: {done.stderr.strip()}\n{settings_of(objects)}"


def faults_of_ends(name, pod):
    """Of how the pod with amemd ends: it has the time to wait for an operation."""
    for container in containers_of(pod):
        if container["command"][0] != "amemd":
            continue
        words = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])
        if words[:2] != ["amemctl", "--timeout"] or words[3:] != ["wait", "idle"]:
            yield f"{name}: preStop of amemd is {words}"
            continue
        own = container["command"][container["command"].index("--deadlines-end") + 1] if "--deadlines-end" in container["command"] else "30s"
        waits = int(words[2].removesuffix("s")) + int(own.removesuffix("s"))
        if waits + 10 > pod.get("terminationGracePeriodSeconds", 30):
            yield f"{name}: amemd waits for {waits} s, and is killed after {pod.get('terminationGracePeriodSeconds', 30)} s"


def faults_of_probes(name, pod):
    """No probe ends amemd or its holder while they have something to lose. One of the start may where the jobs of the pod wait for it."""
    for container in containers_of(pod):
        killing = {"livenessProbe", *(() if container.get("restartPolicy") == "Always" else ("startupProbe",))} & set(container)
        if program_of(container) in ("amemd", "amem-holder") and killing:
            yield f"{name}: {sorted(killing)} may end {container['name']}"


def faults_of_restricted(pod):
    """What Pod Security's profile "restricted" asks of a pod, as far as these can miss it."""
    spec = pod["spec"]
    if not spec["securityContext"].get("runAsNonRoot") or "seccompProfile" not in spec["securityContext"]:
        yield "the pod is not runAsNonRoot with a seccompProfile"
    for flag in ("hostPID", "hostIPC", "hostNetwork"):
        if spec.get(flag):
            yield f"the pod has {flag}"
    for container in containers_of(spec):
        context = container.get("securityContext", {})
        if context.get("allowPrivilegeEscalation") is not False or context.get("capabilities") != {"drop": ["ALL"]}:
            yield f"container {container['name']} may gain powers"
    for volume in spec["volumes"]:
        if set(volume) - {"name", "emptyDir", "configMap", "secret", "projected", "csi", "ephemeral"}:
            yield f"volume {volume['name']} is {sorted(volume)}"


def containers_of(pod):
    return pod.get("initContainers", []) + pod["containers"]


def is_within(path, folder):
    return pathlib.PurePosixPath(folder) in (pathlib.PurePosixPath(path), *pathlib.PurePosixPath(path).parents)


def program_of(container):
    return container.get("command", [""])[0]


def faults_of_holder(name, pod, holder="/run/amem-holder"):
    """No container but the holder's and amemd's reaches the folder of the holder's socket: neither the volume, nor on the node the folder
    `holder`, what contains it, or what is in it."""
    containers = containers_of(pod)
    folders = {each["name"]: each.get("hostPath", {}).get("path") for each in pod.get("volumes", [])}
    secret = set()
    for each in containers:
        if program_of(each) != "amem-holder":
            continue
        socket = each["command"][each["command"].index("--socket") + 1]
        [mount] = [one for one in each["volumeMounts"] if is_within(socket, one["mountPath"])]
        secret.add(mount["name"])
        if folders[mount["name"]] not in (None, holder) or len(each["volumeMounts"]) != 1:
            yield f"{name}: the holder's socket is in {folders[mount['name']]}, and it mounts {each['volumeMounts']}"
        for amemd in containers:
            if program_of(amemd) == "amemd" and (amemd["command"][amemd["command"].index("--holder-socket") + 1] != socket or mount not in amemd["volumeMounts"]):
                yield f"{name}: amemd does not find its holder at {socket}"
    for each in containers:
        if program_of(each) in ("amem-holder", "amemd"):
            continue
        for mount in each.get("volumeMounts", []):
            path = folders[mount["name"]]
            if mount["name"] in secret or path and (is_within(holder, path) or is_within(path, holder)):
                yield f"{name}: container {each['name']} reaches the holder's folder by {mount}"


def faults_of_holders(values, objects):
    """The same of the chart, where holder and amemd are pods of their own."""
    folder = values.get("runtimeDir", "/run/amem").rstrip("/") + "-holder"
    pods = [each["spec"]["template"]["spec"] for each in objects if each["kind"] == "DaemonSet"]
    for pod in pods:
        yield from faults_of_holder(f"{values}", pod, folder)
        [path] = [each["hostPath"]["path"] for each in pod["volumes"] if each["name"] == "holder"]
        if path != folder or not any({"name": "holder", "mountPath": folder} in each["volumeMounts"] for each in pod["containers"]):
            yield f"{values}: holder and amemd do not meet in {folder}: {path}"
    if len({pod.get("hostPID", False) for pod in pods}) != 1:
        yield f"{values}: holder and amemd are in different PID namespaces"
    if f'holder_socket = "{folder}/holder.sock"' not in settings_of(objects):
        yield f"{values}: amemd does not find its holder: {settings_of(objects)}"


def faults_of_device(name, device, holder="/run/amem-holder"):
    """A CDI device gives no job the holder's folder."""
    for each in device["devices"]:
        for mount in each["containerEdits"]["mounts"]:
            if is_within(holder, mount["hostPath"]) or is_within(mount["hostPath"], holder):
                yield f"{name}: a job reaches the holder's folder by {mount}"


def leaves(values, path=()):
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def at(values, path):
    for key in path:
        if not isinstance(values, dict) or key not in values:
            return None
        values = values[key]
    return values


def faults_of_values(chart):
    """Each value is switched in one of the sets, and each setting is one of the schema."""
    for path, default in leaves(yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))):
        parents = [path[:length] for length in range(1, len(path) + 1)]
        if all(all(at(values, each) in (None, default) or isinstance(at(values, each), dict) and each != path and at(values, each) for each in parents)
               for values, _ in GOOD):
            yield f"no set of values has another {'.'.join(path)} than values.yaml"
    schema = json.loads((chart / "values.schema.json").read_text(encoding="utf-8"))
    settings = schema["properties"]["settings"]["properties"]
    known = {key if each == "" else f"{key}.{each}" for key, value in settings.items() if key != "stage"
             for each, its in value.get("properties", {"": value}).items() if its.get("$ref") != "#/$defs/retired"}
    page = (HERE.parents[1] / "docs" / "configuration.md").read_text(encoding="utf-8").partition("\n## amemd")[2].partition("\n## ")[0]
    table, _, stages = page.partition("\n### Stages")
    taken = {"runtime_dir", "holder", "holder_socket", "pool.size", "isolation.by", "deadlines.end", "metrics.listen", "control.listen", "control.tls"}
    documented = set(re.findall(r"^\| `([a-z_.]+)` \|", table, re.MULTILINE)) - taken
    if known != documented:
        yield f"values.schema.json and docs/configuration.md have not the same settings: {sorted(known ^ documented)}"
    keys = {key for key, its in schema["$defs"]["stage"]["properties"].items() if its.get("$ref") != "#/$defs/retired"}
    if keys != set(re.findall(r"^\| `([a-z_]+)` \|", stages, re.MULTILINE)):
        yield "values.schema.json and docs/configuration.md have not the same keys of a stage"


def faults_of_names(values, objects):
    """Labels, annotations and names are those of the values, and references lead to objects or volumes that are there."""
    name = values.get("fullnameOverride", "amem")
    for each in objects:
        meta = each["metadata"]
        if not meta["name"].startswith(name) and each["kind"] != "ServiceAccount":
            yield f"{values}: {each['kind']} is named {meta['name']}"
        for kind in "labels", "annotations":
            missing = set(values.get(kind, {}).items()) - set(meta.get(kind, {}).items())
            if missing:
                yield f"{values}: {each['kind']} {meta['name']} has not {kind} {missing}"
        if meta["labels"]["app.kubernetes.io/name"] != values.get("nameOverride", "amem") or meta["labels"]["helm.sh/chart"] != f"amem-{VERSION}":
            yield f"{values}: {each['kind']} {meta['name']} has the labels {meta['labels']}"
        if each["kind"] != "DaemonSet":
            continue
        template = each["spec"]["template"]
        pod, labels = template["spec"], template["metadata"]["labels"]
        if not set(values.get("podLabels", {}).items()) <= set(labels.items()) or \
           not set(values.get("podAnnotations", {}).items()) <= set(template["metadata"].get("annotations", {}).items()):
            yield f"{values}: the pods of {meta['name']} have not podLabels and podAnnotations"
        if not set(each["spec"]["selector"]["matchLabels"].items()) <= set(labels.items()):
            yield f"{values}: {meta['name']} does not select its own pods"
        volumes = {one["name"] for one in pod["volumes"]}
        for container in containers_of(pod):
            if not {mount["name"] for mount in container["volumeMounts"]} <= volumes:
                yield f"{values}: container {container['name']} mounts what is no volume"
            if values.get("seLinuxOptions") != container["securityContext"].get("seLinuxOptions"):
                yield f"{values}: container {container['name']} has not the SELinux options"
        made = {(one["kind"], one["metadata"]["name"]) for one in objects}
        wanted = {("ResourceClaimTemplate", claim["resourceClaimTemplateName"]) for claim in pod.get("resourceClaims", [])}
        wanted |= {("ServiceAccount", pod["serviceAccountName"])} - {("ServiceAccount", "default")}
        if not wanted <= made:
            yield f"{values}: {meta['name']} wants {wanted - made}, which the chart does not make"


def template_of(objects, component):
    [template] = [each["spec"]["template"] for each in objects if each["kind"] == "DaemonSet"
                  and each["metadata"]["labels"]["app.kubernetes.io/component"] == component]
    return template


def files_of(objects):
    """The files of amemd's pod, by their names in /etc/amem: each is an annotation of the pod itself."""
    template = template_of(objects, "amemd")
    [volume] = [each for each in template["spec"]["volumes"] if each["name"] == "config"]
    keys = {each["path"]: each["fieldRef"]["fieldPath"].removeprefix("metadata.annotations['").removesuffix("']") for each in volume["downwardAPI"]["items"]}
    return {path: template["metadata"]["annotations"][key] for path, key in keys.items()}


def settings_of(objects):
    return files_of(objects)["amemd.toml"]


def faults_of_files(values, objects):
    """A pod that lives for long starts its containers again with the files that it began with, whatever an upgrade changes."""
    for each in objects:
        for volume in each["spec"]["template"]["spec"]["volumes"] if each["kind"] == "DaemonSet" else ():
            if "configMap" in volume:
                yield f"{values}: the pods of {each['metadata']['name']} read the ConfigMap {volume['configMap']['name']}, which an upgrade changes under them"
    speaks = (HERE / "amem" / upgrades.SPEAKS).read_text(encoding="utf-8").strip()
    said = [template_of(objects, component)["metadata"]["annotations"].get("amem/speaks") for component in ("amemd", "holder")]
    if said[0] != speaks or said[1] not in speaks.split(", ") or not said[1].startswith("holder "):
        yield f"{values}: the pods say that they speak {said}"


def amemd_of(objects):
    pod = template_of(objects, "amemd")["spec"]
    return pod, next(each for each in pod["containers"] if each["name"] == "amemd")


def faults_of_amemd(values, objects):
    pod, amemd = amemd_of(objects)
    image = {"repository": "amem", "tag": "", "digest": "", **values.get("image", {})}
    wanted = f"{image['repository']}@{image['digest']}" if image["digest"] else f"{image['repository']}:{image['tag'] or VERSION}"
    images = {one["image"] for each in objects if each["kind"] in ("DaemonSet", "Job") for one in containers_of(each["spec"]["template"]["spec"])}
    if images != {wanted}:
        yield f"{values}: the images are {images}, not {wanted}"
    pool = values.get("pool", {}).get("sizeGiB", 64)
    if int(amemd["resources"]["limits"]["memory"].removesuffix("Gi")) <= pool:
        yield f"{values}: the pool of {pool} GiB is not smaller than the pod's limit, {amemd['resources']['limits']['memory']}"
    if amemd["readinessProbe"]["exec"]["command"][-2:] != ["wait", "pool"]:
        yield f"{values}: readiness does not say whether the pool is there"
    if amemd["terminationMessagePolicy"] != "FallbackToLogsOnError":
        yield f"{values}: kubectl describe does not say why amemd does not start, as on a node without GPUs"
    if pod.get("hostPID", False) != values.get("hostPID", True):
        yield f"{values}: hostPID is {pod.get('hostPID')}"
    gpus = values.get("gpus", "environment")
    variable = next((each["value"] for each in amemd["env"] if each["name"] == "NVIDIA_VISIBLE_DEVICES"), "all")
    privileged = amemd["securityContext"].get("privileged", False)
    is_so = (variable, privileged or values.get("isolation") == "cgroup", "resourceClaims" in pod)
    if is_so != {"environment": ("all", values.get("isolation") == "cgroup", False), "privileged": ("all", True, False), "claim": ("void", False, True),
                 "mounts": ("/var/run/nvidia-container-devices", False, False), "none": ("void", False, False)}[gpus]:
        yield f"{values}: gpus {gpus}: {is_so}"
    ports = {each["name"]: each for each in amemd.get("ports", [])}
    control = values.get("control", {})
    if ("control" in ports) != bool(control) or control and ("hostPort" in ports["control"]) != control.get("hostPort", True):
        yield f"{values}: the ports are {ports}"
    settings = settings_of(objects)
    if control:
        [tls] = [each["secret"] for each in pod["volumes"] if "secret" in each]
        [mount] = [each["mountPath"] for each in amemd["volumeMounts"] if each["name"] == "tls"]
        if tls["secretName"] != control["secret"] or [each["key"] for each in tls["items"]] != ["ca.crt", "tls.crt", "tls.key"] or \
           f'tls = "{mount}"' not in settings or f'listen = "0.0.0.0:{control["port"]}"' not in settings:
            yield f"{values}: TLS is {tls}, {settings}"


def faults_of_monitoring(values, objects):
    by_kind = {each["kind"]: each for each in objects}
    _, amemd = amemd_of(objects)
    if "PodMonitor" in by_kind:
        [endpoint] = by_kind["PodMonitor"]["spec"]["podMetricsEndpoints"]
        selected = by_kind["PodMonitor"]["spec"]["selector"]["matchLabels"]
        if endpoint["port"] not in [each["name"] for each in amemd["ports"]] or {"targetLabel": "job", "replacement": "amem"} not in endpoint["relabelings"]:
            yield f"{values}: the PodMonitor scrapes {endpoint}"
        [template] = [each["spec"]["template"] for each in objects if each["kind"] == "DaemonSet"
                      and set(selected.items()) <= set(each["spec"]["template"]["metadata"]["labels"].items())]
        if any(each.startswith("prometheus.io/") for each in template["metadata"]["annotations"]):
            yield f"{values}: pods are scraped twice"
    if "PrometheusRule" in by_kind:
        alerts = by_kind["PrometheusRule"]["spec"]
        text = (HERE.parent / "grafana" / "alerts.yaml").read_text(encoding="utf-8")
        base = values["metrics"]["alerts"]["runbooks"]
        if alerts != yaml.safe_load(re.sub('runbook_url: "[^#]*#', f'runbook_url: "{base}#', text)):
            yield f"{values}: the alerts are not those of alerts.yaml"
        for rule in alerts["groups"][0]["rules"]:
            if rule["annotations"].get("runbook_url") != f"{base}#{rule['alert'].lower()}":
                yield f"{values}: {rule['alert']} has the runbook_url {rule['annotations'].get('runbook_url')}"
        [board] = [json.loads(each["data"]["amem.json"]) for each in objects if each["kind"] == "ConfigMap" and "amem.json" in each["data"]]
        if board != json.loads((HERE.parent / "grafana" / "amem.json").read_text(encoding="utf-8")):
            yield f"{values}: the dashboard is not amem.json"
    if "NetworkPolicy" in by_kind:
        spec = by_kind["NetworkPolicy"]["spec"]
        opened = {port["port"] for rule in spec.get("ingress", []) for port in rule["ports"]}
        if opened != {each["name"] for each in amemd.get("ports", [])} or not all(rule["from"] for rule in spec.get("ingress", [])):
            yield f"{values}: the NetworkPolicy is {spec}"


def faults_of_jobs(values, objects):
    """Of what a job's pod gets: by the policy, and by the CDI device."""
    pod, _ = amemd_of(objects)
    for container in pod.get("initContainers", []):
        yield from (f"{values}: {fault}" for fault in faults_of_for_jobs(container, objects))
    by_kind = {each["kind"]: each for each in objects}
    if "MutatingAdmissionPolicy" not in by_kind:
        return
    mutating, validating = by_kind["MutatingAdmissionPolicy"], by_kind["ValidatingAdmissionPolicy"]
    if any(by_kind[f"{each['kind']}Binding"]["spec"]["policyName"] != each["metadata"]["name"] for each in (mutating, validating)) or \
       by_kind["ValidatingAdmissionPolicyBinding"]["spec"]["validationActions"] != ["Deny"]:
        yield f"{values}: a binding is another policy's"
    run, scope, folder = values.get("runtimeDir", "/run/amem"), values.get("jobs", {}).get("scope", "heap"), values["jobs"].get("shimDir", "/var/lib/amem")
    bare = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    if policy.admitted(mutating, bare) != bare or policy.refusals(validating, bare):
        yield f"{values}: the policy changes a pod without the label"
    bare["metadata"].update(labels={"amem/group": "train"}, annotations={"other": "x"})
    own = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"amem/group": "train", JOB: "run-7"},
           "annotations": {"amem/scope": "nccl", "amem/stage": "night"}},
           "spec": {"securityContext": {"runAsUser": 1000, "supplementalGroups": [7]}, "volumes": [{"name": "data", "emptyDir": {}}],
                    "containers": [{"name": "a", "image": "i", "env": [{"name": "LD_PRELOAD", "value": "mine.so"}],
                                    "volumeMounts": [{"name": "data", "mountPath": "/d"}]}, {"name": "b", "image": "i"}]}}
    for before, groups, preload, expected in ((bare, [936], SHIM, scope), (own, [7, 936], f"{SHIM}:mine.so", "nccl")):
        after = policy.admitted(mutating, before)
        yield from (f"{values}: a pod is refused: {each}" for each in policy.refusals(validating, after))
        if policy.admitted(mutating, after) != after:
            yield f"{values}: the policy changes its own pod again"
        yield from faults_of_objects([after], ("1.37",))
        yield from faults_of_holder(f"{values}, a job", after["spec"], f"{run}-holder")
        variables = {each["name"]: each["value"] for each in after["spec"]["containers"][0]["env"]}
        wanted = {"AMEM_GROUP": "train", "AMEM_SCOPE": expected, "AMEM_REQUIRED": "1", "AMEM_RUNTIME_DIR": run, "LD_PRELOAD": preload, "NCCL_CUMEM_ENABLE": "1"}
        wanted |= {"AMEM_JOB": "run-7", "AMEM_STAGE": "night"} if before is own else {}
        wanted |= {"AMEM_BROKER_UID": "65534"} if values.get("isolation") == "userns" else {}
        paths = {each["name"]: (each["hostPath"]["path"], each["hostPath"]["type"]) for each in after["spec"]["volumes"] if "hostPath" in each}
        mounts = [{each["name"]: each["mountPath"] for each in one["volumeMounts"] if each.get("readOnly")} for one in after["spec"]["containers"]]
        # A node without the shim's file does not start the container; from a folder without it ld.so would go on without the shim.
        if variables != wanted or paths != {"amem-run": (run, "Directory"), "amem-shim-file": (f"{folder}/libamem_shim.so", "File")} or \
           after["spec"]["securityContext"]["supplementalGroups"] != groups or any(each != {"amem-run": run, "amem-shim-file": SHIM} for each in mounts):
            yield f"{values}: the policy makes {after}"
    yield from (f"{values}: {fault}" for fault in faults_of_preload(mutating, validating))


def faults_of_preload(mutating, validating):
    """Every container that is chosen runs with the shim, before what it preloads itself, or its pod is refused by name."""
    def preload(*values, **more):
        return {"env": [{"name": "A", "value": "b"}, *({"name": "LD_PRELOAD", **value} for value in values)], **more}
    secret, sidecar = {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}, {"restartPolicy": "Always"}
    cases = (  # label, amem/containers or None, containers, init containers, the LD_PRELOADs that come out or what is refused
        ("g", None, {"a": {}, "b": {"env": []}}, {}, {"a": SHIM, "b": SHIM}),
        ("g", None, {"a": preload({"value": "x.so"}), "b": preload()}, {}, {"a": f"{SHIM}:x.so", "b": SHIM}),
        ("g", None, {"a": preload({"value": "x.so y.so:z.so"})}, {}, {"a": f"{SHIM}:x.so y.so:z.so"}),
        ("g", None, {"a": preload({"value": SHIM}), "b": preload({"value": f"x.so:{SHIM}"}), "c": preload({"value": "/opt/libamem_shim.so"})}, {},
         {"a": SHIM, "b": f"x.so:{SHIM}", "c": "/opt/libamem_shim.so"}),
        ("g", None, {"a": {}}, {"i": {}, "s": sidecar}, {"a": SHIM, "i": None, "s": None}),
        ("g", "a, s", {"a": {}, "b": preload(secret)}, {"s": {**preload({"value": "x.so"}), **sidecar}}, {"a": SHIM, "b": secret, "s": f"{SHIM}:x.so"}),
        ("g", "b", {"a": preload({"value": ""}), "b": {}}, {}, {"b": SHIM}),
        ("g", None, {"a": preload(secret), "b": {}}, {}, "LD_PRELOAD of container a is empty, comes from valueFrom"),
        ("g", None, {"a": {}, "b": preload({"value": ""})}, {}, "LD_PRELOAD of container b is empty"),
        ("g", None, {"a": preload({})}, {}, "LD_PRELOAD of container a is empty"),
        ("g", "s", {"a": {}}, {"s": {**preload(secret), **sidecar}}, "LD_PRELOAD of container s"),
        ("g", "a,nobody", {"a": {}}, {}, 'names "nobody", and the pod has no such container'),
        ("g", "", {"a": {}}, {}, 'names "", and the pod has no such container'),
        ("", None, {"a": {}}, {}, "the label amem/group is empty"))
    for label, chosen, containers, before, wanted in cases:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"amem/group": label}, "annotations": {}},
               "spec": {"containers": [{"name": name, "image": "i", **each} for name, each in containers.items()]}}
        if chosen is not None:
            pod["metadata"]["annotations"]["amem/containers"] = chosen
        if before:
            pod["spec"]["initContainers"] = [{"name": name, "image": "i", **each} for name, each in before.items()]
        after = policy.admitted(mutating, pod)
        said = policy.refusals(validating, after)
        if isinstance(wanted, str):
            if len(said) != 1 or wanted not in said[0]:
                yield f"a pod with {label!r}, {chosen!r}, {containers}, {before} is not refused with \"{wanted}\": {said}"
            continue
        found = {one["name"]: next((each for each in one.get("env", []) if each["name"] == "LD_PRELOAD"), {}) for one in containers_of(after["spec"])}
        found = {name: each.get("value", {"valueFrom": each["valueFrom"]} if "valueFrom" in each else None) for name, each in found.items()}
        mounted = {one["name"] for one in containers_of(after["spec"]) if any(each["mountPath"] == SHIM for each in one.get("volumeMounts", []))}
        brokered = {name for name, value in wanted.items() if isinstance(value, str)}
        if said or any(found[name] != value for name, value in wanted.items()) or mounted != brokered or policy.admitted(mutating, after) != after:
            yield f"a pod with {label!r}, {chosen!r}, {containers}, {before}: {said}, LD_PRELOAD is {found}, the shim is in {mounted}, not {wanted}"
        for one in after["spec"]["containers"]:  # as another webhook may do afterwards
            if one["name"] in brokered:
                one["env"] = [{"name": "LD_PRELOAD", "value": "x.so"}]
        if not any("has lost the shim again" in each for each in policy.refusals(validating, after)):
            yield f"a pod whose shim another webhook takes away is not refused: {after}"


def faults_of_for_jobs(container, objects):
    """Of the init container that puts shim and CDI device on the node, twice: a shim that a job has loaded stays as it is."""
    with tempfile.TemporaryDirectory() as folder:
        shim, there = pathlib.Path(folder, "built.so"), {}
        for mount in container["volumeMounts"]:
            there[mount["mountPath"]] = pathlib.Path(folder, mount["name"])
            there[mount["mountPath"]].mkdir()
        device = files_of(objects).get("cdi.yaml")
        if device:
            (there["/etc/amem"] / "cdi.yaml").write_text(device, encoding="utf-8")
        def replaced(word):
            for path, own in there.items():
                if word == path or word.startswith(f"{path}/"):
                    return str(own) + word.removeprefix(path)
            return word
        loaded = None
        for content in "first", "second":
            shim.write_text(content, encoding="utf-8")
            done = subprocess.run([replaced(word) for word in container["command"]], env={"PATH": os.defpath, "AMEM_SHIM": str(shim)}, stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=60, check=False)
            if done.returncode != 0:
                yield f"for-jobs ends with {done.returncode}: {done.stderr}"
                return
            loaded = loaded or open(there["/shim"] / "libamem_shim.so", encoding="utf-8")
        with loaded:
            if loaded.read() != "first" or (there["/shim"] / "libamem_shim.so").read_text(encoding="utf-8") != "second":
                yield "for-jobs writes over a shim that a job has loaded"
        if os.listdir(there["/shim"]) != ["libamem_shim.so"]:
            yield f"for-jobs leaves {os.listdir(there['/shim'])}"
        if not device:
            return
        spec = yaml.safe_load((there["/cdi"] / "amem.yaml").read_text(encoding="utf-8"))
        [node] = spec["devices"]
        variables = dict(each.split("=", 1) for each in node["containerEdits"]["env"])
        made = {each["mountPath"]: each for each in container["volumeMounts"]}
        volumes = {each["name"]: each.get("hostPath", {}).get("path") for each in amemd_of(objects)[0]["volumes"]}
        mounts = {each["hostPath"]: each["containerPath"] for each in node["containerEdits"]["mounts"] if "ro" in each["options"]}
        if (spec["cdiVersion"], f"{spec['kind']}={node['name']}") != ("0.3.0", "amem/job=node") or \
           mounts != {volumes["run"]: volumes["run"], f"{volumes[made['/shim']['name']]}/libamem_shim.so": SHIM} or \
           set(variables) != {"LD_PRELOAD", "AMEM_RUNTIME_DIR", "AMEM_SCOPE", "AMEM_REQUIRED", "NCCL_CUMEM_ENABLE"}:
            yield f"the CDI device is {spec}"


def in_a_cluster(chart, values, template, asks, answer):
    """The chart's texts, or what Helm says, where the cluster gives `answer` to what a template asks it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder, "amem")
        shutil.copytree(chart, copy)
        file = copy / "templates" / template
        text = file.read_text(encoding="utf-8")
        assert asks in text, f"{template} does not ask for {asks}"
        file.write_text(text.replace(asks, answer), encoding="utf-8")
        with helm_python.Chart.load(copy) as other:
            try:
                return "".join(other.render(values, name="amem", namespace="amem").values())
            except helm_python.HelmError as error:
                return str(error)


def faults_of_clusters(chart):
    """What a cluster is too old for, and a Secret without a key, are refused. A cluster without nodes for amem is said."""
    for values, version, words in OLD:
        if words not in in_a_cluster(chart, values, "_helpers.tpl", "$.Capabilities.KubeVersion.Version", f'"v{version}"'):
            yield f"{values}: is taken by Kubernetes {version}"
    several, asks = {"control": {"port": 7070, "secret": "node-keys"}}, 'lookup "v1" "Secret" $.Release.Namespace .'
    for keys, refused in (("dict", True), ('dict "ca.crt" "" "tls.crt" ""', True), ('dict "ca.crt" "" "tls.crt" "" "tls.key" ""', False)):
        text = in_a_cluster(chart, several, "_helpers.tpl", asks, f'dict "data" ({keys})')
        if ("the Secret node-keys has no" in text) != refused:
            yield f"a Secret with {keys}: {text[:300]}"
    for labels, said in (('dict "amem/node" "true"', False), ('dict "other" "true"', True), ("dict", True)):
        text = in_a_cluster(chart, {}, "NOTES.txt", '(lookup "v1" "Node" "" "")', f'(dict "items" (list (dict "metadata" (dict "labels" ({labels})))))')
        if ("WARNING: no node has these labels" in text) != said:
            yield f"a node with the labels {labels}: {text[:300]}"
    exists = {"operator": "Exists"}
    with helm_python.Chart.load(chart) as loaded:
        for tolerations, said in (([exists], False), ([{"key": "a", **exists}, {"effect": "NoExecute", **exists}], False), ([], True),
                                  ([{"key": "nvidia.com/gpu", **exists}], True), ([{"effect": "NoSchedule", **exists}], True),
                                  ([{"effect": "NoExecute", "tolerationSeconds": 60, **exists}], True)):
            [text] = [text for name, text in loaded.render({"tolerations": tolerations}, name="amem", namespace="amem").items() if name.endswith("NOTES.txt")]
            if ("WARNING: tolerations do not take every taint" in text) != said:
                yield f"{tolerations}: Helm says {text}"


def faults_of_cdi(chart):
    """deploy/cdi.yaml, for nodes with packages, is the chart's device with the package's folder."""
    values = {"jobs": {"cdiDir": "/var/run/cdi", "shimDir": "/usr/lib/amem"}}
    made = yaml.safe_load(files_of(objects_of(chart, values))["cdi.yaml"])
    device = yaml.safe_load((HERE.parent / "cdi.yaml").read_text(encoding="utf-8"))
    if device != made:
        yield f"deploy/cdi.yaml is not the chart's device: {made}"
    yield from faults_of_device("deploy/cdi.yaml", device)


def without_order(pod):
    """A pod whose lists have the order of their names, and without the comments of a person."""
    spec = json.loads(json.dumps(pod["spec"]))
    for container in spec["containers"]:
        for name in "env", "volumeMounts":
            container[name] = sorted(container.get(name, []), key=lambda each: each["name"])
    spec["volumes"] = sorted(spec.get("volumes", []), key=lambda each: each["name"])
    return spec


def faults_of_turns(chart):
    """turns-by-hand.yaml is what the policy makes of turns.yaml."""
    [rule] = [each for each in objects_of(chart, {"jobs": {"inject": True}}) if each["kind"] == "MutatingAdmissionPolicy"]
    pods = [{each["metadata"]["name"]: each for each in documents((HERE / "examples" / name).read_text(encoding="utf-8")) if each["kind"] == "Pod"}
            for name in ("turns.yaml", "turns-by-hand.yaml")]
    for name, by_hand in pods[1].items():
        made = without_order(policy.admitted(rule, pods[0][name]))
        if made != without_order(by_hand):
            yield f"turns-by-hand.yaml: {name} is not what the policy makes: {made}"


def faults_of_speaks(chart, amemd):
    done = subprocess.run([amemd, "--speaks"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True)
    if done.stdout.strip() != (chart / upgrades.SPEAKS).read_text(encoding="utf-8").strip():
        yield f"amemd speaks \"{done.stdout.strip()}\", and the chart does not have it: amemd --speaks > amem/{upgrades.SPEAKS}, then check.sh --render"


def faults(amemd):
    path = HERE / "amem"
    if amemd:
        yield from faults_of_speaks(path, amemd)
    report = helm_python.lint(path, strict=True)
    for message in report["messages"]:
        if message["severity"] > 1:  # 1: Helm would like an icon
            yield f"helm lint: {message}"
    with helm_python.Chart.load(path) as chart:
        if (chart.version, chart.metadata["appVersion"]) != (VERSION, VERSION):
            yield f"Chart.yaml has not the version {VERSION}"
        if MANIFEST.read_text(encoding="utf-8") != manifest(chart):
            yield "amem.yaml is not what the chart renders: check.py --render > amem.yaml"
        for values, more in GOOD:
            objects = [each for text in render(chart, values).values() for each in documents(text)]
            if sorted(each["kind"] for each in objects if not upgrades.is_hook(each)) != sorted(["DaemonSet", "DaemonSet", *more]):
                yield f"{values}: renders {[each['kind'] for each in objects]}"
            yield from faults_of_objects(objects, [each for each in CHART_FOR if values.get("gpus") != "claim" or number(each) >= (1, 34)])
            for look in faults_of_files, faults_of_names, faults_of_amemd, faults_of_holders, faults_of_monitoring, faults_of_jobs:
                yield from look(values, objects)
            for each in objects:
                if each["kind"] == "DaemonSet":
                    yield from faults_of_ends(f"{values}", each["spec"]["template"]["spec"])
                    yield from faults_of_probes(f"{values}", each["spec"]["template"]["spec"])
                    strategy = values.get("updateStrategy") if each["metadata"]["labels"]["app.kubernetes.io/component"] == "amemd" else None
                    if each["spec"]["updateStrategy"] != (strategy or {"type": "OnDelete"}):
                        yield f"{values}: {each['metadata']['name']} is updated by {each['spec']['updateStrategy']}"
            if amemd:
                yield from faults_of_settings(objects, amemd)
        for values, words in BAD:
            try:
                chart.render(values, name="amem", namespace="amem")
                yield f"{values}: is taken, and should be refused"
            except helm_python.HelmError as error:
                if words not in str(error):
                    yield f"{values}: is refused without \"{words}\": {error}"
    yield from faults_of_values(path)
    yield from faults_of_clusters(path)
    yield from faults_of_turns(path)
    yield from faults_of_cdi(path)
    yield from upgrades.faults(path, objects_of)
    for example in sorted((HERE / "examples").glob("*.yaml")):
        text = example.read_text(encoding="utf-8")
        for fault in faults_of_objects(documents(text), EXAMPLES_FOR):
            yield f"{example.name}: {fault}"
        for each in documents(text):
            pods = [each] if each["kind"] == "Pod" else [job["spec"]["template"] for job in custom.jobs_of(each)] if each["kind"] == "JobSet" else []
            for pod in pods:
                yield from faults_of_holder(example.name, pod["spec"])
                yield from faults_of_probes(example.name, pod["spec"])
                if example.name in ("sidecar.yaml", "jobset.yaml"):
                    yield from (f"{example.name}: {fault}" for fault in faults_of_restricted(pod))
                    yield from faults_of_ends(example.name, pod["spec"])


def main(arguments):
    if arguments == ["--render"]:
        with helm_python.Chart.load(HERE / "amem") as chart:
            print(manifest(chart), end="")
        return 0
    if arguments[:1] == ["--archive"]:
        with helm_python.Chart.load(arguments[1]) as chart:
            if (chart.version, chart.metadata["appVersion"]) != (VERSION, VERSION) or manifest(chart) != MANIFEST.read_text(encoding="utf-8"):
                sys.exit(f"check.py: {arguments[1]} is not the chart of version {VERSION} that renders amem.yaml")
        print(f"check.py: Helm reads {arguments[1]} as the chart")
        return 0
    amemd = arguments[0] if arguments else None
    found = list(faults(amemd))
    for fault in found:
        print(f"check.py: {fault}", file=sys.stderr)
    if not found:
        print(f"check.py: the chart with {len(GOOD)} sets of values, and the examples, are as Helm and Kubernetes want them"
              + ("" if amemd else "; no amemd has read the configurations"))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
