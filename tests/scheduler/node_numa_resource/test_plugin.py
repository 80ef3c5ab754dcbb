"""What users get from NodeNUMAResource, through the engine."""

import pytest

from koordinator.scheduler.cycle import Placed, Unplaced
from tests.scheduler.node_numa_resource.cluster import Cluster, Json, cpus_of, numa_of, pod

SINGLE = {"numaTopologyPolicy": "SingleNUMANode"}
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
    assert cluster.plugin.books.at(row).ledger.holdings

    cluster.engine.cycle.forget(cluster.profile, placed.pod, placed.evaluation, "a")

    assert not cluster.plugin.books.at(row).ledger.holdings
