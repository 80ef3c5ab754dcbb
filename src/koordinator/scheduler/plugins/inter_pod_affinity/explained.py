"""Say in words which pods InterPodAffinity sees near a node."""

import itertools
from collections.abc import Callable, Iterator

from koordinator.scheduler.plugins.inter_pod_affinity.terms import Holders, PodAffinityTermsCache, Term
from koordinator.scheduler.table.domain_counts import DomainCounts, Tally
from koordinator.scheduler.table.label_columns import ABSENT
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_counts import PodCount
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.pod_terms import NamespaceLabels

NAMED_MAX = 3

IsMeant = Callable[[PodInfo], bool]


class Neighbours:
    """Finds the pods behind the counts, a few of them."""

    def __init__(self, table: NodeTable, namespaces: NamespaceLabels, wishes: PodAffinityTermsCache) -> None:
        self._table = table
        self._namespaces = namespaces
        self._wishes = wishes

    def wanting_away(self, domains: DomainCounts, holders: Holders, row: int) -> str:
        """Pods near the row that do not want this one there; empty without any."""
        key = holders.term.key

        def is_meant(pod: PodInfo) -> bool:
            return any(term.key == key for term in self._wishes.of(pod.pod).all)

        found = self._told(domains, holders, row, is_meant)
        return (
            f"{found} in the same {holders.term.topology_key} does not want this pod there" if found else ""
        )

    def unwanted(self, domains: DomainCounts, count: PodCount, term: Term, row: int) -> str:
        """Pods near the row that this one wants to be away from; empty without any."""
        found = self._told(domains, count, row, self._matching(count))
        return (
            f"{found} is in the same {term.topology_key}, which this pod wants to be away from"
            if found
            else ""
        )

    def wanted(self, domains: DomainCounts, count: PodCount, term: Term, row: int, *, is_first: bool) -> str:
        """Pods that this one must be near: those near the row, or how many there are elsewhere."""
        key = term.topology_key
        if int(domains.layout.ids[row]) == ABSENT:
            return f"has no label {key}"
        if is_first:
            return "the first of its group may go anywhere"
        found = self._told(domains, count, row, self._matching(count))
        if found:
            return f"{found} is in the same {key}, as this pod wants"
        return f"no pod that it must be near is in the same {key}; elsewhere: {domains.total}"

    def _matching(self, count: PodCount) -> IsMeant:
        def is_meant(pod: PodInfo) -> bool:
            if pod.pod.metadata.deletion_timestamp is not None and not count.counts_leaving:
                return False
            return all(term.matches(pod.pod, self._namespaces) for term in count.terms)

        return is_meant

    def _told(self, domains: DomainCounts, tally: Tally, row: int, is_meant: IsMeant) -> str:
        slot = int(domains.layout.ids[row])
        total = int(domains.by_value[slot]) if slot != ABSENT else 0
        if not total:
            return ""
        pods = self._pods(domains, tally, row, slot, is_meant)
        names = [pod.key for pod in itertools.islice(pods, NAMED_MAX)]
        more = f" and {total - len(names)} more" if total > len(names) else ""
        return f"{'pod' if total == 1 else 'each of'} {', '.join(names)}{more}"

    def _pods(
        self, domains: DomainCounts, tally: Tally, row: int, slot: int, is_meant: IsMeant
    ) -> Iterator[PodInfo]:
        """Yield the pods on the row itself first; others only where the domain has more nodes."""
        ids = domains.layout.ids
        others = iter(tally.rows) if domains.layout.is_shared[slot] else iter(())
        for each in itertools.chain((row,), (other for other in others if other != row)):
            if each in tally.rows and each < ids.size and ids[each] == slot:
                yield from filter(is_meant, self._table.pods_at(each).values())
