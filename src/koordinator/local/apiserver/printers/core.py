"""Rows of namespaces, services, endpoints, config, secrets, events, service accounts and quotas; of volumes, claims,
storage classes and CSI objects; of claims for devices, templates, classes and slices.
"""

from collections.abc import Callable
from typing import Any

from koordinator.local.apiserver.printers.column import (
    AGED,
    NAME,
    NAMED,
    NONE,
    UNKNOWN,
    UNSET,
    Json,
    PrintedColumn,
    Printer,
    aged,
    capped,
    count,
    field,
    given,
    headers,
    integer,
    join,
    labels_text,
    name_of,
    number,
    objects,
    since,
    strings,
    table,
    text,
    wide,
)


def _keys(obj: Json, *fields: str) -> int:
    return sum(len(field(obj, name) or {}) for name in fields)


def _cluster_ip(obj: Json) -> str:
    addresses = strings(obj, "spec", "clusterIPs")
    return addresses[0] if addresses else text(obj, "spec", "clusterIP") or NONE


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


def _service_ports(obj: Json) -> str:
    ports = []
    for port in objects(obj, "spec", "ports"):
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


_EVENTS = Printer(
    headers(
        "Last Seen",
        "Type",
        "Reason",
        "Object",
        wide("Subobject"),
        wide("Source"),
        "Message",
        wide("First Seen"),
        wide("Count"),
        PrintedColumn("Name", format="name", priority=1),
    ),
    event_row,
)

PRINTERS = {
    ("", "Namespace"): aged(("Status", "status.phase")),
    ("", "ConfigMap"): aged(("Data", lambda obj: _keys(obj, "data", "binaryData"))),
    ("", "Secret"): aged(("Type", "type"), ("Data", lambda obj: _keys(obj, "data"))),
    ("", "ServiceAccount"): aged(),
    ("", "Service"): table(
        NAMED,
        ("Type", "spec.type"),
        ("Cluster-IP", _cluster_ip),
        ("External-IP", _external),
        ("Port(s)", _service_ports),
        AGED,
        (wide("Selector"), lambda obj: labels_text(field(obj, "spec", "selector"))),
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
    ("", "LimitRange"): table(
        NAMED, (PrintedColumn("Created At", "date"), given("metadata.creationTimestamp", UNKNOWN))
    ),
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


def _claimed_by(volume: Json) -> str:
    claim = field(volume, "spec", "claimRef")
    return f"{text(claim, 'namespace')}/{text(claim, 'name')}" if claim else ""


def _if_bound(shown: Callable[[Json], str]) -> Callable[[Json], str]:
    """Return a cell that is empty for a claim without a volume."""
    return lambda claim: shown(claim) if text(claim, "spec", "volumeName") else ""


def _class_name(obj: Json) -> str:
    annotations = field(obj, "metadata", "annotations") or {}
    return name_of(obj) + (" (default)" if annotations.get(_DEFAULT_CLASS) == "true" else "")


def _phase(obj: Json) -> str:
    return "Terminating" if field(obj, "metadata", "deletionTimestamp") else text(obj, "status", "phase")


def _access_modes(part: str) -> Callable[[Json], str]:
    return lambda obj: ",".join(_MODES.get(mode, mode) for mode in strings(obj, part, "accessModes"))


def _yes_or_no(name: str) -> PrintedColumn:
    return PrintedColumn(name, "boolean")


def _audiences(driver: Json) -> str:
    requests = objects(driver, "spec", "tokenRequests")
    return ",".join(text(each, "audience") for each in requests) if requests else UNSET


_VOLUME_MODE = (wide("VolumeMode"), given("spec.volumeMode", UNSET))
_ATTRIBUTES_CLASS = ("VolumeAttributesClass", given("spec.volumeAttributesClassName", UNSET))

STORAGE_PRINTERS = {
    (GROUP, "ResourceClaim"): aged(("State", claim_state)),
    (GROUP, "ResourceClaimTemplate"): aged(),
    (GROUP, "DeviceClass"): aged(),
    (GROUP, "DeviceTaintRule"): aged(),
    (GROUP, "ResourceSlice"): aged(
        ("Node", "spec.nodeName"), ("Driver", "spec.driver"), ("Pool", "spec.pool.name")
    ),
    ("", "PersistentVolume"): table(
        NAMED,
        ("Capacity", "spec.capacity.storage"),
        ("Access Modes", _access_modes("spec")),
        ("Reclaim Policy", "spec.persistentVolumeReclaimPolicy"),
        ("Status", _phase),
        ("Claim", _claimed_by),
        ("StorageClass", "spec.storageClassName"),
        _ATTRIBUTES_CLASS,
        ("Reason", "status.reason"),
        AGED,
        _VOLUME_MODE,
    ),
    ("", "PersistentVolumeClaim"): table(
        NAMED,
        ("Status", _phase),
        ("Volume", "spec.volumeName"),
        ("Capacity", _if_bound(given("status.capacity.storage", "0"))),
        ("Access Modes", _if_bound(_access_modes("status"))),
        ("StorageClass", "spec.storageClassName"),
        _ATTRIBUTES_CLASS,
        AGED,
        _VOLUME_MODE,
    ),
    ("storage.k8s.io", "StorageClass"): table(
        (NAME, _class_name),
        ("Provisioner", "provisioner"),
        ("ReclaimPolicy", given("reclaimPolicy", "Delete")),
        ("VolumeBindingMode", given("volumeBindingMode", "Immediate")),
        ("AllowVolumeExpansion", lambda obj: bool(field(obj, "allowVolumeExpansion"))),
        AGED,
    ),
    ("storage.k8s.io", "CSINode"): aged((integer("Drivers"), count("spec.drivers"))),
    ("storage.k8s.io", "CSIDriver"): aged(
        (_yes_or_no("AttachRequired"), lambda obj: field(obj, "spec", "attachRequired") is not False),
        (_yes_or_no("PodInfoOnMount"), lambda obj: field(obj, "spec", "podInfoOnMount") is True),
        (_yes_or_no("StorageCapacity"), lambda obj: field(obj, "spec", "storageCapacity") is True),
        ("TokenRequests", _audiences),
        (_yes_or_no("RequiresRepublish"), lambda obj: field(obj, "spec", "requiresRepublish") is True),
        ("Modes", lambda obj: join(strings(obj, "spec", "volumeLifecycleModes"))),
    ),
    ("storage.k8s.io", "CSIStorageCapacity"): table(
        NAMED, ("StorageClassName", "storageClassName"), ("Capacity", given("capacity", UNSET))
    ),
    ("storage.k8s.io", "VolumeAttachment"): aged(
        (PrintedColumn("Attacher", format="name"), "spec.attacher"),
        ("PV", "spec.source.persistentVolumeName"),
        ("Node", "spec.nodeName"),
        (_yes_or_no("Attached"), lambda obj: field(obj, "status", "attached") is True),
    ),
}
