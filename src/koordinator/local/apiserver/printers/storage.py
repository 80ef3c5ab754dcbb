"""Rows of volumes, claims, storage classes and CSI objects; of claims for devices, templates, classes and slices."""

from typing import Any

from koordinator.local.apiserver.printers.column import (
    AGE,
    NAME,
    UNSET,
    Json,
    PrintedColumn,
    Printer,
    age,
    field,
    integer,
    name_of,
    objects,
    strings,
    text,
    wide,
)

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


PRINTERS = {
    (GROUP, "ResourceClaim"): Printer((NAME, PrintedColumn("State"), AGE), device_claim_row),
    (GROUP, "ResourceClaimTemplate"): Printer((NAME, AGE), plain_row),
    (GROUP, "DeviceClass"): Printer((NAME, AGE), plain_row),
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
