"""Columns of `kubectl get`: one module per family of kinds, found by group and kind."""

from koordinator.local.apiserver.printers import column, core, platform, pods
from koordinator.local.apiserver.printers.column import AGE, NAME, PrintedColumn, Printer

BUILT_IN: dict[tuple[str, str], Printer] = {
    **core.PRINTERS,
    **pods.PRINTERS,
    **platform.PRINTERS,
    **core.STORAGE_PRINTERS,
    **pods.WORKLOAD_PRINTERS,
}

DEFAULT = Printer(
    (NAME, PrintedColumn("Created At", "date")),
    lambda obj, now_s: [column.name_of(obj), column.text(obj, "metadata", "creationTimestamp")],
)
"""For kinds that nobody has written columns for."""

SCALE = Printer(
    (NAME, PrintedColumn("Desired", "integer"), PrintedColumn("Available", "integer"), AGE),
    lambda obj, now_s: [
        column.name_of(obj),
        column.number(obj, "spec", "replicas"),
        column.number(obj, "status", "replicas"),
        column.age(obj, now_s),
    ],
)
"""The `scale` subresource of any kind."""

__all__ = ["AGE", "BUILT_IN", "DEFAULT", "NAME", "SCALE", "PrintedColumn", "Printer"]
