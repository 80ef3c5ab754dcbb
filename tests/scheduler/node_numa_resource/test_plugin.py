"""What users get from NodeNUMAResource, through the engine."""

import json

import msgspec
import numpy as np
import pytest

from koordinator.clock import FixedClock
from koordinator.scheduler.config.config import SchedulerConfig
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.results import Placed, Unplaced
from koordinator.scheduler.plugin.capabilities import ApiRequest
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.plugins.node_numa_resource.plugin import NodeNUMAResource
from koordinator.scheduler.table.trial import trial_of
from tests.scheduler.node_numa_resource.cluster import (
    NOW_S,
    Cluster,
    Json,
    books_of,
    cpus_of,
    numa_of,
    pod,
    report,
)

SINGLE = {"numaTopologyPolicy": "SingleNUMANode"}
PLUGINS = {"filter": {"enabled": [{"name": "NodeNUMAResource"}]}}
SINGLE_LABEL = {"node.koordinator.sh/numa-topology-policy": "SingleNUMANode"}


def refused(cluster: Cluster, body: Json) -> str:
    result = cluster.run(body)
    assert isinstance(result, Unplaced)
    return result.status.message


async def test_an_lsr_pod_gets_whole_cores_of_its_own() -> None:
    cluster = Cluster()
    cluster.machine("a")

    first = await cluster.place(pod("one", qos="LSR"))
    second = await cluster.place(pod("two", qos="LSR"))

    assert cpus_of(first) == {0, 1, 2, 3}
    assert len(cpus_of(second)) == 4
    assert not cpus_of(first) & cpus_of(second)
    spec = first["metadata"]["annotations"]["scheduling.koordinator.sh/resource-spec"]
    assert spec == '{"preferredCPUBindPolicy":"FullPCPUs"}'


async def test_a_node_without_free_cpus_is_refused_by_filter_also_for_preferred_policies() -> None:
    cluster = Cluster()
    cluster.machine("a", annotations={"node.koordinator.sh/reservation": '{"reservedCPUs":"0-13"}'})

    message = refused(cluster, pod("p", cpu="4", qos="LSR"))

    assert "1 not enough cpus available to satisfy request" in message


async def test_a_pod_with_a_numa_policy_stays_on_one_numa_node() -> None:
    cluster = Cluster()
    cluster.machine("a")

    placed = [await cluster.place(pod(f"p{n}", cpu="6", numa=SINGLE)) for n in range(2)]

    assert [list(numa_of(body)) for body in placed] == [[0], [1]]
    assert numa_of(placed[0])[0] == {"cpu": "6", "memory": "1Gi"}
    message = refused(cluster, pod("late", cpu="3", numa=SINGLE))
    assert "1 Unaligned NUMA Hint cause cpu prefer [11] among [11],memory prefer [11] among [11]" in message


@pytest.mark.parametrize("qos", ["LSR", ""])
async def test_a_policy_label_of_the_node_is_enough(qos: str) -> None:
    cluster = Cluster()
    cluster.machine("a", labels=SINGLE_LABEL)

    placed = await cluster.place(pod("p", cpu="8", qos=qos))

    assert list(numa_of(placed)) == [0]
    assert len(cpus_of(placed)) == (8 if qos else 0)


async def test_reserved_cpus_are_never_given_out() -> None:
    cluster = Cluster()
    cluster.machine("a", annotations={"node.koordinator.sh/reservation": '{"reservedCPUs":"0-3"}'})

    placed = await cluster.place(pod("p", cpu="12", qos="LSR"))

    assert cpus_of(placed) == set(range(4, 16))


async def test_a_pod_seen_before_the_report_of_its_node_keeps_its_cpus() -> None:
    first = Cluster()
    first.machine("a")
    bound = await first.place(pod("one", qos="LSR"))

    second = Cluster()
    second.assign(bound)
    second.machine("a")
    other = await second.place(pod("two", qos="LSR"))

    assert not cpus_of(bound) & cpus_of(other)


async def test_a_bind_policy_label_binds_whoever_requests_cpu() -> None:
    cluster = Cluster()
    cluster.machine("a", labels={"node.koordinator.sh/cpu-bind-policy": "FullPCPUsOnly"})

    placed = await cluster.place(pod("p", cpu="2"))

    assert cpus_of(placed) == {0, 1}
    assert "1 the requested CPUs must be integer" in refused(cluster, pod("q", cpu="1500m"))
    assert "1 node(s) requested cpus not multiple cpus per core" in refused(cluster, pod("r", cpu="3"))


def test_an_ordinary_pod_is_checked_from_the_moment_on_that_a_node_has_a_policy() -> None:
    cluster = Cluster()
    cluster.machine("a")
    state = cluster.plugin.prepare(cluster.info(pod("p")))
    assert cluster.plugin.pre_filter(state).status.is_skip
    assert isinstance(cluster.run(pod("p", cpu="1500m")), Placed)

    cluster.machine("a", labels={"node.koordinator.sh/cpu-bind-policy": "FullPCPUsOnly"})

    assert not cluster.plugin.pre_filter(state).status.is_skip
    assert "1 the requested CPUs must be integer" in refused(cluster, pod("q", cpu="1500m"))


async def test_what_an_earlier_attempt_left_on_the_pod_is_taken_back() -> None:
    cluster = Cluster()
    cluster.machine("a")
    body = pod("p")
    body["metadata"]["annotations"]["scheduling.koordinator.sh/resource-status"] = '{"cpuset":"0-3"}'

    placed = await cluster.place(body)

    assert cpus_of(placed) == frozenset()
    cluster.table.unassign("uid-p")
    assert len(cpus_of(await cluster.place(pod("q", cpu="16", qos="LSR")))) == 16


def test_unreserve_gives_everything_back() -> None:
    cluster = Cluster()
    cluster.machine("a")
    placed = cluster.run(pod("p", qos="LSR"))
    assert isinstance(placed, Placed)
    row = cluster.table.row_of("a")
    assert row is not None
    assert cluster.plugin.books.at(row).node_allocation.holdings

    cluster.engine.cycle.forget(cluster.profile, placed.pod, placed.evaluation, "a")

    assert not cluster.plugin.books.at(row).node_allocation.holdings


def designated(body: Json, cpus: str, numa: dict[int, Json] | None = None) -> Json:
    status = {
        "cpuset": cpus,
        "numaNodeResources": [{"node": key, "resources": amounts} for key, amounts in (numa or {}).items()],
    }
    annotations = body["metadata"]["annotations"]
    annotations["scheduling.koordinator.sh/resource-status"] = json.dumps(status)
    annotations["internal.scheduling.koordinator.sh/scheduling-hint"] = (
        '{"extensions":{"NodeNUMAResource":{}}}'
    )
    return body


async def test_a_designated_pod_gets_exactly_the_cpus_that_were_chosen() -> None:
    cluster = Cluster()
    cluster.machine("a")

    placed = await cluster.place(designated(pod("p", qos="LSR"), "6-7,12-13"))

    assert cpus_of(placed) == {6, 7, 12, 13}
    taken = refused(cluster, designated(pod("q", qos="LSR"), "12-15"))
    assert "1 not enough cpus available to satisfy request" in taken


async def test_a_designated_pod_gets_the_numa_node_that_was_chosen() -> None:
    cluster = Cluster()
    cluster.machine("a", labels=SINGLE_LABEL)
    amounts = {"cpu": "4", "memory": "1Gi"}

    placed = await cluster.place(designated(pod("p"), "", {1: amounts}))

    assert numa_of(placed) == {1: amounts}
    too_much = refused(cluster, designated(pod("q", cpu="8"), "", {1: {"cpu": "8", "memory": "1Gi"}}))
    assert "1 Insufficient NUMA cpu" in too_much


def test_a_malformed_designation_is_an_error_of_the_pod() -> None:
    cluster = Cluster()
    cluster.machine("a")

    assert "resource-status" in refused(cluster, designated(pod("p", qos="LSR"), "7-x"))


async def test_the_endpoint_tells_who_holds_what() -> None:
    cluster = Cluster()
    cluster.machine("a")
    await cluster.place(pod("one", qos="LSR"))
    [endpoint] = cluster.plugin.endpoints()
    assert endpoint.path == "nodes/{name}"

    answer = endpoint.answer(ApiRequest({"name": "a"}))

    assert answer.status == 200
    assert answer.body["availableCPUs"] == "4-15"
    assert answer.body["allocatedCPUs"]["0"] == {
        "cpuID": 0,
        "coreID": 0,
        "nodeID": 0,
        "socketID": 0,
        "refCount": 1,
        "exclusivePolicy": "",
    }
    assert [held["uid"] for held in answer.body["allocatedPods"]] == ["uid-one"]
    assert answer.body["cpuTopology"]["numCores"] == 8
    assert endpoint.answer(ApiRequest({"name": "b"})).status == 500


def test_two_profiles_see_what_the_other_has_just_given_away() -> None:
    config = msgspec.convert(
        {
            "profiles": [
                {"schedulerName": "koord-scheduler", "plugins": PLUGINS},
                {
                    "schedulerName": "other",
                    "plugins": PLUGINS,
                    "pluginConfig": [
                        {"name": "NodeNUMAResource", "args": {"defaultCPUBindPolicy": "SpreadByPCPUs"}}
                    ],
                },
            ]
        },
        SchedulerConfig,
    )
    engine = Engine(config, FixedClock(NOW_S), plugins=installed_plugins())
    first, second = (
        next(p for p in profile.plugins if isinstance(p, NodeNUMAResource))
        for profile in engine.profiles.values()
    )

    assert first is not second
    assert first.books is second.books


async def test_preemption_trials_give_cpus_back_and_take_them_again_exactly() -> None:
    cluster = Cluster()
    cluster.machine("a")
    bound = [
        await cluster.place(pod(f"p{n}", qos="LSR", spec={"preferredCPUExclusivePolicy": "PCPULevel"}))
        for n in range(3)
    ]
    on_its_way = cluster.run(pod("assumed", qos="LSR"))
    assert isinstance(on_its_way, Placed)
    before = books_of(cluster)
    state = cluster.plugin.prepare(cluster.info(pod("asks", cpu="8", qos="LSR")))
    row = cluster.table.row_of("a")
    assert row is not None
    assert cluster.plugin.filter(state, np.array([row], np.intp))[0] != 0

    with trial_of(cluster.table) as trial:
        for uid in (bound[0]["metadata"]["uid"], on_its_way.pod.uid):
            trial.take(cluster.table.pods_at(row)[uid])
        assert cluster.plugin.filter(state, np.array([row], np.intp))[0] == 0
        trial.add(on_its_way.pod, "a")
        assert cluster.plugin.filter(state, np.array([row], np.intp))[0] != 0

    assert books_of(cluster) == before
    assert cluster.plugin.books.reserved(on_its_way.pod.uid) is not None
    assert cluster.plugin.filter(state, np.array([row], np.intp))[0] != 0


async def test_what_a_report_takes_away_and_brings_back_changes_nothing_for_those_who_hold_cpus() -> None:
    cluster = Cluster()
    cluster.machine("a")
    bound = await cluster.place(pod("p", qos="LSR"))
    before = books_of(cluster)

    cluster.remove_report(report("a"))
    assert "1 node(s) invalid CPU Topology" in refused(cluster, pod("q", qos="LSR"))
    cluster.set_report(report("a"))
    assert books_of(cluster) == before
    cluster.table.remove_node("a")
    cluster.machine("a")

    assert books_of(cluster) == before
    assert not cpus_of(bound) & cpus_of(await cluster.place(pod("r", qos="LSR")))


def test_what_is_foreseen_of_ordinary_pods_comes_true() -> None:
    cluster = Cluster()
    for name in ("a", "b"):
        cluster.machine(name)
    info = cluster.info(pod("p", cpu="1500m"))
    state = cluster.plugin.prepare(info)
    assert cluster.plugin.foresees(state)
    rows = cluster.table.rows
    foreseen = cluster.plugin.score_ahead(state, rows, np.array([2, 1]))

    for number, name in enumerate(("a", "a", "b")):
        cluster.table.assign(cluster.info(pod(f"p{number}", cpu="1500m")), name)

    assert cluster.plugin.score(state, rows).tolist() == foreseen.tolist()
    cluster.machine("b", labels=SINGLE_LABEL)
    assert not cluster.plugin.foresees(state)


@pytest.mark.parametrize("requests", [{}, {"cpu": "0", "memory": "0"}])
@pytest.mark.parametrize("labels", [{}, SINGLE_LABEL], ids=["plain", "with a policy"])
def test_a_pod_that_requests_nothing_gets_no_score(requests: dict[str, str], labels: dict[str, str]) -> None:
    cluster = Cluster()
    for name in ("a", "b"):
        cluster.machine(name, labels=labels)
    cluster.table.assign(cluster.info(pod("held", cpu="3")), "a")
    assert not cluster.plugin.scores(cluster.plugin.prepare(cluster.info(pod("idle", requests=requests))))
    assert cluster.plugin.scores(cluster.plugin.prepare(cluster.info(pod("busy", cpu="1"))))
