#!/usr/bin/env python3
"""Reads the chart as Helm does, and what it renders and the examples as Kubernetes does. Needs helm-python-sdk, kubernetes-validate.

check.py [AMEMD]: AMEMD is the program that reads the configurations, where there is one. `check.py --render` prints the chart's
manifests, which are amem.yaml.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import helm_python
import kubernetes_validate
import yaml

HERE = pathlib.Path(__file__).resolve().parent
VERSION = (HERE.parents[1] / "VERSION").read_text(encoding="utf-8").strip()
MANIFEST = HERE / "amem.yaml"
SPEAKS = pathlib.Path("files", "speaks")  # in the chart
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
    {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}}, "drainSeconds": 120,
     "allowIncompatibleUpgrade": True, "settings": {"deadlines": {"save": "90s"}}},
)
BAD = (
    {"pool": {"sizeGiB": "64GiB"}},
    {"pool": {"size": 64}},
    {"isolation": "none"},
    {"settings": {"pool": {"size": "1GiB"}}},
    {"metrics": {"port": 99999}},
    {"updateStrategy": {"type": "Recreate"}},
    {"drainSeconds": 0},
    {"settings": {"deadlines": {"end": "5s"}}},
    {"runtimeDir": "run/amem"},
    {"no_such_value": 1},
)


def documents(text):
    return [each for each in yaml.safe_load_all(text) if each]


def render(chart, values):
    """{template: text}, without what is for people alone."""
    texts = chart.render(values, name="amem", namespace="amem")
    return {name: text.strip("\n") + "\n" for name, text in sorted(texts.items()) if not name.endswith("NOTES.txt") and text.strip()}


def is_hook(each):
    return "helm.sh/hook" in each["metadata"].get("annotations", {})


def manifest(chart):
    """Without hooks, which are Helm's."""
    return "---\n".join([HEADER, *(text for text in render(chart, {}).values() if not any(map(is_hook, documents(text))))])


def objects_of(folder, values=None):
    with helm_python.Chart.load(folder) as chart:
        return [each for text in render(chart, values or {}).values() for each in documents(text)]


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


def may_upgrade(running, following, image):
    """What the hook among the objects `following` says of the objects `running`, in an image whose amemd speaks `image`: exit status
    and text."""
    [hook] = filter(is_hook, following)
    pod = hook["spec"]["template"]["spec"]
    [container], [volume] = pod["containers"], pod["volumes"]
    [mount] = container["volumeMounts"]
    with tempfile.TemporaryDirectory() as folder:
        programs, mounted = pathlib.Path(folder, "bin"), pathlib.Path(folder, "mounted")
        programs.mkdir()
        mounted.mkdir()
        (programs / "amemd").write_text(f"#!/bin/sh\n[ \"$*\" = --speaks ] && printf '%s\\n' '{image}'\n", encoding="utf-8")
        (programs / "amemd").chmod(0o755)
        for each in running:  # as the kubelet mounts it, before Helm changes it
            if each["kind"] == "ConfigMap" and each["metadata"]["name"] == volume["configMap"]["name"]:
                for name, text in each["data"].items():
                    (mounted / name).write_text(text, encoding="utf-8")
        command = [str(mounted) if word == mount["mountPath"] else word for word in container["command"]]
        done = subprocess.run(command, env={"PATH": f"{programs}:{os.defpath}"}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
    return done.returncode, done.stdout


def faults_of_upgrades(chart):
    """Of the hook, between versions of the chart."""
    now = (chart / SPEAKS).read_text(encoding="utf-8").strip()
    later = "session 1000, holder 1, amem record 1"
    with tempfile.TemporaryDirectory() as folder:
        def version(name, speaks, stored=True):
            copy = pathlib.Path(folder, name)
            shutil.copytree(chart, copy)
            (copy / SPEAKS).write_text(speaks + "\n", encoding="utf-8")
            if not stored:  # as the chart was before
                file = copy / "templates" / "configmap.yaml"
                lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
                file.write_text("".join(line for line in lines if not line.startswith("  speaks:")), encoding="utf-8")
            return objects_of(copy)

        this, same, other, silent = version("this", now), version("same", now), version("other", later), version("silent", now, stored=False)
        changed = objects_of(chart, {"pool": {"sizeGiB": 1}, "metrics": {"port": 9464}})
        for name, running, following, image, status, words in (
                ("the same protocols", this, same, now, 0, ("as that of the running release does",)),
                ("other values", this, changed, now, 0, ("as that of the running release does",)),
                ("an installation", [], this, now, 0, ("there is no running release",)),
                ("other protocols", this, other, later, 1, (now, later, "jobs that run would be lost", "allowIncompatibleUpgrade")),
                ("a rollback to other protocols", other, this, now, 1, (now, later, "jobs that run would be lost")),
                ("a release that does not say", silent, this, now, 1, ("the running release does not say", "allowIncompatibleUpgrade")),
                ("an image of another version", this, same, later, 1, (now, later, "chart and image of one version")),
                ("an installation of another image", [], this, later, 1, ("chart and image of one version",))):
            code, text = may_upgrade(running, following, image)
            missing = [each for each in words if each not in text]
            if code != status or missing:
                yield f"upgrade, {name}: the hook ends with {code}, not {status}, and does not say {missing}: {text}"


def faults_of_ends(name, pod):
    """Of how the pod with amemd ends: it has the time to wait for an operation."""
    for container in pod.get("initContainers", []) + pod["containers"]:
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


def faults_of_speaks(chart, amemd):
    done = subprocess.run([amemd, "--speaks"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True)
    if done.stdout.strip() != (chart / SPEAKS).read_text(encoding="utf-8").strip():
        yield f"amemd speaks \"{done.stdout.strip()}\", and the chart does not have it: amemd --speaks > amem/{SPEAKS}, then check.sh --render"


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
        for values in GOOD:
            objects = [each for text in render(chart, values).values() for each in documents(text)]
            hooks = [] if values.get("allowIncompatibleUpgrade") else ["Job"]
            if sorted(each["kind"] for each in objects) != ["ConfigMap", "DaemonSet", "DaemonSet", *hooks]:
                yield f"{values}: renders {[each['kind'] for each in objects]}"
            yield from faults_of_objects(objects, CHART_FOR)
            for each in objects:
                if each["kind"] == "DaemonSet":
                    yield from faults_of_ends(f"{values}", each["spec"]["template"]["spec"])
                    strategy = values.get("updateStrategy") if each["metadata"]["name"] == "amem" else None
                    if each["spec"]["updateStrategy"] != (strategy or {"type": "OnDelete"}):
                        yield f"{values}: {each['metadata']['name']} is updated by {each['spec']['updateStrategy']}"
            if amemd:
                yield from faults_of_settings(objects, amemd)
        for values in BAD:
            try:
                chart.render(values, name="amem", namespace="amem")
                yield f"{values}: is taken, and should be refused"
            except helm_python.HelmError:
                pass
    yield from faults_of_upgrades(path)
    for example in sorted((HERE / "examples").glob("*.yaml")):
        text = example.read_text(encoding="utf-8")
        for fault in faults_of_objects(documents(text), EXAMPLES_FOR):
            yield f"{example.name}: {fault}"
        if text.count("image: amem:") != text.count(f"image: amem:{VERSION}\n"):
            yield f"{example.name}: has not amem:{VERSION}"
    for each in documents((HERE / "examples" / "sidecar.yaml").read_text(encoding="utf-8")):
        if each["kind"] == "Pod":
            yield from (f"sidecar.yaml: {fault}" for fault in faults_of_restricted(each))
            yield from faults_of_ends("sidecar.yaml", each["spec"])


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
