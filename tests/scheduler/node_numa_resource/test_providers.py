"""Other plugins have a say in which NUMA nodes a pod gets."""

from typing import Any

from koordinator.scheduler.engine.results import Placed, Unplaced
from koordinator.scheduler.plugin.framework import FilterPlugin, Handle, ReasonCodes, passes
from koordinator.scheduler.plugin.reservation_capabilities import ReservationChoice
from koordinator.scheduler.plugin.status import SUCCESS, Status, unschedulable
from koordinator.scheduler.plugins.node_numa_resource.hint_merge import (
    NUMATopologyHint,
    NUMATopologyHintProvider,
    ProvidedHints,
)
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.extending import with_plugins
from tests.scheduler.node_numa_resource.cluster import Cluster, numa_of, pod

SINGLE = {"numaTopologyPolicy": "SingleNUMANode"}
CARD = "example.com/card"


class Cards(NUMATopologyHintProvider[int | None], FilterPlugin[int | None]):
    """One card at NUMA node 1 of each node whose name begins with "card"; taken when somebody says so."""

    name = "Cards"
    per_profile = True
    taken: set[str]

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self.taken = set()
        self.trials: list[NUMATopologyHint] = []

    def class_key(self, pod: PodInfo) -> str:
        return pod.pod.metadata.annotations.get(CARD, "")

    def prepare(self, pod: PodInfo) -> int | None:
        return 1 if CARD in pod.pod.metadata.annotations else None

    def filter(self, state: int | None, rows: Rows) -> ReasonCodes:
        return passes(rows)

    def numa_hints(
        self, state: int | None, pod: PodInfo, row: int, choice: ReservationChoice | None = None
    ) -> ProvidedHints:
        if not self.handle.table.name_of(row).startswith("card"):
            return ProvidedHints(status=unschedulable("no cards"))
        return ProvidedHints({CARD: [NUMATopologyHint(0b10)]})

    def try_numa(
        self,
        state: int | None,
        pod: PodInfo,
        row: int,
        hint: NUMATopologyHint,
        choice: ReservationChoice | None = None,
    ) -> Status:
        self.trials.append(hint)
        return unschedulable("card taken") if self.handle.table.name_of(row) in self.taken else SUCCESS


def cluster_of(*names: str) -> tuple[Cluster, Cards]:
    cluster = Cluster(**with_plugins(Cards))
    for name in names:
        cluster.machine(name)
    return cluster, next(p for p in cluster.profile.plugins if isinstance(p, Cards))


def with_card(name: str, **parts: Any) -> Any:
    body = pod(name, numa=SINGLE, **parts)
    body["metadata"]["annotations"][CARD] = "1"
    return body


async def test_a_pod_gets_cpu_and_memory_where_its_card_is() -> None:
    cluster, _ = cluster_of("card-a")

    with_one = await cluster.place(with_card("p"))
    without = await cluster.place(pod("q", numa=SINGLE))

    assert list(numa_of(with_one)) == [1]
    assert list(numa_of(without)) == [0]  # the emptier one


async def test_cpus_are_bound_where_the_card_is_until_that_numa_node_is_full() -> None:
    cluster, _ = cluster_of("card-a")

    first = await cluster.place(with_card("p", qos="LSR", cpu="6"))
    refused = cluster.run(with_card("q", qos="LSR", cpu="6"))
    elsewhere = await cluster.place(pod("r", qos="LSR", cpu="6", numa=SINGLE))

    assert list(numa_of(first)) == [1] and list(numa_of(elsewhere)) == [0]
    assert isinstance(refused, Unplaced)


def test_a_node_that_the_provider_refuses_is_reported_by_its_reason() -> None:
    cluster, _ = cluster_of("bare")

    refused = cluster.run(with_card("p"))

    assert isinstance(refused, Unplaced) and "no cards" in refused.status.message


def test_the_provider_has_the_last_word_on_the_choice() -> None:
    cluster, cards = cluster_of("card-a", "card-b")
    cards.taken.add("card-a")

    placed = cluster.run(with_card("p"))

    assert isinstance(placed, Placed) and placed.node_name == "card-b"
    assert {hint.numa_nodes for hint in cards.trials} == {0b10}
