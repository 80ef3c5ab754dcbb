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
    capped,
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


def namespace_row(obj: Json, now_s: float) -> list[Any]:
    return [name_of(obj), text(obj, "status", "phase"), age(obj, now_s)]


def data_row(obj: Json, now_s: float) -> list[Any]:
    """ConfigMaps: how many keys."""
    count = len(field(obj, "data") or {}) + len(field(obj, "binaryData") or {})
    return [name_of(obj), count, age(obj, now_s)]


def secret_row(obj: Json, now_s: float) -> list[Any]:
    return [name_of(obj), text(obj, "type"), len(field(obj, "data") or {}), age(obj, now_s)]


def service_account_row(obj: Json, now_s: float) -> list[Any]:
    return [name_of(obj), len(objects(obj, "secrets")), age(obj, now_s)]


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


def endpoints_row(obj: Json, now_s: float) -> list[Any]:
    found = []
    for subset in objects(obj, "subsets"):
        ports = [number(port, "port") for port in objects(subset, "ports")]
        for address in objects(subset, "addresses"):
            found += [f"{text(address, 'ip')}:{port}" for port in ports] or [text(address, "ip")]
    return [name_of(obj), capped(found), age(obj, now_s)]


def endpoint_slice_row(obj: Json, now_s: float) -> list[Any]:
    ports = [str(number(port, "port")) for port in objects(obj, "ports")]
    addresses = [address for item in objects(obj, "endpoints") for address in strings(item, "addresses")]
    return [
        name_of(obj),
        text(obj, "addressType"),
        capped(ports) if ports else UNSET,
        capped(addresses) if addresses else UNSET,
        age(obj, now_s),
    ]


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


def quota_row(obj: Json, now_s: float) -> list[Any]:
    hard, used = field(obj, "status", "hard") or {}, field(obj, "status", "used") or {}
    parts = {key: f"{key}: {used.get(key, 0)}/{value}" for key, value in sorted(hard.items())}
    limits = [part for key, part in parts.items() if key.startswith("limits.")]
    requests = [part for key, part in parts.items() if not key.startswith("limits.")]
    return [name_of(obj), ", ".join(requests), ", ".join(limits), age(obj, now_s)]


def created_row(obj: Json, now_s: float) -> list[Any]:
    return [name_of(obj), text(obj, "metadata", "creationTimestamp") or UNKNOWN]


_EVENT_COLUMNS = (
    PrintedColumn("Last Seen"),
    PrintedColumn("Type"),
    PrintedColumn("Reason"),
    PrintedColumn("Object"),
    wide("Subobject"),
    wide("Source"),
    PrintedColumn("Message"),
    wide("First Seen"),
    integer("Count", priority=1),
    PrintedColumn("Name", format="name", priority=1),
)

PRINTERS = {
    ("", "Namespace"): Printer((NAME, PrintedColumn("Status"), AGE), namespace_row),
    ("", "ConfigMap"): Printer((NAME, integer("Data"), AGE), data_row),
    ("", "Secret"): Printer((NAME, PrintedColumn("Type"), integer("Data"), AGE), secret_row),
    ("", "ServiceAccount"): Printer((NAME, integer("Secrets"), AGE), service_account_row),
    ("", "Service"): Printer(
        (
            NAME,
            PrintedColumn("Type"),
            PrintedColumn("Cluster-IP"),
            PrintedColumn("External-IP"),
            PrintedColumn("Port(s)"),
            AGE,
            wide("Selector"),
        ),
        service_row,
    ),
    ("", "Endpoints"): Printer((NAME, PrintedColumn("Endpoints"), AGE), endpoints_row),
    ("discovery.k8s.io", "EndpointSlice"): Printer(
        (NAME, PrintedColumn("AddressType"), PrintedColumn("Ports"), PrintedColumn("Endpoints"), AGE),
        endpoint_slice_row,
    ),
    ("", "Event"): Printer(_EVENT_COLUMNS, event_row),
    ("events.k8s.io", "Event"): Printer(_EVENT_COLUMNS, event_row),
    ("", "ResourceQuota"): Printer((NAME, PrintedColumn("Request"), PrintedColumn("Limit"), AGE), quota_row),
    ("", "LimitRange"): Printer((NAME, PrintedColumn("Created At")), created_row),
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


def device_claim_row(obj: Json, now_s: float) -> list[Any]:
    return [name_of(obj), claim_state(obj), age(obj, now_s)]


def slice_row(obj: Json, now_s: float) -> list[Any]:
    return [
        name_of(obj),
        text(obj, "spec", "nodeName"),
        text(obj, "spec", "driver"),
        text(obj, "spec", "pool", "name"),
        age(obj, now_s),
    ]


def plain_row(obj: Json, now_s: float) -> list[Any]:
    return [name_of(obj), age(obj, now_s)]


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


def csi_node_row(obj: Json, now_s: float) -> list[Any]:
    return [name_of(obj), len(objects(obj, "spec", "drivers")), age(obj, now_s)]


def _phase(obj: Json) -> str:
    return "Terminating" if field(obj, "metadata", "deletionTimestamp") else text(obj, "status", "phase")


def _access_modes(modes: list[str]) -> str:
    return ",".join(_MODES.get(mode, mode) for mode in modes)


STORAGE_PRINTERS = {
    (GROUP, "ResourceClaim"): Printer((NAME, PrintedColumn("State"), AGE), device_claim_row),
    (GROUP, "ResourceClaimTemplate"): Printer((NAME, AGE), plain_row),
    (GROUP, "DeviceClass"): Printer((NAME, AGE), plain_row),
    (GROUP, "DeviceTaintRule"): Printer((NAME, AGE), plain_row),
    (GROUP, "ResourceSlice"): Printer(
        (NAME, PrintedColumn("Node"), PrintedColumn("Driver"), PrintedColumn("Pool"), AGE), slice_row
    ),
    ("", "PersistentVolume"): Printer(
        (
            NAME,
            *(
                PrintedColumn(name)
                for name in (
                    "Capacity",
                    "Access Modes",
                    "Reclaim Policy",
                    "Status",
                    "Claim",
                    "StorageClass",
                    "VolumeAttributesClass",
                    "Reason",
                )
            ),
            AGE,
            wide("VolumeMode"),
        ),
        volume_row,
    ),
    ("", "PersistentVolumeClaim"): Printer(
        (
            NAME,
            *(
                PrintedColumn(name)
                for name in (
                    "Status",
                    "Volume",
                    "Capacity",
                    "Access Modes",
                    "StorageClass",
                    "VolumeAttributesClass",
                )
            ),
            AGE,
            wide("VolumeMode"),
        ),
        claim_row,
    ),
    ("storage.k8s.io", "StorageClass"): Printer(
        (
            NAME,
            PrintedColumn("Provisioner"),
            PrintedColumn("ReclaimPolicy"),
            PrintedColumn("VolumeBindingMode"),
            PrintedColumn("AllowVolumeExpansion", "boolean"),
            AGE,
        ),
        class_row,
    ),
    ("storage.k8s.io", "CSINode"): Printer((NAME, integer("Drivers"), AGE), csi_node_row),
}
