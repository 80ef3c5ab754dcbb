"""The order in which a ScheduleExplanation tells why nodes were ruled out. Source: behaviour/crds 10."""

from collections.abc import Iterable

from msgspec.structs import replace

from koordinator.api.schedule_explanation import NodeFailedDetail


def sorted_details(details: Iterable[NodeFailedDetail]) -> list[NodeFailedDetail]:
    """By plugin, then reason, those where preemption might help first; node names in order of their text."""
    return sorted(
        (replace(detail, failed_nodes=sorted(detail.failed_nodes)) for detail in details),
        key=lambda detail: (detail.failed_plugin, detail.reason, not detail.preempt_might_help),
    )
