"""A cluster as far as the hook may-upgrade and DaemonSets look at it, without an API server.

Run as a program it stands for curl: `cluster.py STATE [CURL'S ARGUMENTS]` answers from the objects in the file STATE as the API server
does, to whom has the token, under the rights of the hook's own objects.
"""
import copy
import json
import pathlib
import sys
import urllib.parse

TOKEN = "the-token"
OPTIONS = {"--max-time", "--cacert", "--header", "--request", "--data"}  # with a value
LASTING = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")  # a DaemonSet's pods tolerate these


def node(name, labels=None, taints=()):
    return {"kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
            "spec": {"taints": [{"key": key, "effect": effect} for key, effect in taints]}}


def pod(template, of, number, phase="Running"):
    """A pod that a DaemonSet has made of its template on the node `of`."""
    meta = copy.deepcopy(template["metadata"])
    return {"kind": "Pod", "metadata": {"name": f"{meta['labels']['app.kubernetes.io/component']}-{number}", "namespace": "amem", **meta},
            "spec": {**({"nodeName": of} if of else {}), "containers": template["spec"]["containers"]}, "status": {"phase": phase}}


def fits(requirement, values):
    key, value = requirement["key"], values.get(requirement["key"])
    return {"In": lambda: value in requirement["values"], "NotIn": lambda: value not in requirement["values"], "Exists": lambda: key in values,
            "DoesNotExist": lambda: key not in values, "Gt": lambda: key in values and int(value) > int(requirement["values"][0]),
            "Lt": lambda: key in values and int(value) < int(requirement["values"][0])}[requirement["operator"]]()


def tolerates(toleration, taint):
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")


def keeps_running(spec, on):
    """Whether the DaemonSet controller leaves a pod of this template on the node, rather than end it at once."""
    labels, name = on["metadata"]["labels"], {"metadata.name": on["metadata"]["name"]}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    required = spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if required and not any((term.get("matchExpressions") or term.get("matchFields")) and all(fits(each, labels) for each in term.get("matchExpressions", []))
                            and all(fits(each, name) for each in term.get("matchFields", [])) for term in required["nodeSelectorTerms"]):
        return False
    return all(taint["effect"] != "NoExecute" or taint["key"] in LASTING or any(tolerates(each, taint) for each in spec.get("tolerations") or [])
               for taint in on["spec"]["taints"])


def is_allowed(rules, verb, kind, name):
    return any(kind in rule["resources"] and verb in rule["verbs"] and ("resourceNames" not in rule or name in rule["resourceNames"]) for rule in rules)


def selects(selector, labels):
    """As much of the syntax of label selectors as the hook uses."""
    while selector:
        key, _, rest = selector.partition(" in (")
        if rest and "," not in key:
            values, _, selector = rest.partition(")")
            wanted = values.split(",")
        else:
            part, _, selector = selector.partition(",")
            key, _, value = part.partition("=")
            wanted = [value]
        if labels.get(key) not in wanted:
            return False
        selector = selector.removeprefix(",")
    return True


def answer(state, method, url, body):
    """HTTP status and object."""
    parts = urllib.parse.urlsplit(url)
    query = dict(urllib.parse.parse_qsl(parts.query))
    path = parts.path.removeprefix("/api/v1/").split("/")
    namespace = path[1] if path[0] == "namespaces" else None
    kind, *name = path[2:] if namespace else path
    verb = {"GET": "get" if name else "list", "PATCH": "patch"}[method]
    if not is_allowed(state["cluster_rules"] + (state["rules"] if namespace == "amem" else []), verb, kind, *(name or [None])):
        return 403, {"kind": "Status", "code": 403, "message": f"cannot {verb} resource {kind}"}
    found = [each for each in state["objects"] if each["kind"].lower() + "s" == kind and each["metadata"].get("namespace") == namespace]
    if not name:
        found = [each for each in found if selects(query.get("labelSelector", ""), each["metadata"].get("labels", {}))]
        first = int(query.get("continue") or 0)
        end = first + int(query["limit"])
        return 200, {"kind": "List", "metadata": {"continue": str(end)} if end < len(found) else {}, "items": found[first:end]}
    one = [each for each in found if each["metadata"]["name"] == name[0]]
    if not one:
        return 404, {"kind": "Status", "code": 404, "message": f"{kind} {name[0]} not found"}
    if method == "PATCH":
        patch = json.loads(body)
        one[0].update({key: value for key, value in patch.items() if key != "metadata"})
        one[0]["metadata"].setdefault("annotations", {}).update(patch["metadata"]["annotations"])
    return 200, one[0]


def main(file, *arguments):
    state, options, words = json.loads(pathlib.Path(file).read_text(encoding="utf-8")), {}, iter(arguments)
    for word in words:
        options.setdefault(word if word in OPTIONS else "flags", []).append(next(words) if word in OPTIONS else word)
    *flags, url = options["flags"]
    if state.get("away", 0) > 0:
        state["away"] -= 1
        pathlib.Path(file).write_text(json.dumps(state), encoding="utf-8")
        print("curl: (7) Failed to connect to kubernetes.default.svc port 443", file=sys.stderr)
        return 7
    assert "--fail-with-body" in flags and pathlib.Path(options["--cacert"][0]).read_text(encoding="utf-8") == "the-authority", arguments
    assert url.startswith("https://kubernetes.default.svc/") and " " not in url, url
    if f"Authorization: Bearer {TOKEN}" not in options["--header"]:
        status, said = 401, {"kind": "Status", "code": 401, "message": "Unauthorized"}
    else:
        status, said = answer(state, options.get("--request", ["GET"])[0], url, options.get("--data", [""])[0])
    pathlib.Path(file).write_text(json.dumps(state), encoding="utf-8")
    print(json.dumps(said), flush=True)
    if status < 400:
        return 0
    print(f"curl: (22) The requested URL returned error: {status}", file=sys.stderr)
    return 22


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
