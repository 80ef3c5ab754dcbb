"""Which nodes of a tidal pool change sides."""

from hypothesis import given
from hypothesis import strategies as st

from koordinator.manager.tidal.nodes import PodDemand, Side, TidalNode, TidalPhase, TidalPod
from koordinator.manager.tidal.plan import StepRules, TidalPlan, assign_reserves
from koordinator.manager.tidal.plan import plan as plan_of
from koordinator.manager.tidal.target import Reserves

ALL = PodDemand(8_000, 16)


def node(
    name: str, phase: TidalPhase = TidalPhase.ONLINE, pods: tuple[int, ...] = (), **more: object
) -> TidalNode:
    used = sum(pods)
    return TidalNode(
        name=name,
        phase=phase,
        allocatable=ALL,
        free=PodDemand(8_000 - used, 16),
        requested=PodDemand(used, 0),
        online_pods=tuple(TidalPod(each, 0) for each in pods),
        **more,  # type: ignore[arg-type]
    )


def plan(
    nodes: list[TidalNode],
    reserved: dict[str, Side],
    target: int,
    limit: int = 9,
    cooldown_s: float = 0.0,
    now_s: float = 0.0,
    load_max_percent: float = 100.0,
) -> TidalPlan:
    rules = StepRules(in_flight_max=limit, cooldown_s=cooldown_s, load_max_percent=load_max_percent)
    return plan_of(nodes, reserved, target, rules, now_s)


pools = st.lists(
    st.builds(
        lambda phase, pods, reserve: (phase, tuple(pods), reserve),
        st.sampled_from(TidalPhase),
        st.lists(st.integers(1, 2_000), max_size=3),
        st.sampled_from([None, *Side]),
    ),
    max_size=8,
).map(lambda each: [node(f"n{i}", phase, pods, reserve=side) for i, (phase, pods, side) in enumerate(each)])


@given(nodes=pools, online=st.integers(0, 8), batch=st.integers(0, 8))
def test_reserves_have_their_counts_and_stay_where_they_are(
    nodes: list[TidalNode], online: int, batch: int
) -> None:
    online = min(online, len(nodes))
    batch = min(batch, len(nodes) - online)

    reserved = assign_reserves(nodes, Reserves(online, batch, len(nodes) - online - batch))

    assert [list(reserved.values()).count(side) for side in Side] == [online, batch]
    kept = sum(reserved.get(each.name) is Side.ONLINE for each in nodes if each.reserve is Side.ONLINE)
    assert kept == min(online, sum(each.reserve is Side.ONLINE for each in nodes))


@given(nodes=pools, target=st.integers(0, 8), limit=st.integers(0, 3))
def test_steps_bring_reserves_to_their_side_only_and_pass_neither_target_nor_limit(
    nodes: list[TidalNode], target: int, limit: int
) -> None:
    reserved = {each.name: each.reserve for each in nodes if each.reserve is not None}
    found = plan(nodes, reserved, target, limit)

    after = {each.name: each.phase for each in nodes} | {step.node: step.to for step in found.steps}
    for step in found.steps:
        is_lent = step.to in (TidalPhase.TO_BATCH, TidalPhase.BATCH)
        assert reserved.get(step.node) in (None, Side.BATCH if is_lent else Side.ONLINE)
    before_lent = sum(each.is_lent for each in nodes if each.name not in reserved)
    lent = sum(
        p in (TidalPhase.TO_BATCH, TidalPhase.BATCH) for name, p in after.items() if name not in reserved
    )
    assert min(before_lent, target) <= lent <= max(before_lent, target)
    moving = sum(phase in (TidalPhase.TO_BATCH, TidalPhase.TO_ONLINE) for phase in after.values())
    assert moving <= max(
        limit, sum(each.phase in (TidalPhase.TO_BATCH, TidalPhase.TO_ONLINE) for each in nodes)
    )


def test_nodes_are_lent_only_while_their_pods_fit_elsewhere_together() -> None:
    nodes = [node("a", pods=(5_000,)), node("b", pods=(5_000,)), node("c", pods=(1_000,))]

    found = plan(nodes, {}, 3, 3)

    assert [step.node for step in found.steps] == ["c"]
    assert set(found.blocked) == {"a", "b"}


def test_a_node_that_has_just_changed_stays_for_its_cooldown() -> None:
    assert (
        plan([node("a", since_s=1.0), node("b", pods=(1,), since_s=1.0)], {}, 1, 1, 600.0, 600.0).steps == ()
    )


def test_the_node_with_the_least_work_to_lose_goes_back_first() -> None:
    old, young = TidalPod(4_000, 0, started_s=10.0), TidalPod(4_000, 0, started_s=90.0)
    nodes = [
        node("a", TidalPhase.BATCH, batch_pods=(old,)),
        node("b", TidalPhase.BATCH, batch_pods=(young,)),
    ]
    assert [step.node for step in plan(nodes, {}, 1, 1, now_s=100.0).steps] == ["b"]


def test_no_node_is_lent_that_would_leave_the_others_too_busy() -> None:
    nodes = [node("a", pods=(4_000,)), node("b", pods=(1_000,)), node("c")]

    found = plan(nodes, {}, 2, load_max_percent=40.0)

    assert [step.node for step in found.steps] == ["c"]
    assert found.blocked == dict.fromkeys("ab", "without it the online load would be above 40 %")


def test_pods_of_nodes_that_are_being_emptied_have_their_room_already() -> None:
    nodes = [node("a", TidalPhase.TO_BATCH, (7_000,)), node("b", pods=(2_000,)), node("c")]

    assert plan(nodes, {}, 2, 2).steps == ()


def test_a_batch_reserve_is_lent_first_and_an_online_reserve_comes_home() -> None:
    nodes = [node("a", pods=(1_000,)), node("b"), node("c", TidalPhase.BATCH), node("d"), node("e")]

    found = plan(nodes, {"a": Side.BATCH, "c": Side.ONLINE}, 0, 2)

    assert [(step.node, step.to) for step in found.steps] == [
        ("c", TidalPhase.TO_ONLINE),
        ("a", TidalPhase.TO_BATCH),
    ]
