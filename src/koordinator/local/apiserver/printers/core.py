"""Rows of namespaces, services, endpoints, config, secrets, events, service accounts and quotas; of volumes, claims,
storage classes and CSI objects; of claims for devices, templates, classes and slices.
"""

from typing import Any

from koordinator.local.apiserver.printers.column import (
    AGE,
    NAME,
    NONE,
    UNKNOWN,
    UNSET,
    Json,
    PrintedColumn,
    Printer,
    age,
    aged,
    capped,
    columns,
    count,
    field,
    integer,
    join,
    labels_text,
    name_of,
    number,
    objects,
    since,
    strings,
    text,
    wide,
)


def _keys(obj: Json, *fields: str) -> int:
    return sum(len(field(obj, name) or {}) for name in fields)


def service_row(obj: Json, now_s: float) -> list[Any]:
    spec = field(obj, "spec")
    addresses = strings(spec, "clusterIPs")
    return [
        name_of(obj),
        text(spec, "type"),
        addresses[0] if addresses else text(spec, "clusterIP") or NONE,
        _external(obj),
        _service_ports(spec),
        age(obj, now_s),
        labels_text(field(spec, "selector")),
    ]


def _external(obj: Json) -> str:
    spec, kind = field(obj, "spec"), text(obj, "spec", "type")
    ips = strings(spec, "externalIPs")
    if kind == "ExternalName":
        return text(spec, "externalName")
    if kind == "LoadBalancer":
        given = [
            text(i, "ip") or text(i, "hostname") for i in objects(obj, "status", "loadBalancer", "ingress")
        ]
        return join(given + ips, "<pending>")
    return join(ips)


def _service_ports(spec: Any) -> str:
    ports = []
    for port in objects(spec, "ports"):
        node_port = number(port, "nodePort")
        middle = f":{node_port}" if node_port else ""
        ports.append(f"{number(port, 'port')}{middle}/{text(port, 'protocol') or 'TCP'}")
    return join(ports)


def _endpoints(obj: Json) -> str:
    found = []
    for subset in objects(obj, "subsets"):
        ports = [number(port, "port") for port in objects(subset, "ports")]
        for address in objects(subset, "addresses"):
            found += [f"{text(address, 'ip')}:{port}" for port in ports] or [text(address, "ip")]
    return capped(found)


def _slice_ports(obj: Json) -> str:
    return capped([str(number(port, "port")) for port in objects(obj, "ports")], UNSET)


def _slice_addresses(obj: Json) -> str:
    found = [address for item in objects(obj, "endpoints") for address in strings(item, "addresses")]
    return capped(found, UNSET)


def event_row(obj: Json, now_s: float) -> list[Any]:
    involved = field(obj, "involvedObject") or field(obj, "regarding")
    first = field(obj, "firstTimestamp") or field(obj, "deprecatedFirstTimestamp")
    last = field(obj, "lastTimestamp") or field(obj, "deprecatedLastTimestamp")
    series = field(obj, "series")
    first_seen = since(first or field(obj, "eventTime"), now_s)
    last_seen = since(last, now_s) if last else first_seen
    count = number(obj, "count") or number(obj, "deprecatedCount") or 1
    if isinstance(series, dict):
        last_seen = since(series.get("lastObservedTime"), now_s)
        count = number(series, "count") or count
    kind, name = text(involved, "kind").lower(), text(involved, "name")
    component = (
        text(obj, "source", "component")
        or text(obj, "reportingComponent")
        or text(obj, "reportingController")
    )
    host = text(obj, "source", "host") or text(obj, "reportingInstance")
    return [
        last_seen,
        text(obj, "type"),
        text(obj, "reason"),
        f"{kind}/{name}" if name else kind,
        text(involved, "fieldPath"),
        ", ".join(filter(None, [component, host])),
        (text(obj, "message") or text(obj, "note")).strip(),
        first_seen,
        count,
        name_of(obj),
    ]


def _quota(obj: Json, *, limits: bool) -> str:
    hard, used = field(obj, "status", "hard") or {}, field(obj, "status", "used") or {}
    chosen = (item for item in sorted(hard.items()) if item[0].startswith("limits.") == limits)
    return ", ".join(f"{key}: {used.get(key, 0)}/{value}" for key, value in chosen)


def created_row(obj: Json, now_s: float) -> list[Any]:
    return [name_of(obj), text(obj, "metadata", "creationTimestamp") or UNKNOWN]


_EVENTS = Printer(
    columns(
        "Last Seen",
        "Type",
        "Reason",
        "Object",
        wide("Subobject"),
        wide("Source"),
        "Message",
        wide("First Seen"),
        integer("Count", priority=1),
        PrintedColumn("Name", format="name", priority=1),
    ),
    event_row,
)

PRINTERS = {
    ("", "Namespace"): aged(("Status", "status.phase")),
    ("", "ConfigMap"): aged((integer("Data"), lambda obj: _keys(obj, "data", "binaryData"))),
    ("", "Secret"): aged(("Type", "type"), (integer("Data"), lambda obj: _keys(obj, "data"))),
    ("", "ServiceAccount"): aged((integer("Secrets"), count("secrets"))),
    ("", "Service"): Printer(
        columns(NAME, "Type", "Cluster-IP", "External-IP", "Port(s)", AGE, wide("Selector")), service_row
    ),
    ("", "Endpoints"): aged(("Endpoints", _endpoints)),
    ("discovery.k8s.io", "EndpointSlice"): aged(
        ("AddressType", "addressType"), ("Ports", _slice_ports), ("Endpoints", _slice_addresses)
    ),
    ("", "Event"): _EVENTS,
    ("events.k8s.io", "Event"): _EVENTS,
    ("", "ResourceQuota"): aged(
        ("Request", lambda obj: _quota(obj, limits=False)), ("Limit", lambda obj: _quota(obj, limits=True))
    ),
    ("", "LimitRange"): Printer(columns(NAME, "Created At"), created_row),
}


GROUP = "resource.k8s.io"


def claim_state(claim: Json) -> str:
    """`pending`, or `allocated,reserved`, with `deleted` in front while it is going."""
    is_going = "deletionTimestamp" in claim["metadata"]
    states = ["deleted"] if is_going else []
    if field(claim, "status", "allocation"):
        states.append("allocated")
        if field(claim, "status", "reservedFor"):
            states.append("reserved")
    elif not is_going:
        states.append("pending")
    return ",".join(states)


_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


def volume_row(obj: Json, now_s: float) -> list[Any]:
    spec, claim = field(obj, "spec"), field(obj, "spec", "claimRef")
    return [
        name_of(obj),
        text(spec, "capacity", "storage"),
        _access_modes(strings(spec, "accessModes")),
        text(spec, "persistentVolumeReclaimPolicy"),
        _phase(obj),
        f"{text(claim, 'namespace')}/{text(claim, 'name')}" if claim else "",
        text(spec, "storageClassName"),
        text(spec, "volumeAttributesClassName") or UNSET,
        text(obj, "status", "reason"),
        age(obj, now_s),
        text(spec, "volumeMode") or UNSET,
    ]


def claim_row(obj: Json, now_s: float) -> list[Any]:
    spec, status = field(obj, "spec"), field(obj, "status")
    bound = bool(text(spec, "volumeName"))
    return [
        name_of(obj),
        _phase(obj),
        text(spec, "volumeName"),
        text(status, "capacity", "storage") if bound else "",
        _access_modes(strings(status, "accessModes")) if bound else "",
        text(spec, "storageClassName"),
        text(spec, "volumeAttributesClassName") or UNSET,
        age(obj, now_s),
        text(spec, "volumeMode") or UNSET,
    ]


def class_row(obj: Json, now_s: float) -> list[Any]:
    annotations = field(obj, "metadata", "annotations") or {}
    mark = " (default)" if annotations.get(_DEFAULT_CLASS) == "true" else ""
    return [
        name_of(obj) + mark,
        text(obj, "provisioner"),
        text(obj, "reclaimPolicy") or "Delete",
        text(obj, "volumeBindingMode") or "Immediate",
        bool(field(obj, "allowVolumeExpansion")),
        age(obj, now_s),
    ]


def _phase(obj: Json) -> str:
    return "Terminating" if field(obj, "metadata", "deletionTimestamp") else text(obj, "status", "phase")


def _access_modes(modes: list[str]) -> str:
    return ",".join(_MODES.get(mode, mode) for mode in modes)


STORAGE_PRINTERS = {
    (GROUP, "ResourceClaim"): aged(("State", claim_state)),
    (GROUP, "ResourceClaimTemplate"): aged(),
    (GROUP, "DeviceClass"): aged(),
    (GROUP, "DeviceTaintRule"): aged(),
    (GROUP, "ResourceSlice"): aged(
        ("Node", "spec.nodeName"), ("Driver", "spec.driver"), ("Pool", "spec.pool.name")
    ),
    ("", "PersistentVolume"): Printer(
        columns(
            NAME,
            "Capacity",
            "Access Modes",
            "Reclaim Policy",
            "Status",
            "Claim",
            "StorageClass",
            "VolumeAttributesClass",
            "Reason",
            AGE,
            wide("VolumeMode"),
        ),
        volume_row,
    ),
    ("", "PersistentVolumeClaim"): Printer(
        columns(
            NAME,
            "Status",
            "Volume",
            "Capacity",
            "Access Modes",
            "StorageClass",
            "VolumeAttributesClass",
            AGE,
            wide("VolumeMode"),
        ),
        claim_row,
    ),
    ("storage.k8s.io", "StorageClass"): Printer(
        columns(
            NAME,
            "Provisioner",
            "ReclaimPolicy",
            "VolumeBindingMode",
            PrintedColumn("AllowVolumeExpansion", "boolean"),
            AGE,
        ),
        class_row,
    ),
    ("storage.k8s.io", "CSINode"): aged((integer("Drivers"), count("spec", "drivers"))),
}
