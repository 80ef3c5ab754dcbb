"""Rows of claims for devices, their templates, classes of devices and slices of them."""

from typing import Any

from koordinator.local.apiserver.printers.column import (
    AGE,
    NAME,
    Json,
    PrintedColumn,
    Printer,
    age,
    field,
    name_of,
    text,
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


def claim_row(obj: Json, now_s: float) -> list[Any]:
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


PRINTERS = {
    (GROUP, "ResourceClaim"): Printer((NAME, PrintedColumn("State"), AGE), claim_row),
    (GROUP, "ResourceClaimTemplate"): Printer((NAME, AGE), plain_row),
    (GROUP, "DeviceClass"): Printer((NAME, AGE), plain_row),
    (GROUP, "ResourceSlice"): Printer(
        (NAME, PrintedColumn("Node"), PrintedColumn("Driver"), PrintedColumn("Pool"), AGE), slice_row
    ),
}
