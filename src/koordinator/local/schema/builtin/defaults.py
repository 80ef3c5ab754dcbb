"""Defaults of all other built-in kinds. Source: the field documentation of each kind. Only what follows from the object
alone: addresses of Services and selectors of Jobs are given by the registry."""

import base64
from typing import Any

from koordinator.local.schema.builtin import pod_defaults
from koordinator.local.schema.builtin.pod_defaults import Default, Json, change, change_each, fill

_RBAC = "rbac.authorization.k8s.io"


def _workload(value: Json, **defaults: Any) -> Json:
    return change(fill(value, **defaults), "template", pod_defaults.template)


def _deployment(obj: Json) -> Json:
    def strategy(value: Json) -> Json:
        value = fill(value, type="RollingUpdate")
        if value["type"] != "RollingUpdate":
            return value
        rolling = fill(value.get("rollingUpdate") or {}, maxSurge="25%", maxUnavailable="25%")
        return value if rolling is value.get("rollingUpdate") else {**value, "rollingUpdate": rolling}

    def spec(value: Json) -> Json:
        value = _workload(
            value, replicas=1, revisionHistoryLimit=10, progressDeadlineSeconds=600, strategy={}
        )
        return change(value, "strategy", strategy)

    return change(obj, "spec", spec)


def _replica_set(obj: Json) -> Json:
    return change(obj, "spec", lambda spec: _workload(spec, replicas=1))


def _replication_controller(obj: Json) -> Json:
    def spec(value: Json) -> Json:
        labels = ((value.get("template") or {}).get("metadata") or {}).get("labels")
        return _workload(value, replicas=1, **({"selector": labels} if labels else {}))

    return change(obj, "spec", spec)


def _rolling(value: Json, **defaults: Any) -> Json:
    """`updateStrategy` of StatefulSets and DaemonSets."""
    value = fill(value, type="RollingUpdate")
    if value["type"] == "RollingUpdate":
        value = fill(value, rollingUpdate={})
        value = change(value, "rollingUpdate", lambda rolling: fill(rolling, **defaults))
    return value


def _stateful_set(obj: Json) -> Json:
    def claim(value: Json) -> Json:
        return fill(_claim(value), apiVersion="v1", kind="PersistentVolumeClaim")

    def spec(value: Json) -> Json:
        value = _workload(
            value,
            replicas=1,
            revisionHistoryLimit=10,
            podManagementPolicy="OrderedReady",
            updateStrategy={},
            persistentVolumeClaimRetentionPolicy={},
        )
        value = change(value, "updateStrategy", lambda own: _rolling(own, partition=0))
        value = change(
            value,
            "persistentVolumeClaimRetentionPolicy",
            lambda policy: fill(policy, whenDeleted="Retain", whenScaled="Retain"),
        )
        return change_each(value, "volumeClaimTemplates", claim)

    return change(obj, "spec", spec)


def _daemon_set(obj: Json) -> Json:
    def spec(value: Json) -> Json:
        value = _workload(value, revisionHistoryLimit=10, updateStrategy={})
        return change(value, "updateStrategy", lambda own: _rolling(own, maxSurge=0, maxUnavailable=1))

    return change(obj, "spec", spec)


def _job(obj: Json) -> Json:
    def spec(value: Json) -> Json:
        value = _workload(value, backoffLimit=6, completionMode="NonIndexed", suspend=False)
        if "completions" not in value and "parallelism" not in value:
            value = {**value, "completions": 1, "parallelism": 1}
        replacement = "Failed" if value.get("podFailurePolicy") else "TerminatingOrFailed"
        return fill(value, parallelism=1, podReplacementPolicy=replacement)

    return change(obj, "spec", spec)


def _cron_job(obj: Json) -> Json:
    def spec(value: Json) -> Json:
        value = fill(
            value,
            concurrencyPolicy="Allow",
            suspend=False,
            successfulJobsHistoryLimit=3,
            failedJobsHistoryLimit=1,
        )
        return change(value, "jobTemplate", lambda job: change(job, "spec", lambda inner: _workload(inner)))

    return change(obj, "spec", spec)


def _service(obj: Json) -> Json:
    def port(value: Json) -> Json:
        return fill(value, protocol="TCP", targetPort=value.get("port", 0))

    def spec(value: Json) -> Json:
        value = fill(value, type="ClusterIP", sessionAffinity="None")
        value = change_each(value, "ports", port)
        if value["type"] == "ExternalName":
            return value
        value = fill(
            value, internalTrafficPolicy="Cluster", ipFamilies=["IPv4"], ipFamilyPolicy="SingleStack"
        )
        if value["type"] in {"NodePort", "LoadBalancer"}:
            value = fill(value, externalTrafficPolicy="Cluster")
        if value["type"] == "LoadBalancer":
            value = fill(value, allocateLoadBalancerNodePorts=True)
        if value["sessionAffinity"] == "ClientIP":
            value = fill(value, sessionAffinityConfig={"clientIP": {"timeoutSeconds": 10800}})
        return value

    return fill(change(obj, "spec", spec), status={"loadBalancer": {}})


def _node(obj: Json) -> Json:
    def status(value: Json) -> Json:
        return fill(value, allocatable=value["capacity"]) if value.get("capacity") else value

    return change(obj, "status", status)


def _volume(obj: Json) -> Json:
    obj = change(
        obj, "spec", lambda spec: fill(spec, persistentVolumeReclaimPolicy="Retain", volumeMode="Filesystem")
    )
    return _pending(obj)


def _claim(obj: Json) -> Json:
    return _pending(change(obj, "spec", lambda spec: fill(spec, volumeMode="Filesystem")))


def _pending(obj: Json) -> Json:
    return change(fill(obj, status={}), "status", lambda status: fill(status, phase="Pending"))


def _client(value: Json) -> Json:
    return change(value, "service", lambda service: fill(service, port=443))


def _webhooks(mutating: bool) -> Default:
    def webhook(value: Json) -> Json:
        value = fill(
            value,
            failurePolicy="Fail",
            matchPolicy="Equivalent",
            timeoutSeconds=10,
            namespaceSelector={},
            objectSelector={},
        )
        if mutating:
            value = fill(value, reinvocationPolicy="Never")
        value = change(value, "clientConfig", _client)
        return change_each(value, "rules", lambda rule: fill(rule, scope="*"))

    return lambda obj: change_each(obj, "webhooks", webhook)


def _matching(value: Json) -> Json:
    """`matchConstraints` of a policy, or `matchResources` of a binding."""
    value = fill(value, matchPolicy="Equivalent", namespaceSelector={}, objectSelector={})
    for field in ("resourceRules", "excludeResourceRules"):
        value = change_each(value, field, lambda rule: fill(rule, scope="*"))
    return value


def _admission_policy(obj: Json) -> Json:
    def spec(value: Json) -> Json:
        return change(fill(value, failurePolicy="Fail"), "matchConstraints", _matching)

    return change(obj, "spec", spec)


def _crd(obj: Json) -> Json:
    def names(value: Json) -> Json:
        kind = value.get("kind", "")
        return fill(value, singular=kind.lower(), listKind=f"{kind}List")

    def spec(value: Json) -> Json:
        value = change(fill(value, conversion={"strategy": "None"}), "names", names)
        return change(value, "conversion", conversion)

    def conversion(value: Json) -> Json:
        return change(value, "webhook", lambda hook: change(hook, "clientConfig", _client))

    return change(obj, "spec", spec)


def _autoscaler(obj: Json) -> Json:
    cpu = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
    }
    if obj["apiVersion"] == "autoscaling/v1":
        return change(obj, "spec", lambda spec: fill(spec, minReplicas=1))

    def behavior(value: Json) -> Json:
        up = fill(value.get("scaleUp") or {}, **_SCALE_UP)
        down = fill(value.get("scaleDown") or {}, **_SCALE_DOWN)
        is_complete = up == value.get("scaleUp") and down == value.get("scaleDown")
        return value if is_complete else {**value, "scaleUp": up, "scaleDown": down}

    def spec(value: Json) -> Json:
        return change(fill(value, minReplicas=1, metrics=[cpu]), "behavior", behavior)

    return change(obj, "spec", spec)


_SCALE_UP: Json = {
    "stabilizationWindowSeconds": 0,
    "selectPolicy": "Max",
    "policies": [
        {"type": "Pods", "value": 4, "periodSeconds": 15},
        {"type": "Percent", "value": 100, "periodSeconds": 15},
    ],
}
_SCALE_DOWN: Json = {
    "selectPolicy": "Max",
    "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
}


def _subject(value: Json) -> Json:
    if value.get("kind") in {"User", "Group"} and not value.get("apiGroup"):
        return {**value, "apiGroup": _RBAC}
    return value


def _role_binding(obj: Json) -> Json:
    def reference(value: Json) -> Json:
        return value if value.get("apiGroup") else {**value, "apiGroup": _RBAC}

    return change_each(change(obj, "roleRef", reference), "subjects", _subject)


def _network_policy(obj: Json) -> Json:
    def spec(value: Json) -> Json:
        return fill(value, policyTypes=["Ingress", "Egress"] if value.get("egress") else ["Ingress"])

    return change(obj, "spec", spec)


def _secret(obj: Json) -> Json:
    """`stringData` is for writing only: on its way in it becomes `data`, over what is there."""
    texts = obj.get("stringData")
    if texts:
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
        obj = {**obj, "data": (obj.get("data") or {}) | encoded}
    if "stringData" in obj:
        obj = {key: value for key, value in obj.items() if key != "stringData"}
    return fill(obj, type="Opaque")


def _endpoints(obj: Json) -> Json:
    def subset(value: Json) -> Json:
        return change_each(value, "ports", lambda port: fill(port, protocol="TCP"))

    return change_each(obj, "subsets", subset)


def _slice(obj: Json) -> Json:
    return change_each(obj, "ports", lambda port: fill(port, name="", protocol="TCP"))


def _device_claim(obj: Json) -> Json:
    def toleration(value: Json) -> Json:
        return fill(value, operator="Equal")

    def wish(value: Json) -> Json:
        value = fill(value, allocationMode="ExactCount")
        if value["allocationMode"] == "ExactCount":
            value = fill(value, count=1)
        return change_each(value, "tolerations", toleration)

    def request(value: Json) -> Json:
        return change_each(change(value, "exactly", wish), "firstAvailable", wish)

    def spec(value: Json) -> Json:
        return change(value, "devices", lambda devices: change_each(devices, "requests", request))

    return change(obj, "spec", spec)


def _limit_range(obj: Json) -> Json:
    def item(value: Json) -> Json:
        if value.get("type") != "Container":
            return value
        limits = {**(value.get("max") or {}), **(value.get("default") or {})}
        requests = {**(value.get("min") or {}), **limits, **(value.get("defaultRequest") or {})}
        found = {**value, **({"default": limits} if limits else {})}
        return {**found, **({"defaultRequest": requests} if requests else {})}

    return change(obj, "spec", lambda spec: change_each(spec, "limits", item))


DEFAULTS: dict[tuple[str, str], Default] = {
    ("", "Pod"): pod_defaults.pod,
    ("", "PodTemplate"): lambda obj: change(obj, "template", pod_defaults.template),
    ("", "Service"): _service,
    ("", "Node"): _node,
    ("", "Secret"): _secret,
    ("", "Endpoints"): _endpoints,
    ("", "LimitRange"): _limit_range,
    ("", "PersistentVolume"): _volume,
    ("", "PersistentVolumeClaim"): _claim,
    ("", "ReplicationController"): _replication_controller,
    ("apps", "Deployment"): _deployment,
    ("apps", "ReplicaSet"): _replica_set,
    ("apps", "StatefulSet"): _stateful_set,
    ("apps", "DaemonSet"): _daemon_set,
    ("batch", "Job"): _job,
    ("batch", "CronJob"): _cron_job,
    ("autoscaling", "HorizontalPodAutoscaler"): _autoscaler,
    ("scheduling.k8s.io", "PriorityClass"): lambda obj: fill(obj, preemptionPolicy="PreemptLowerPriority"),
    ("storage.k8s.io", "StorageClass"): lambda obj: fill(
        obj, reclaimPolicy="Delete", volumeBindingMode="Immediate"
    ),
    ("resource.k8s.io", "ResourceClaim"): _device_claim,
    ("resource.k8s.io", "ResourceClaimTemplate"): lambda obj: change(obj, "spec", _device_claim),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"): _webhooks(mutating=True),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"): _webhooks(mutating=False),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"): _admission_policy,
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding"): lambda obj: change(
        obj, "spec", lambda spec: change(spec, "matchResources", _matching)
    ),
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _crd,
    ("rbac.authorization.k8s.io", "RoleBinding"): _role_binding,
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): _role_binding,
    ("networking.k8s.io", "NetworkPolicy"): _network_policy,
    ("discovery.k8s.io", "EndpointSlice"): _slice,
}
"""(group, kind) → the function that fills in what its objects lack."""
