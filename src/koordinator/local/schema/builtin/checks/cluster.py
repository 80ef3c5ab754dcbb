"""Checks of nodes, volumes, configuration, budgets, priority and storage classes; of roles and of who is bound to
them.

Source: pkg/apis/rbac/validation of kubernetes/kubernetes.
"""

import base64
from typing import Any

import msgspec

from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors, names
from koordinator.local.schema.builtin.checks.common import (
    check_amounts,
    check_effect,
    check_int_or_percent,
    check_kept,
    check_resource_list,
    fixed,
    tidy,
)

Json = dict[str, Any]


def check_event(event: Json) -> list[StatusCause]:
    """Check that an event is in the namespace of what it is about."""
    own = (event.get("metadata") or {}).get("namespace", "")
    about = (event.get("involvedObject") or {}).get("namespace", "")
    if own == about or (not about and own == "default"):
        return []
    return [errors.invalid("involvedObject.namespace", about, "does not match event.namespace")]


_GROUP = "rbac.authorization.k8s.io"


def check_role(role: Json) -> list[StatusCause]:
    """Check a Role."""
    why = "namespaced rules cannot apply to non-resource URLs"
    return [
        errors.invalid(f"rules[{index}].nonResourceURLs", rule["nonResourceURLs"], why)
        for index, rule in enumerate(role.get("rules") or ())
        if rule.get("nonResourceURLs")
    ]


def check_aggregation(aggregation: Json, field: str) -> list[StatusCause]:
    """Check that an AggregationRule selects something."""
    if aggregation.get("clusterRoleSelectors"):
        return []
    why = "at least one clusterRoleSelector required if aggregationRule is non-nil"
    return [errors.required(f"{field}.clusterRoleSelectors", why)]


def check_rule(rule: Json, field: str) -> list[StatusCause]:
    """Check a PolicyRule."""
    causes: list[StatusCause] = []
    if not rule.get("verbs"):
        causes.append(errors.required(f"{field}.verbs", "verbs must contain at least one value"))
    urls = rule.get("nonResourceURLs")
    if urls:
        if rule.get("apiGroups") or rule.get("resources") or rule.get("resourceNames"):
            why = "rules cannot apply to both regular resources and non-resource URLs"
            causes.append(errors.invalid(f"{field}.nonResourceURLs", urls, why))
        return causes
    for part, what in (("apiGroups", "api group"), ("resources", "resource")):
        if not rule.get(part):
            why = f"resource rules must supply at least one {what}"
            causes.append(errors.required(f"{field}.{part}", why))
    return causes


def check_binding(binding: Json, kinds: tuple[str, ...], *, is_namespaced: bool) -> list[StatusCause]:
    """Check a RoleBinding or ClusterRoleBinding; `kinds` are those of the roles it can give."""
    role = binding.get("roleRef") or {}
    causes: list[StatusCause] = []
    if role.get("apiGroup", "") != _GROUP:
        causes.append(errors.not_supported("roleRef.apiGroup", role.get("apiGroup", ""), (_GROUP,)))
    if role.get("kind", "") not in kinds:
        causes.append(errors.not_supported("roleRef.kind", role.get("kind", ""), kinds, is_sorted=True))
    name = role.get("name", "")
    causes += names.check_required(names.path_segment, name, "roleRef.name")
    for index, subject in enumerate(binding.get("subjects") or ()):
        causes += _check_subject(subject, f"subjects[{index}]", is_namespaced)
    return causes


def _check_subject(subject: Json, field: str, is_namespaced: bool) -> list[StatusCause]:
    kind, name, group = (subject.get(part) or "" for part in ("kind", "name", "apiGroup"))
    causes: list[StatusCause] = [] if name else [errors.required(f"{field}.name")]
    if kind == "ServiceAccount":
        causes += names.check_given(names.subdomain_1123, name, f"{field}.name")
        if group:
            causes.append(errors.not_supported(f"{field}.apiGroup", group, ("",)))
        # A RoleBinding may do without by the rules; its API's defaults fill nothing in.
        if not is_namespaced and not subject.get("namespace"):
            causes.append(errors.required(f"{field}.namespace"))
    elif kind in ("User", "Group"):
        if group != _GROUP:
            causes.append(errors.not_supported(f"{field}.apiGroup", group, (_GROUP,)))
    else:
        kinds = ("ServiceAccount", "User", "Group")
        causes.append(errors.not_supported(f"{field}.kind", kind, kinds, is_sorted=True))
    return causes


_NO_JSON = "unexpected end of JSON input"
_DOCKER_KEYS = {
    "kubernetes.io/dockercfg": ".dockercfg",
    "kubernetes.io/dockerconfigjson": ".dockerconfigjson",
}
_CONFIG_BYTES_MAX = 1024 * 1024
_USER_PRIORITY_MAX = 1_000_000_000
_SYSTEM_CLASSES = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}
_ACCESS_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")


def check_config(obj: Json) -> list[StatusCause]:
    """Keys and size of a ConfigMap or Secret."""
    causes: list[StatusCause] = []
    total = 0
    for part in ("data", "binaryData"):
        for key, value in (obj.get(part) or {}).items():
            causes += names.check(names.config_key, key, f"{part}[{key}]")
            total += len(value.encode())
    twice = (obj.get("data") or {}).keys() & (obj.get("binaryData") or {}).keys()
    for key in sorted(twice):
        causes.append(errors.invalid(f"data[{key}]", key, "duplicate of key present in binaryData"))
    if total > _CONFIG_BYTES_MAX:
        causes.append(errors.too_long("", _CONFIG_BYTES_MAX))
    return causes


def check_secret(secret: Json) -> list[StatusCause]:
    """Check a Secret: what its type asks for, besides keys and size."""
    causes = check_config(secret)
    data, kind = secret.get("data") or {}, secret.get("type") or "Opaque"
    if kind == "kubernetes.io/service-account-token":
        name = "kubernetes.io/service-account.name"
        if not ((secret.get("metadata") or {}).get("annotations") or {}).get(name):
            causes.append(errors.required(f"metadata.annotations[{name}]"))
    elif kind in _DOCKER_KEYS:
        causes += _check_docker_config(data, _DOCKER_KEYS[kind])
    elif kind == "kubernetes.io/basic-auth":
        if "username" not in data and "password" not in data:
            causes += [errors.required("data[username]"), errors.required("data[password]")]
    elif kind == "kubernetes.io/ssh-auth":
        if not data.get("ssh-privatekey"):
            causes.append(errors.required("data[ssh-privatekey]"))
    elif kind == "kubernetes.io/tls":
        causes += [errors.required(f"data[{key}]") for key in ("tls.crt", "tls.key") if key not in data]
    return causes


def _check_docker_config(data: Json, key: str) -> list[StatusCause]:
    if key not in data:
        return [errors.required(f"data[{key}]")]
    try:
        msgspec.json.decode(base64.b64decode(data[key]), type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError):
        text = base64.b64decode(data[key]).decode(errors="replace").lstrip()
        why = f"invalid character '{text[0]}' looking for beginning of value" if text else _NO_JSON
        return [errors.invalid(f"data[{key}]", "<secret contents redacted>", why)]
    return []


def check_config_update(obj: Json, old: Json) -> list[StatusCause]:
    """Check that an immutable ConfigMap or Secret stays as it is; a Secret keeps its type."""
    causes: list[StatusCause] = []
    if old.get("immutable"):
        if not obj.get("immutable"):
            causes.append(errors.forbidden("immutable", "field is immutable when `immutable` is set"))
        for part in ("data", "binaryData"):
            if (obj.get(part) or {}) != (old.get(part) or {}):
                causes.append(errors.forbidden(part, "field is immutable when `immutable` is set"))
    if "type" in old:
        causes += check_kept(obj.get("type"), old.get("type"), "type")
    return causes


def check_namespace(namespace: Json) -> list[StatusCause]:
    """Check what a Namespace waits for before it goes."""
    causes: list[StatusCause] = []
    for finalizer in (namespace.get("spec") or {}).get("finalizers") or ():
        causes += names.check_finalizer(finalizer, "spec.finalizers", "spec.finalizers")
    return causes


def check_role_kept(binding: Json, old: Json) -> list[StatusCause]:
    """Check that a binding keeps its role."""
    role = binding.get("roleRef") or {}
    if tidy(role) == tidy(old.get("roleRef")):
        return []
    shown = {"APIGroup": role.get("apiGroup", ""), "Kind": role.get("kind", ""), "Name": role.get("name", "")}
    return [errors.invalid("roleRef", shown, "cannot change roleRef")]


def check_quota_update(quota: Json, old: Json) -> list[StatusCause]:
    """Check that a ResourceQuota keeps its scopes."""
    new, before = ((each.get("spec") or {}).get("scopes") or [] for each in (quota, old))
    return [] if set(new) == set(before) else [errors.invalid("spec.scopes", new, "field is immutable")]


def check_node(obj: Json) -> list[StatusCause]:
    """Taints and amounts of a Node."""
    causes: list[StatusCause] = []
    seen: set[tuple[Any, Any]] = set()
    for index, taint in enumerate((obj.get("spec") or {}).get("taints") or ()):
        where = f"metadata.taints[{index}]"  # as the API server says
        causes += names.check(names.qualified_name, taint.get("key", ""), f"{where}.key")
        causes += names.check_given(names.label_value, taint.get("value"), f"{where}.value")
        effect = taint.get("effect") or ""
        if not effect:
            causes.append(errors.required(f"{where}.effect"))
        causes += check_effect(effect, f"{where}.effect")
        pair = (taint.get("key"), taint.get("effect"))
        if pair in seen:
            causes.append(errors.duplicate(where, taint))
        seen.add(pair)
    for part in ("capacity", "allocatable"):
        causes += check_resource_list((obj.get("status") or {}).get(part) or {}, f"status.{part}")
    return causes


_NODE_MUTABLE = frozenset({"taints", "unschedulable", "configSource", "podCIDR", "podCIDRs", "providerID"})


def check_node_update(obj: Json, old: Json) -> list[StatusCause]:
    """Check that an update leaves the rest of a node's spec alone; CIDRs and provider are set once."""
    new, before = obj.get("spec") or {}, old.get("spec") or {}
    causes: list[StatusCause] = []
    for name in ("podCIDRs", "providerID"):
        if before.get(name) and tidy(new.get(name)) != tidy(before[name]):
            shown = "podCIDR" if name == "podCIDRs" else name
            detail = f'node updates may not change {shown} except from "" to valid'
            causes.append(errors.forbidden(f"spec.{name}", detail))
    if fixed(new, _NODE_MUTABLE) != fixed(before, _NODE_MUTABLE):
        detail = (
            "node updates may only change labels, taints, or capacity (or configSource, if the "
            "DynamicKubeletConfig feature gate is enabled)"
        )
        causes.append(errors.forbidden("", detail))
    return causes


def _check_access_modes(spec: Json, required: str, field: str = "spec") -> list[StatusCause]:
    modes, where = spec.get("accessModes") or [], f"{field}.accessModes"
    if not modes:
        return [errors.required(where, required)]
    causes = [errors.not_supported(where, mode, _ACCESS_MODES) for mode in modes if mode not in _ACCESS_MODES]
    if "ReadWriteOncePod" in modes and len(modes) > 1:
        causes.append(errors.forbidden(where, "may not use ReadWriteOncePod with other access modes"))
    return causes


_VOLUME_PLAIN = frozenset(
    [
        "capacity",
        "accessModes",
        "claimRef",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "mountOptions",
        "volumeMode",
        "nodeAffinity",
        "volumeAttributesClassName",
    ]
)


def check_volume(obj: Json) -> list[StatusCause]:
    """Check a PersistentVolume."""
    spec = obj.get("spec") or {}
    causes = _check_access_modes(spec, "")
    capacity = spec.get("capacity")
    if not capacity:
        causes.append(errors.required("spec.capacity"))
    if list(capacity or ()) != ["storage"]:
        causes.append(errors.not_supported("spec.capacity", capacity, ["storage"]))
    causes += check_resource_list(spec.get("capacity") or {}, "spec.capacity")
    sources = [key for key in spec if key not in _VOLUME_PLAIN]
    if not sources:
        causes.append(errors.required("spec", "must specify a volume type"))
    causes += [
        errors.forbidden(f"spec.{key}", "may not specify more than 1 volume type") for key in sources[1:]
    ]
    if "local" in spec and (spec.get("nodeAffinity") or {}).get("required") is None:
        causes.append(errors.required("spec.nodeAffinity", "Local volume requires node affinity"))
    return causes


def check_volume_update(obj: Json, old: Json) -> list[StatusCause]:
    """Source and mode of a PersistentVolume are fixed after creation."""
    new, before = obj.get("spec") or {}, old.get("spec") or {}
    causes: list[StatusCause] = []
    if fixed(new, _VOLUME_PLAIN) != fixed(before, _VOLUME_PLAIN):
        detail = "spec.persistentvolumesource is immutable after creation"
        causes.append(errors.forbidden("spec.persistentvolumesource", detail))
    return causes + check_kept(new.get("volumeMode"), before.get("volumeMode"), "volumeMode")


def check_claim(obj: Json) -> list[StatusCause]:
    """Check a PersistentVolumeClaim."""
    return check_claim_spec(obj.get("spec") or {}, "spec")


def check_claim_spec(spec: Json, field: str) -> list[StatusCause]:
    """Check what a claim asks for, which may be a template of a StatefulSet."""
    causes = _check_access_modes(spec, "at least 1 access mode is required", field)
    requests = (spec.get("resources") or {}).get("requests") or {}
    if "storage" not in requests:
        causes.append(errors.required(f"{field}.resources[storage]"))
    return causes + check_amounts(requests, f"{field}.resources.requests")


def check_claim_update(obj: Json, old: Json) -> list[StatusCause]:
    """Check that a claim may grow and be bound; all else is fixed."""
    new, before = obj.get("spec") or {}, old.get("spec") or {}
    mutable = {"resources", "volumeName", "volumeAttributesClassName"}
    if before.get("storageClassName") is None:
        mutable.add("storageClassName")  # a claim without a class gets the default one later
    bound = before.get("volumeName")
    if fixed(new, mutable) != fixed(before, mutable) or (bound and new.get("volumeName") != bound):
        detail = (
            "spec is immutable after creation except resources.requests and volumeAttributesClassName "
            "for bound claims"
        )
        return [errors.forbidden("spec", detail)]
    return []


def _shown_budget(spec: Json) -> Json:
    """Return a budget as the API server quotes it: its own struct, with all fields."""
    names_ = ("minAvailable", "selector", "maxUnavailable", "unhealthyPodEvictionPolicy")
    return {name[:1].upper() + name[1:]: spec.get(name) for name in names_}


def check_budget(obj: Json) -> list[StatusCause]:
    """Check a PodDisruptionBudget."""
    spec = obj.get("spec") or {}
    causes: list[StatusCause] = []
    if "minAvailable" in spec and "maxUnavailable" in spec:
        causes.append(
            errors.invalid("spec", _shown_budget(spec), "minAvailable and maxUnavailable cannot be both set")
        )
    for name in ("minAvailable", "maxUnavailable"):
        if name in spec:
            causes += check_int_or_percent(spec[name], f"spec.{name}")
    return causes


def check_priority_class(obj: Json) -> list[StatusCause]:
    """Check a PriorityClass: names and values that the system keeps for itself."""
    name, value = (obj.get("metadata") or {}).get("name", ""), obj.get("value", 0)
    causes: list[StatusCause] = []
    if name.startswith("system-"):
        if _SYSTEM_CLASSES.get(name) != value:
            detail = "priority class names with 'system-' prefix are reserved for system use only"
            causes.append(errors.forbidden("metadata.name", detail))
    elif value > _USER_PRIORITY_MAX:
        detail = f"maximum allowed value of a user defined priority is {_USER_PRIORITY_MAX}"
        causes.append(errors.forbidden("value", detail))
    return causes


def check_priority_class_update(obj: Json, old: Json) -> list[StatusCause]:
    """Value and preemption policy of a PriorityClass are fixed."""
    causes: list[StatusCause] = []
    if obj.get("value", 0) != old.get("value", 0):
        causes.append(errors.forbidden("value", "may not be changed in an update."))
    return causes + check_kept(obj.get("preemptionPolicy"), old.get("preemptionPolicy"), "preemptionPolicy")


def check_attachment_source(source: Json, field: str) -> list[StatusCause]:
    """Check what a VolumeAttachment attaches."""
    given = [name for name in ("inlineVolumeSpec", "persistentVolumeName") if source.get(name)]
    if len(given) == 1:
        return []
    why = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
    return [errors.forbidden(field, why) if given else errors.required(field, why)]


def check_volume_affinity(affinity: Json, field: str) -> list[StatusCause]:
    """Check where a volume can be reached from."""
    if affinity.get("required") is not None:
        return []
    return [errors.required(f"{field}.required", "must specify required node constraints")]


_LIFECYCLES = ("Persistent", "Ephemeral")


def check_lifecycles(modes: list[str], field: str) -> list[StatusCause]:
    """Check what volumes a CSIDriver makes."""
    wrong = [mode for mode in modes if mode not in _LIFECYCLES]
    return [errors.not_supported(field, mode, _LIFECYCLES, is_sorted=True) for mode in wrong]


def check_provisioner(provisioner: str, field: str) -> list[StatusCause]:
    """Check the provisioner of a StorageClass."""
    reason = names.qualified_name(provisioner.lower()) if provisioner else ""
    return [errors.invalid(field, provisioner, reason)] if reason else []


def check_storage_class_update(obj: Json, old: Json) -> list[StatusCause]:
    """Parameters, provisioner, reclaim policy and binding mode of a StorageClass are fixed."""
    causes: list[StatusCause] = []
    for name in ("parameters", "provisioner", "reclaimPolicy"):
        if (obj.get(name) or None) != (old.get(name) or None):
            causes.append(errors.forbidden(name, f"updates to {name} are forbidden."))
    return causes + check_kept(
        obj.get("volumeBindingMode"), old.get("volumeBindingMode"), "volumeBindingMode"
    )
