"""Columns of `kubectl get`: one module per family of kinds, found by group and kind."""

from koordinator.local.apiserver.printers import column, core, platform, pods
from koordinator.local.apiserver.printers.column import NAME, PrintedColumn, Printer

BUILT_IN: dict[tuple[str, str], Printer] = {
    **core.PRINTERS,
    **pods.PRINTERS,
    **platform.PRINTERS,
    **core.STORAGE_PRINTERS,
    **pods.WORKLOAD_PRINTERS,
}

DEFAULT = column.table(
    column.NAMED, (PrintedColumn("Created At", "date"), column.given("metadata.creationTimestamp"))
)
"""For kinds that nobody has written columns for."""

SCALE = column.aged(
    (column.integer("Desired"), column.figure("spec.replicas")),
    (column.integer("Available"), column.figure("status.replicas")),
)
"""The `scale` subresource of any kind."""

__all__ = ["BUILT_IN", "DEFAULT", "NAME", "SCALE", "PrintedColumn", "Printer"]
