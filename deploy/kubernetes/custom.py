"""Kinds that are not Kubernetes' own: those fields of their definitions that the chart and the examples use, so that another one is found."""
import jsonschema

TEXT, TEXTS = {"type": "string"}, {"type": "array", "items": {"type": "string"}}
LABELS = {"type": "object", "additionalProperties": TEXT}


def exactly(properties, required=()):
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": list(required)}


SPECS = {
    # monitoring.coreos.com/v1
    "PodMonitor": exactly({
        "selector": exactly({"matchLabels": LABELS}, ["matchLabels"]),
        "podMetricsEndpoints": {"type": "array", "items": exactly({
            "port": TEXT, "interval": {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"},
            "relabelings": {"type": "array", "items": exactly({"sourceLabels": TEXTS, "targetLabel": TEXT, "replacement": TEXT})}}, ["port"])},
    }, ["selector", "podMetricsEndpoints"]),
    "PrometheusRule": exactly({"groups": {"type": "array", "items": exactly({
        "name": TEXT, "rules": {"type": "array", "items": exactly({
            "alert": TEXT, "expr": TEXT, "for": {"type": "string", "pattern": "^[0-9]+(s|m|h)$"}, "labels": LABELS, "annotations": LABELS,
        }, ["alert", "expr"])}}, ["name", "rules"])}}, ["groups"]),
    # jobset.x-k8s.io/v1alpha2
    "JobSet": exactly({
        "network": exactly({"enableDNSHostnames": {"type": "boolean"}, "subdomain": TEXT}),
        "successPolicy": exactly({"operator": {"enum": ["All", "Any"]}, "targetReplicatedJobs": TEXTS}, ["operator"]),
        "failurePolicy": exactly({"maxRestarts": {"type": "integer"}}),
        "replicatedJobs": {"type": "array", "items": exactly({
            "name": TEXT, "replicas": {"type": "integer"}, "template": exactly({"spec": {"type": "object"}}, ["spec"])}, ["name", "template"])},
    }, ["replicatedJobs"]),
}
GROUPS = {"PodMonitor": "monitoring.coreos.com/v1", "PrometheusRule": "monitoring.coreos.com/v1", "JobSet": "jobset.x-k8s.io/v1alpha2"}


def faults_of_custom(each):
    """None: the kind is Kubernetes' own."""
    kind = each.get("kind")
    if kind not in SPECS:
        return None
    found = [f"{kind} {each['metadata']['name']}: {'.'.join(map(str, error.path))}: {error.message}"
             for error in jsonschema.Draft202012Validator(SPECS[kind]).iter_errors(each["spec"])]
    return found + [f"{kind} is not of {GROUPS[kind]}"] * (each["apiVersion"] != GROUPS[kind])


def jobs_of(each):
    """The Jobs that a JobSet makes."""
    for job in each["spec"]["replicatedJobs"]:
        yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": f"{each['metadata']['name']}-{job['name']}-0"}, "spec": job["template"]["spec"]}
