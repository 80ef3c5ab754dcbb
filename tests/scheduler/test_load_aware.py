"""Load-aware bookkeeping: sums that change with each event equal sums made anew; one row equals many."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.clock import rfc3339
from koordinator.scheduler.plugins.load_aware import usage
from koordinator.scheduler.plugins.load_aware.load import AssignedPod, NodeLoad, Report
from tests.scheduler.world import World, play, pod

AMOUNTS = st.tuples(st.integers(0, 50), st.integers(0, 50))
NAMES = [("default", f"pod-{number}") for number in range(4)]


@st.composite
def reports(draw: st.DrawFn) -> Report:
    reported = draw(st.dictionaries(st.sampled_from(NAMES), AMOUNTS))
    return Report(
        updated_s=draw(st.integers(0, 200)),
        interval_s=60.0,
        node_usage=draw(AMOUNTS),
        system_usage=draw(AMOUNTS),
        aggregated={},
        pod_usages=reported,
        prod_pods=frozenset(name for name in reported if draw(st.booleans())),
    )


@st.composite
def assigned(draw: st.DrawFn) -> AssignedPod:
    return AssignedPod(
        name=draw(st.sampled_from(NAMES)),
        estimate=draw(AMOUNTS),
        since_s=draw(st.integers(0, 200)),
        deadline_s=draw(st.none() | st.integers(0, 300)),
        is_prod=draw(st.booleans()),
    )


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pod"), st.sampled_from("abcd"), assigned()),
        st.tuples(st.just("gone"), st.sampled_from("abcd"), st.none()),
        st.tuples(st.just("report"), st.just(""), reports() | st.none()),
    ),
    max_size=20,
)


def sums(load: NodeLoad) -> list[list[int]]:
    return [load.node_delta, load.prod_usage, load.prod_delta, load.node_estimated]


@settings(max_examples=200, deadline=None)
@given(steps=STEPS, include_system=st.booleans())
def test_sums_kept_by_event_equal_sums_made_anew(steps: list[tuple], include_system: bool) -> None:
    load = NodeLoad(2)
    pods: dict[str, AssignedPod] = {}
    report = None
    for what, uid, value in steps:
        if what == "pod":
            pods[uid] = value
            load.set_pod(uid, value)
        elif what == "gone":
            pods.pop(uid, None)
            load.remove_pod(uid)
        else:
            report = value
            load.set_report(value, include_system=include_system)

    anew = NodeLoad(2)
    for uid, each in pods.items():
        anew.set_pod(uid, each)
    anew.set_report(report, include_system=include_system)
    assert sums(load) == sums(anew)
    assert load.existing() == anew.existing()


COLUMNS = st.lists(st.tuples(*[st.integers(0, 120) for _ in range(6)]), min_size=1, max_size=8)


@given(rows=COLUMNS, dominant=st.integers(0, 3))
def test_many_rows_are_judged_as_each_alone(rows: list[tuple[int, ...]], dominant: int) -> None:
    used, capacity, thresholds = np.array(rows, np.int64).T.reshape(3, 2, len(rows))
    weights = np.array([1, 2], np.int64)

    over = usage.first_over_threshold(used, capacity, thresholds)
    scores = usage.usage_score(used, capacity, weights, dominant)

    for row in range(len(rows)):
        one = slice(row, row + 1)
        alone = usage.first_over_threshold(used[:, one], capacity[:, one], thresholds[:, one])
        assert over[row] == alone[0]
        assert scores[row] == usage.usage_score(used[:, one], capacity[:, one], weights, dominant)[0]
        assert 0 <= scores[row] <= 100


@given(rows=COLUMNS, more=st.integers(0, 50))
def test_a_busier_node_never_scores_higher(rows: list[tuple[int, ...]], more: int) -> None:
    used, capacity, _ = np.array(rows, np.int64).T.reshape(3, 2, len(rows))
    weights = np.array([1, 1], np.int64)

    calm = usage.usage_score(used, capacity, weights, 1)
    busy = usage.usage_score(used + more, capacity, weights, 1)

    assert (busy <= calm).all()


def test_a_burst_of_pods_is_not_sent_to_the_node_that_was_cold_a_minute_ago() -> None:
    """Reports are a minute old: only the estimates of pods just placed tell the nodes apart."""

    async def story(world: World) -> None:
        world.nodes(2, cpu="16", memory="64Gi")
        for name, busy in (("node-0", "1"), ("node-1", "3")):
            world.api.put("NodeMetric", metric(world, name, busy))
        for number in range(8):
            world.api.put("Pod", pod(f"web-{number}", requests={}, priority=9500))
        await world.settle()

        places = list(world.api.placements().values())
        assert places.count("node-0") >= 5  # colder
        assert places.count("node-1") >= 1  # but not all go there

    play(story)


def metric(world: World, name: str, cpu: str) -> dict[str, object]:
    usage_of_node = {"nodeUsage": {"resources": {"cpu": cpu, "memory": "1Gi"}}}
    return {
        "metadata": {"name": name},
        "status": {"updateTime": rfc3339(world.clock.now()), "nodeMetric": usage_of_node},
    }
