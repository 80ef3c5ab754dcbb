"""Pods that say how long they run go where what is lent lasts; nobody else is affected."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.scheduler.plugin.status import SKIP
from koordinator.scheduler.plugins.batch_duration import BatchDuration, duration_scores
from tests.scheduler.small_cluster import SmallCluster
from tests.scheduler.world import node, pod

GIB = 2**30
BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"


def lending(name: str, *durations: tuple[int, int], text: str = "") -> dict[str, Any]:
    """A node that lends 20 cores now, and (cores, hours) for longer."""
    body = node(name, cpu="64", memory="64Gi", extra={BATCH_CPU: "20000", BATCH_MEMORY: str(40 * GIB)})
    if durations or text:
        hours, cpu = [hour for _, hour in durations], [cores * 1000 for cores, _ in durations]
        memory = [40 * GIB] * len(hours)
        said = f'{{"hours": {hours}, "cpuMilli": {cpu}, "memoryBytes": {memory}}}'
        body["metadata"].setdefault("annotations", {})["node.koordinator.sh/batch-durations"] = text or said
    return body


def batch(name: str, cores: int, runs: str = "", deadline_s: int | None = None) -> dict[str, Any]:
    body = pod(name, requests={BATCH_CPU: str(cores * 1000), BATCH_MEMORY: str(GIB)})
    if runs:
        body["metadata"].setdefault("annotations", {})["koordinator.sh/expected-duration"] = runs
    if deadline_s is not None:
        body["spec"]["activeDeadlineSeconds"] = deadline_s
    return body


def scores(cluster: SmallCluster, body: dict[str, Any]) -> dict[str, int] | None:
    plugin = cluster.plugin(BatchDuration)
    state = plugin.prepare(cluster.pod(body))
    if plugin.pre_score(state) is SKIP:
        return None
    rows = cluster.table.rows
    names = [cluster.table.node_at(row).metadata.name for row in rows.tolist()]  # type: ignore[union-attr]
    return dict(zip(names, plugin.score(state, rows).tolist(), strict=True))


@pytest.fixture
def cluster() -> SmallCluster:
    found = SmallCluster.shipped()
    found.node(lending("until-morning", (20, 1), (20, 2), (4, 8), (4, 24)))
    found.node(lending("always", (16, 1), (16, 2), (16, 8), (16, 24)))
    found.node(lending("silent"))
    return found


def test_a_long_task_goes_where_what_is_lent_lasts(cluster: SmallCluster) -> None:
    assert scores(cluster, batch("long", 10, "8h")) == {"until-morning": 25, "always": 100, "silent": 50}
    assert scores(cluster, batch("short", 10, "90m")) == {"until-morning": 100, "always": 100, "silent": 50}


def test_a_deadline_says_how_long_a_pod_runs_at_most(cluster: SmallCluster) -> None:
    assert scores(cluster, batch("job", 10, deadline_s=8 * 3600)) == scores(cluster, batch("job", 10, "8h"))


def test_what_others_hold_of_it_does_not_last_for_one_more(cluster: SmallCluster) -> None:
    cluster.pod(batch("before", 8) | {"spec": {**batch("before", 8)["spec"], "nodeName": "always"}})

    found = scores(cluster, batch("long", 10, "8h"))

    assert found is not None and found["always"] == 0


@pytest.mark.parametrize(
    "body",
    [batch("says nothing", 10), batch("no duration", 10, "soon"), pod("service", cpu="1", memory="1Gi")],
    ids=lambda body: body["metadata"]["name"],
)
def test_who_says_nothing_or_asks_for_nothing_that_is_lent_is_not_scored(
    cluster: SmallCluster, body: dict[str, Any]
) -> None:
    assert scores(cluster, body) is None


@pytest.mark.parametrize(
    "text",
    ["{", '{"hours": [1, 2], "cpuMilli": [1], "memoryBytes": [1]}', '{"hours": [2, 1], "cpuMilli": [1, 1],'
     ' "memoryBytes": [1, 1]}', '{"hours": [0], "cpuMilli": [1], "memoryBytes": [1]}'],
)  # fmt: skip
def test_a_node_that_cannot_be_read_says_nothing(text: str) -> None:
    cluster = SmallCluster.shipped()
    cluster.node(lending("broken", text=text))

    assert scores(cluster, batch("long", 10, "8h")) is None


def test_nodes_that_no_longer_say_how_long_are_like_those_that_never_did(cluster: SmallCluster) -> None:
    for name in ("until-morning", "always"):
        cluster.node(lending(name))

    assert scores(cluster, batch("long", 10, "8h")) is None


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4), st.integers(0, 50), st.floats(0.1, 40))
def test_more_lent_and_shorter_tasks_never_score_less(lent: list[int], asked: int, needed: float) -> None:
    hours = np.array([[1], [4], [8], [24]])
    cpu = np.minimum.accumulate(np.array(lent))[:, None]
    wanted = np.array([[asked], [0]])

    def score(cpu: Any, hours_needed: float) -> int:
        return int(duration_scores(hours, cpu, cpu, wanted, hours_needed)[0])

    assert 0 <= score(cpu, needed) <= 100
    assert score(cpu + 1, needed) >= score(cpu, needed)
    assert score(cpu, needed / 2) >= score(cpu, needed)
