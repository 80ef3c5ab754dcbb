"""Defaults of all other built-in kinds. Source: the field documentation of each kind. Only what follows from the object
alone: addresses of Services and selectors of Jobs are given by the registry."""

import base64
from typing import Any

from koordinator.local.schema.builtin import pod_defaults
from koordinator.local.schema.builtin.pod_defaults import (
    Default,
    Json,
    at,
    change,
    change_each,
    fill,
    filling,
)

_RBAC = "rbac.authorization.k8s.io"
NAME_LABEL = "kubernetes.io/metadata.name"
TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"
_INT32_MAX = 2**31 - 1


def _workload(value: Json, **defaults: Any) -> Json:
    return change(fill(value, **defaults), "template", pod_defaults.template)


def _deployment(spec: Json) -> Json:
    spec = _workload(spec, replicas=1, revisionHistoryLimit=10, progressDeadlineSeconds=600, strategy={})
    return change(spec, "strategy", lambda own: _rolling(own, maxSurge="25%", maxUnavailable="25%"))


def _replication_controller(spec: Json) -> Json:
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    return _workload(spec, replicas=1, **({"selector": labels} if labels else {}))


def _labelled(obj: Json) -> Json:
    """A ReplicationController or Job without labels has those of its pods."""
    labels = (((obj.get("spec") or {}).get("template") or {}).get("metadata") or {}).get("labels")
    meta = obj.get("metadata") or {}
    return {**obj, "metadata": {**meta, "labels": labels}} if labels and not meta.get("labels") else obj


def _rolling(value: Json, **defaults: Any) -> Json:
    """`strategy` of Deployments, `updateStrategy` of StatefulSets and DaemonSets."""
    value = fill(value, type="RollingUpdate")
    if value["type"] == "RollingUpdate":
        value = fill(value, rollingUpdate={})
        value = change(value, "rollingUpdate", lambda rolling: fill(rolling, **defaults))
    return value


def _stateful_set(spec: Json) -> Json:
    def claim(value: Json) -> Json:
        return fill(_claim(value), apiVersion="v1", kind="PersistentVolumeClaim")

    spec = _workload(
        spec,
        replicas=1,
        revisionHistoryLimit=10,
        podManagementPolicy="OrderedReady",
        updateStrategy={},
        persistentVolumeClaimRetentionPolicy={},
    )
    spec = change(spec, "updateStrategy", lambda own: _rolling(own, partition=0))
    retained = filling(whenDeleted="Retain", whenScaled="Retain")
    spec = change(spec, "persistentVolumeClaimRetentionPolicy", retained)
    return change_each(spec, "volumeClaimTemplates", claim)


def _counted(obj: Json) -> Json:
    """A DaemonSet has a count of its templates, which the registry keeps."""
    meta = obj.get("metadata") or {}
    annotations = fill(meta.get("annotations") or {}, **{TEMPLATE_GENERATION: "0"})
    return {**obj, "metadata": {**meta, "annotations": annotations}}


def _daemon_set(spec: Json) -> Json:
    spec = _workload(spec, revisionHistoryLimit=10, updateStrategy={})
    return change(spec, "updateStrategy", lambda own: _rolling(own, maxSurge=0, maxUnavailable=1))


_failure_policy = at("podFailurePolicy.rules[].onPodConditions[]", filling(status="True"))


def _job(spec: Json) -> Json:
    limit = 6 if spec.get("backoffLimitPerIndex") is None else _INT32_MAX
    spec = _workload(
        spec, backoffLimit=limit, completionMode="NonIndexed", suspend=False, manualSelector=False
    )
    if "completions" not in spec and "parallelism" not in spec:
        spec = {**spec, "completions": 1, "parallelism": 1}
    spec = _failure_policy(spec)
    replacement = "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
    return fill(spec, parallelism=1, podReplacementPolicy=replacement)


def _cron_job(spec: Json) -> Json:
    spec = fill(
        spec,
        concurrencyPolicy="Allow",
        suspend=False,
        successfulJobsHistoryLimit=3,
        failedJobsHistoryLimit=1,
    )
    return at("jobTemplate.spec", _failure_policy)(_pod_of_template(spec))


_pod_of_template = at("jobTemplate.spec.template.spec", pod_defaults.spec)


def _timeout_of(spec: Json) -> Any:
    return ((spec.get("sessionAffinityConfig") or {}).get("clientIP") or {}).get("timeoutSeconds")


def _service(obj: Json) -> Json:
    def port(value: Json) -> Json:
        return fill(value, protocol="TCP", targetPort=value.get("port", 0))

    def spec(value: Json) -> Json:
        value = fill(value, type="ClusterIP", sessionAffinity="None")
        if value["sessionAffinity"] == "None" and "sessionAffinityConfig" in value:
            value = {key: item for key, item in value.items() if key != "sessionAffinityConfig"}
        value = change_each(value, "ports", port)
        if value["type"] == "ExternalName":
            return value
        value = fill(value, internalTrafficPolicy="Cluster")
        if value["type"] in {"NodePort", "LoadBalancer"}:
            value = fill(value, externalTrafficPolicy="Cluster")
        if value["type"] == "LoadBalancer":
            value = fill(value, allocateLoadBalancerNodePorts=True)
        if value["sessionAffinity"] == "ClientIP" and _timeout_of(value) is None:
            value = {**value, "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10800}}}
        return value

    return fill(change(obj, "spec", spec), status={"loadBalancer": {}})


def _node(obj: Json) -> Json:
    return change(change(obj, "spec", _pod_networks), "status", _node_status)


def _pod_networks(spec: Json) -> Json:
    """The list and its first element say the same."""
    if spec.get("podCIDR") and not spec.get("podCIDRs"):
        return {**spec, "podCIDRs": [spec["podCIDR"]]}
    if spec.get("podCIDRs") and not spec.get("podCIDR"):
        return {**spec, "podCIDR": spec["podCIDRs"][0]}
    return spec


def _node_status(status: Json) -> Json:
    return fill(status, allocatable=status["capacity"]) if status.get("capacity") else status


def _volume(obj: Json) -> Json:
    return _pending(_volume_spec(obj))


_volume_spec = at("spec", filling(persistentVolumeReclaimPolicy="Retain", volumeMode="Filesystem"))


def _claim(obj: Json) -> Json:
    return _pending(_claim_spec(obj))


_claim_spec = at("spec", filling(volumeMode="Filesystem"))


def _pending(obj: Json) -> Json:
    return change(fill(obj, status={}), "status", lambda status: fill(status, phase="Pending"))


_client = at("service", filling(port=443))
_any_scope = filling(scope="*")


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
        return change_each(value, "rules", _any_scope)

    return lambda obj: change_each(obj, "webhooks", webhook)


def _matching(value: Json) -> Json:
    """`matchConstraints` of a policy, or `matchResources` of a binding."""
    value = fill(value, matchPolicy="Equivalent", namespaceSelector={}, objectSelector={})
    for field in ("resourceRules", "excludeResourceRules"):
        value = change_each(value, field, _any_scope)
    return value


def _admission_policy(spec: Json) -> Json:
    return change(fill(spec, failurePolicy="Fail"), "matchConstraints", _matching)


def _crd(spec: Json) -> Json:
    def names(value: Json) -> Json:
        kind = value.get("kind", "")
        return fill(value, singular=kind.lower(), listKind=f"{kind}List")

    return _conversion_client(change(fill(spec, conversion={"strategy": "None"}), "names", names))


_conversion_client = at("conversion.webhook.clientConfig", _client)


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

    return change(fill(obj, spec={}), "spec", spec)


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

    return change_each(change(fill(obj, roleRef={}), "roleRef", reference), "subjects", _subject)


def _network_policy(spec: Json) -> Json:
    spec = fill(spec, podSelector={})
    return fill(spec, policyTypes=["Ingress", "Egress"] if spec.get("egress") else ["Ingress"])


def _with_spec(default: Default) -> Default:
    """Return the default of an object whose spec is always there."""
    return lambda obj: change(fill(obj, spec={}), "spec", default)


_csi_driver = filling(
    attachRequired=True,
    podInfoOnMount=False,
    storageCapacity=False,
    fsGroupPolicy="ReadWriteOnceWithFSType",
    volumeLifecycleModes=["Persistent"],
    requiresRepublish=False,
    seLinuxMount=False,
)


def _secret(obj: Json) -> Json:
    """`stringData` is for writing only: on its way in it becomes `data`, over what is there."""
    texts = obj.get("stringData")
    if texts:
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
        obj = {**obj, "data": (obj.get("data") or {}) | encoded}
    if "stringData" in obj:
        obj = {key: value for key, value in obj.items() if key != "stringData"}
    return fill(obj, type="Opaque")


def _device_wish(value: Json) -> Json:
    value = fill(value, allocationMode="ExactCount")
    if value["allocationMode"] == "ExactCount":
        value = fill(value, count=1)
    return change_each(value, "tolerations", filling(operator="Equal"))


def _device_request(value: Json) -> Json:
    return change_each(change(value, "exactly", _device_wish), "firstAvailable", _device_wish)


def _limit(value: Json) -> Json:
    if value.get("type") != "Container":
        return value
    limits = {**(value.get("max") or {}), **(value.get("default") or {})}
    requests = {**(value.get("min") or {}), **limits, **(value.get("defaultRequest") or {})}
    found = {**value, **({"default": limits} if limits else {})}
    return {**found, **({"defaultRequest": requests} if requests else {})}


def _namespace(obj: Json) -> Json:
    """Every namespace can be selected by its name."""
    meta = obj.get("metadata") or {}
    name, labels = meta.get("name"), meta.get("labels") or {}
    if not name or labels.get(NAME_LABEL) == name:
        return obj
    return {**obj, "metadata": {**meta, "labels": {**labels, NAME_LABEL: name}}}


DEFAULTS: dict[tuple[str, str], Default] = {
    ("", "Namespace"): _namespace,
    ("", "Pod"): pod_defaults.pod,
    ("", "PodTemplate"): at("template.spec", pod_defaults.spec),
    ("", "Service"): _service,
    ("", "Node"): _node,
    ("", "Secret"): _secret,
    ("", "Endpoints"): at("subsets[].ports[]", filling(protocol="TCP")),
    ("", "LimitRange"): at("spec.limits[]", _limit),
    ("", "PersistentVolume"): _volume,
    ("", "PersistentVolumeClaim"): _claim,
    ("", "ReplicationController"): lambda obj: change(_labelled(obj), "spec", _replication_controller),
    ("apps", "Deployment"): at("spec", _deployment),
    ("apps", "ReplicaSet"): at("spec", lambda spec: _workload(spec, replicas=1)),
    ("apps", "StatefulSet"): at("spec", _stateful_set),
    ("apps", "DaemonSet"): lambda obj: change(_counted(obj), "spec", _daemon_set),
    ("batch", "Job"): lambda obj: change(_labelled(obj), "spec", _job),
    ("batch", "CronJob"): at("spec", _cron_job),
    ("autoscaling", "HorizontalPodAutoscaler"): _autoscaler,
    ("scheduling.k8s.io", "PriorityClass"): filling(preemptionPolicy="PreemptLowerPriority"),
    ("storage.k8s.io", "StorageClass"): filling(reclaimPolicy="Delete", volumeBindingMode="Immediate"),
    ("resource.k8s.io", "ResourceClaim"): at("spec.devices.requests[]", _device_request),
    ("resource.k8s.io", "ResourceClaimTemplate"): at("spec.spec.devices.requests[]", _device_request),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"): _webhooks(mutating=True),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"): _webhooks(mutating=False),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"): at("spec", _admission_policy),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding"): at(
        "spec.matchResources", _matching
    ),
    ("apiextensions.k8s.io", "CustomResourceDefinition"): at("spec", _crd),
    ("rbac.authorization.k8s.io", "RoleBinding"): _role_binding,
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): _role_binding,
    ("networking.k8s.io", "NetworkPolicy"): _with_spec(_network_policy),
    ("storage.k8s.io", "CSIDriver"): _with_spec(_csi_driver),
    ("discovery.k8s.io", "EndpointSlice"): at("ports[]", filling(name="", protocol="TCP")),
}
"""(group, kind) → the function that fills in what its objects lack."""
