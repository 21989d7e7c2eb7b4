#!/usr/bin/env python3
"""Reads the chart as Helm does, and what it renders and the examples as Kubernetes does. Needs helm-python-sdk, kubernetes-validate.

check.py [AMEMD]: AMEMD is the program that reads the configurations, where there is one. `check.py --render` prints the chart's
manifests, which are amem.yaml.
"""
import pathlib
import subprocess
import sys
import tempfile

import helm_python
import kubernetes_validate
import yaml

HERE = pathlib.Path(__file__).resolve().parent
VERSION = (HERE.parents[1] / "VERSION").read_text(encoding="utf-8").strip()
MANIFEST = HERE / "amem.yaml"
# The oldest that the chart says it is for, the one of resource claims, and the newest known here.
CHART_FOR, EXAMPLES_FOR = ("1.29", "1.34", "1.37"), ("1.34", "1.37")
HEADER = """\
# amemd on each GPU node, for kubectl apply, as the chart beside it has it with its own values: check.py --render.
apiVersion: v1
kind: Namespace
metadata:
  name: amem
  labels:
    pod-security.kubernetes.io/enforce: privileged  # hostPath and hostPID
"""
GOOD = (
    {},
    {"isolation": "cgroup", "metrics": {"port": 9464}},
    {"isolation": "userns", "runtimeClassName": "", "nodeSelector": {}, "tolerations": [], "priorityClassName": ""},
    {"settings": {"guests": "refuse", "quotas": {"pool": "100%", "sessions": 64}, "swap": {"duplex": False}, "log": {"format": "json"}},
     "pool": {"sizeGiB": 512}, "runtimeDir": "/run/other", "image": {"repository": "r.example:5000/amem", "tag": "x"},
     "imagePullSecrets": [{"name": "pull"}], "affinity": {"nodeAffinity": {}}},
)
BAD = (
    {"pool": {"sizeGiB": "64GiB"}},
    {"pool": {"size": 64}},
    {"isolation": "none"},
    {"settings": {"pool": {"size": "1GiB"}}},
    {"metrics": {"port": 99999}},
    {"runtimeDir": "run/amem"},
    {"no_such_value": 1},
)


def documents(text):
    return [each for each in yaml.safe_load_all(text) if each]


def render(chart, values):
    """{template: text}, without what is for people alone."""
    texts = chart.render(values, name="amem", namespace="amem")
    return {name: text.strip("\n") + "\n" for name, text in sorted(texts.items()) if not name.endswith("NOTES.txt") and text.strip()}


def manifest(chart):
    return "---\n".join([HEADER, *render(chart, {}).values()])


def faults_of_objects(objects, versions):
    for each in objects:
        for version in versions:
            try:
                kubernetes_validate.validate(each, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                yield f"{each.get('kind')} {each['metadata']['name']}, Kubernetes {version}: {'.'.join(map(str, error.path))}: {error.message}"


def faults_of_settings(objects, amemd):
    for each in objects:
        if each["kind"] != "ConfigMap":
            continue
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(each["data"]["amemd.toml"])
            file.flush()
            done = subprocess.run([amemd, "--check-config", "--config", file.name], capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            yield f"amemd does not take its configuration: {done.stderr.strip()}\n{each['data']['amemd.toml']}"


def faults_of_restricted(pod):
    """What Pod Security's profile "restricted" asks of a pod, as far as these can miss it."""
    spec = pod["spec"]
    if not spec["securityContext"].get("runAsNonRoot") or "seccompProfile" not in spec["securityContext"]:
        yield "the pod is not runAsNonRoot with a seccompProfile"
    for flag in ("hostPID", "hostIPC", "hostNetwork"):
        if spec.get(flag):
            yield f"the pod has {flag}"
    for container in spec["initContainers"] + spec["containers"]:
        context = container.get("securityContext", {})
        if context.get("allowPrivilegeEscalation") is not False or context.get("capabilities") != {"drop": ["ALL"]}:
            yield f"container {container['name']} may gain powers"
    for volume in spec["volumes"]:
        if set(volume) - {"name", "emptyDir", "configMap", "secret", "projected", "csi", "ephemeral"}:
            yield f"volume {volume['name']} is {sorted(volume)}"


def faults(amemd):
    path = HERE / "amem"
    report = helm_python.lint(path, strict=True)
    for message in report["messages"]:
        if message["severity"] > 1:  # 1: Helm would like an icon
            yield f"helm lint: {message}"
    with helm_python.Chart.load(path) as chart:
        if (chart.version, chart.metadata["appVersion"]) != (VERSION, VERSION):
            yield f"Chart.yaml has not the version {VERSION}"
        if MANIFEST.read_text(encoding="utf-8") != manifest(chart):
            yield "amem.yaml is not what the chart renders: check.py --render > amem.yaml"
        for values in GOOD:
            objects = [each for text in render(chart, values).values() for each in documents(text)]
            if {each["kind"] for each in objects} != {"ConfigMap", "DaemonSet"} or len(objects) != 3:
                yield f"{values}: renders {[each['kind'] for each in objects]}"
            yield from faults_of_objects(objects, CHART_FOR)
            if amemd:
                yield from faults_of_settings(objects, amemd)
        for values in BAD:
            try:
                chart.render(values, name="amem", namespace="amem")
                yield f"{values}: is taken, and should be refused"
            except helm_python.HelmError:
                pass
    for example in sorted((HERE / "examples").glob("*.yaml")):
        text = example.read_text(encoding="utf-8")
        for fault in faults_of_objects(documents(text), EXAMPLES_FOR):
            yield f"{example.name}: {fault}"
        if text.count("image: amem:") != text.count(f"image: amem:{VERSION}\n"):
            yield f"{example.name}: has not amem:{VERSION}"
    for each in documents((HERE / "examples" / "sidecar.yaml").read_text(encoding="utf-8")):
        if each["kind"] == "Pod":
            yield from (f"sidecar.yaml: {fault}" for fault in faults_of_restricted(each))


def main(arguments):
    if arguments == ["--render"]:
        with helm_python.Chart.load(HERE / "amem") as chart:
            print(manifest(chart), end="")
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
