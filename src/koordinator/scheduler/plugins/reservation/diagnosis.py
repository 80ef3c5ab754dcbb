"""Say why no reservation took a pod, counted over all nodes. Pure. Source: behaviour/reservations 9."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

_RESERVATION_LEVEL = "Reservation(s) "


class NodeCounts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Reservations of one node by outcome, and the texts with which filters refused the node.

    `owner_matched` includes all that follow; `taints` counts by `{key: value}`.
    """

    owner_matched: int = 0
    name_matched: int = 0
    name_unmatched: int = 0
    affinity_unmatched: int = 0
    unschedulable: int = 0
    not_exact_matched: int = 0
    ignored: int = 0
    taints: dict[str, int] = {}
    filter_reasons: list[str] = []

    @property
    def left(self) -> int:
        """Reservations that only the node itself can have kept out."""
        unmatched = (
            self.name_unmatched + self.affinity_unmatched + self.unschedulable + self.not_exact_matched
        )
        refused = sum(reason.startswith(_RESERVATION_LEVEL) for reason in self.filter_reasons)
        return self.owner_matched - unmatched - sum(self.taints.values()) - refused


def reasons(nodes: Mapping[str, NodeCounts], has_affinity: bool) -> list[str]:
    """The texts of the status; none when reservations had no part in the failure."""
    counts: Sequence[NodeCounts] = list(nodes.values())
    total = sum(each.owner_matched for each in counts)
    if total == 0 and not has_affinity:
        return []
    taints: Counter[str] = Counter()
    of_nodes: Counter[str] = Counter()
    for each in counts:
        taints.update(each.taints)
        for reason in each.filter_reasons:
            if not reason.startswith(_RESERVATION_LEVEL) and each.left > 0:
                of_nodes[reason] += each.left
    counted = [
        (sum(each.name_matched for each in counts), "exactly matches the requested reservation name"),
        (sum(each.name_unmatched for each in counts), "didn't match the requested reservation name"),
        (sum(each.affinity_unmatched for each in counts), "didn't match affinity rules"),
        (sum(each.unschedulable for each in counts), "is unschedulable"),
        (sum(each.not_exact_matched for each in counts), "is not exact matched"),
        *((taints[taint], f"had untolerated taint {taint}") for taint in sorted(taints)),
        *((of_nodes[reason], f"for node reason that {reason}") for reason in sorted(of_nodes)),
    ]
    texts = [f"{number} Reservation(s) {text}" for number, text in counted if number]
    return [*texts, f"{total} Reservation(s) matched owner total"]
