"""What a MutatingAdmissionPolicy makes of a pod, and what a ValidatingAdmissionPolicy says of it, without an API server: the expressions run
in a CEL library, with the constructors of Kubernetes ("Object.spec{...}") as maps, and what they give is applied as the API server does, by
the lists' keys."""
import copy
import re

import cel

KEYS = {"volumes": "name", "containers": "name", "initContainers": "name", "env": "name", "volumeMounts": "mountPath"}
# Kubernetes has them for strings and lists, and the library does not.
FUNCTIONS = {"split": str.split, "trim": str.strip, "join": lambda words, between: between.join(words)}
CONSTRUCTOR = re.compile(r"\b(JSONPatch|Object(?:\.\w+)*)\{")


class PolicyError(Exception):
    pass


def check_constructors(expression):
    """Each constructor is named after its place in the object, which Kubernetes wants too: spec's volumes are Object.spec.volumes{...}."""
    places = []  # of the constructors that are open: name, and the field that is given now
    for constructor, end, field in re.findall(r"(\bObject(?:\.\w+)*\{|\{)|(\})|\b(\w+): ", re.sub(r'"[^"]*"', '""', expression)):
        if end:
            places.pop()
        elif field:
            if places:
                places[-1] = (places[-1][0], field)
        else:
            name = constructor[:-1]
            outer = next((f"{each}.{of}" for each, of in reversed(places) if each), None)
            if name and outer and name != outer:
                raise PolicyError(f"{outer} is made by {name}{{}}")
            places.append((name, ""))


def as_maps(expression):
    check_constructors(expression)
    maps = CONSTRUCTOR.sub("{", expression)
    return re.sub(r"([{,]\s*)([a-zA-Z]\w*): ", r'\1"\2": ', maps)


def merged(old, new, name=""):
    """Server-side apply, as far as pods' lists need it."""
    if isinstance(new, dict):
        return {**(old or {}), **{key: merged((old or {}).get(key), value, key) for key, value in new.items() if value != []}}
    if not isinstance(new, list):
        return new
    if name not in KEYS:
        raise PolicyError(f"{name} is a list that may not be applied")
    key, result = KEYS[name], copy.deepcopy(old or [])
    for each in new:
        at = next((i for i, one in enumerate(result) if one[key] == each[key]), None)
        if at is None:
            result.append(each)
        else:
            result[at] = merged(result[at], each)
    return result


def patched(pod, operations):
    for each in operations:
        if each["op"] != "add":
            raise PolicyError(f"JSON patch with {each['op']}")
        *folders, last = [part.replace("~1", "/").replace("~0", "~") for part in each["path"].split("/")[1:]]
        place = pod
        for folder in folders:
            place = place[folder]
        if last == "-":
            place.append(each["value"])
        else:
            place[last] = each["value"]
    return pod


def concerns(policy, pod):
    for rule in policy["spec"]["matchConstraints"]["objectSelector"]["matchExpressions"]:
        if rule["operator"] != "Exists":
            raise PolicyError(f"selector with {rule['operator']}")
        if rule["key"] not in pod["metadata"].get("labels", {}):
            return False
    return True


def evaluated(policy, pod):
    """The function that evaluates an expression of the policy."""
    variables = {}
    def evaluate(expression):
        return cel.evaluate(as_maps(expression), {"object": pod, "variables": variables, **FUNCTIONS})
    for each in policy["spec"]["variables"]:
        variables[each["name"]] = evaluate(each["expression"])
    return evaluate


def admitted(policy, pod):
    """The pod after the policy, or the pod as it is where the policy does not concern it."""
    if not concerns(policy, pod):
        return pod
    pod = copy.deepcopy(pod)
    evaluate = evaluated(policy, pod)
    for mutation in policy["spec"]["mutations"]:
        kind = mutation["patchType"]
        result = evaluate(mutation["applyConfiguration" if kind == "ApplyConfiguration" else "jsonPatch"]["expression"])
        pod = merged(pod, result) if kind == "ApplyConfiguration" else patched(pod, result)
    return pod


def refusals(policy, pod):
    """What a ValidatingAdmissionPolicy says of the pod."""
    if not concerns(policy, pod):
        return []
    evaluate = evaluated(policy, pod)
    return [evaluate(each["messageExpression"]) if "messageExpression" in each else each["message"]
            for each in policy["spec"]["validations"] if not evaluate(each["expression"])]
