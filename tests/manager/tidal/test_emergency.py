"""Services take nodes back at once: as few as they need, and only where that helps."""

from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from koordinator.manager.tidal.emergency import EmergencyReturn, PendingPod, emergency
from koordinator.manager.tidal.nodes import PodDemand, Side, TidalNode, TidalPhase, TidalPod, total
from koordinator.manager.tidal.plan import online_percent

CORES = 8_000
NOW_S = 1_000.0


def node(name: str, phase: TidalPhase, used: int = 0, batch: int = 0) -> TidalNode:
    return TidalNode(
        name=name,
        phase=phase,
        allocatable=PodDemand(CORES, 0),
        free=PodDemand(CORES - used, 0),
        requested=PodDemand(used, 0),
        batch_pods=(TidalPod(batch, 0, started_s=0.0),) if batch else (),
    )


def pod(cpu: int, *, since_s: float = 0.0, nodes: Collection[str] | None = None) -> PendingPod:
    return PendingPod(
        cpu, 0, key=f"shop/{cpu}", since_s=since_s, admits=lambda name: nodes is None or name in nodes
    )


def taken(nodes: list[TidalNode], *pods: PendingPod) -> EmergencyReturn | None:
    return emergency(nodes, {}, pods, online_percent(nodes), NOW_S)


ONLINE, BATCH, TO_ONLINE = TidalPhase.ONLINE, TidalPhase.BATCH, TidalPhase.TO_ONLINE


def test_a_pod_that_waits_takes_the_node_back_whose_batch_work_is_least() -> None:
    nodes = [node("a", ONLINE, 6_000), node("b", BATCH, batch=7_000), node("c", BATCH, batch=1_000)]

    found = taken(nodes, pod(4_000))

    assert found is not None
    assert [(step.node, step.to) for step in found.steps] == [("c", TO_ONLINE)]
    assert found.reason == "online pod shop/4000 waits for room"


def test_a_pod_that_more_nodes_would_not_help_takes_none() -> None:
    nodes = [node("a", ONLINE, 1_000), node("b", BATCH), node("c", BATCH)]
    assert taken(nodes, pod(4_000)) is None, "it fits a node that is online"
    assert taken(nodes, pod(CORES + 1)) is None, "it fits none"
    assert taken(nodes, pod(7_500, nodes=["x"])) is None, "it may use none"
    assert taken(nodes, pod(7_500, since_s=NOW_S - 30.0)) is None, "it waits for 30 s only"


def test_nodes_that_return_already_are_counted_first() -> None:
    nodes = [node("a", ONLINE, 6_000), node("b", TO_ONLINE), node("c", BATCH)]
    assert taken(nodes, pod(4_000)) is None
    assert taken(nodes, pod(4_000), pod(5_000)) is not None


def test_a_node_that_is_only_being_emptied_turns_back() -> None:
    nodes = [node("a", ONLINE, 7_800), node("b", TidalPhase.TO_BATCH), node("c", BATCH)]
    found = taken(nodes)
    assert found is not None and found.reason == "the online load is above 90 %"
    assert [(step.node, step.to) for step in found.steps] == [("b", ONLINE)]


def test_reserved_batch_nodes_stay_where_they_are() -> None:
    nodes = [node("a", ONLINE, 7_800), node("b", BATCH)]
    assert emergency(nodes, {"b": Side.BATCH}, [pod(4_000)], online_percent(nodes), NOW_S) is None


@given(
    nodes=st.lists(
        st.tuples(st.sampled_from(TidalPhase), st.integers(0, CORES), st.integers(0, CORES)), max_size=12
    ),
    pods=st.lists(st.integers(1, CORES + 1), max_size=6),
)
def test_at_most_a_fifth_returns_per_pass_and_only_what_is_lent(
    nodes: list[tuple[TidalPhase, int, int]], pods: list[int]
) -> None:
    world = [node(f"n{i}", *each) for i, each in enumerate(nodes)]

    found = taken(world, *(pod(cpu) for cpu in pods))

    steps = found.steps if found is not None else ()
    assert len({step.node for step in steps}) == len(steps) <= max(len(world) // 5, 1)
    lent = {each.name for each in world if each.is_lent}
    assert {step.node for step in steps} <= lent
    requested = total(each.requested for each in world).cpu_milli
    online = sum(CORES for each in world if not each.is_lent)
    if lent and requested > 0.9 * online:
        assert steps, "an overload is answered while there is something to take back"
