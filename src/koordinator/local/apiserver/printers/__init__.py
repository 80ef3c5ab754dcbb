"""Columns of `kubectl get`: one module per family of kinds, found by group and kind."""

from koordinator.local.apiserver.printers import core, nodes, platform, pods, policy, storage, workloads
from koordinator.local.apiserver.printers.column import AGE, NAME, Column, Printer

BUILT_IN: dict[tuple[str, str], Printer] = {
    **core.PRINTERS,
    **nodes.PRINTERS,
    **platform.PRINTERS,
    **pods.PRINTERS,
    **policy.PRINTERS,
    **storage.PRINTERS,
    **workloads.PRINTERS,
}

DEFAULT = Printer((NAME, Column("Created At", "date")), lambda obj, now_s: [*_name_and_created(obj)])


def _name_and_created(obj: dict[str, object]) -> tuple[object, object]:
    meta = obj.get("metadata")
    fields = meta if isinstance(meta, dict) else {}
    return fields.get("name", ""), fields.get("creationTimestamp")


__all__ = ["AGE", "BUILT_IN", "DEFAULT", "NAME", "Column", "Printer"]
