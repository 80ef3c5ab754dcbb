"""How: machines, pods that hold something and pods that ask are drawn; what columns say about many nodes at once must
be what the exact functions say about each."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.scheduler.plugin.status import SUCCESS
from koordinator.scheduler.plugins.node_numa_resource.bulk import NUMAReason
from koordinator.scheduler.plugins.node_numa_resource.plugin import FEW, NodeNUMAResource, NUMAState
from koordinator.scheduler.table.columns import Rows
from tests.scheduler.node_numa_resource.cluster import Cluster, Json, bound_to, node, pod, report

Property = Callable[[Cluster, NUMAState, Rows], None]

POLICIES = ("", "", "BestEffort", "Restricted", "SingleNUMANode", "nonsense")


@st.composite
def nodes(draw: st.DrawFn) -> tuple[Json, Json | None]:
    labels = {
        "node.koordinator.sh/numa-topology-policy": draw(st.sampled_from(POLICIES)),
        "node.koordinator.sh/cpu-bind-policy": draw(
            st.sampled_from(("", "", "", "FullPCPUsOnly", "SpreadByPCPUs"))
        ),
    }
    annotations = {}
    ratio = draw(
        st.sampled_from(("", "", "", '{"cpu":1.5}', '{"cpu":1.07,"memory":2}', "{", '{"cpu":1e308}'))
    )
    if ratio:
        annotations["node.koordinator.sh/resource-amplification-ratio"] = ratio
    numa_per_socket = draw(st.sampled_from((1, 1, 2, 2, 5)))
    sockets = draw(st.integers(1, 2))
    cores = draw(st.integers(1, 4))
    threads = draw(st.sampled_from((1, 2)))
    body = node(
        "x", cpus=sockets * numa_per_socket * cores * threads * 2, labels=labels, annotations=annotations
    )
    if draw(st.integers(0, 7)) == 0:
        return body, None
    extra = draw(st.sampled_from(({}, {"example.com/gpu": "2"}, {"kubernetes.io/batch-cpu": "4000"})))
    reserved = draw(st.sampled_from(("", "0", "0-2", "0-9")))
    own = {"node.koordinator.sh/reservation": json.dumps({"reservedCPUs": reserved})} if reserved else {}
    described = report(
        "x",
        sockets=sockets,
        numa_per_socket=numa_per_socket,
        cores=cores,
        threads=threads,
        memory_gi=draw(st.integers(1, 8)),
        annotations=own,
        extra=extra,
        numa_step=draw(st.sampled_from((1, 1, 3))),
        policies=draw(st.sampled_from(((), ("SingleNUMANodePodLevel",)))),
    )
    if draw(st.integers(0, 9)) == 0:
        del described["metadata"]["annotations"]["node.koordinator.sh/cpu-topology"]
    if draw(st.integers(0, 9)) == 0:
        described["zones"] = []
    if draw(st.integers(0, 9)) == 0:
        for zone in described["zones"]:
            zone["resources"] = [r for r in zone["resources"] if r["name"] != "cpu"]
    return body, described


@st.composite
def bound_pods(draw: st.DrawFn) -> Json:
    name = f"held-{draw(st.integers(0, 5))}"
    cpus = draw(st.sets(st.integers(0, 20), max_size=5))
    numa = [
        {"node": draw(st.sampled_from((0, 1, 2, 3))), "resources": {"cpu": f"{draw(st.integers(0, 5000))}m"}}
        for _ in range(draw(st.integers(0, 2)))
    ]
    numa += [{"node": 0, "resources": {"memory": f"{draw(st.integers(0, 6))}Gi", "example.com/gpu": "1"}}]
    status = {"cpuset": ",".join(map(str, sorted(cpus))), "numaNodeResources": numa}
    exclusive = draw(st.sampled_from(("", "None", "PCPULevel", "NUMANodeLevel")))
    body = pod(name, cpu=f"{len(cpus)}", spec={"preferredCPUExclusivePolicy": exclusive})
    annotations = {"scheduling.koordinator.sh/resource-status": json.dumps(status)}
    return bound_to(body, "", annotations)


@st.composite
def asking_pods(draw: st.DrawFn) -> Json:
    requests = {
        "cpu": draw(st.sampled_from(("1", "2", "3", "4", "6", "1500m", "0"))),
        "memory": draw(st.sampled_from(("0", "1Gi", "3Gi", "6Gi"))),
    }
    if draw(st.integers(0, 3)) == 0:
        requests["example.com/gpu"] = "1"
    if draw(st.integers(0, 3)) == 0:
        requests["kubernetes.io/batch-cpu"] = "1000"
    spec = {
        "requiredCPUBindPolicy": draw(st.sampled_from(("", "", "FullPCPUs", "SpreadByPCPUs"))),
        "preferredCPUBindPolicy": draw(st.sampled_from(("", "SpreadByPCPUs"))),
        "preferredCPUExclusivePolicy": draw(st.sampled_from(("", "PCPULevel", "NUMANodeLevel"))),
    }
    numa = {"numaTopologyPolicy": draw(st.sampled_from(POLICIES))}
    if draw(st.booleans()):
        numa["singleNUMANodeExclusive"] = draw(st.sampled_from(("Required", "Preferred")))
    return pod("asks", requests=requests, qos=draw(st.sampled_from(("", "LSR"))), spec=spec, numa=numa)


def drawn_cluster(drawn: list[tuple[Json, Json | None]], held: list[Json]) -> Cluster:
    cluster = Cluster()
    for number, (body, described) in enumerate(drawn):
        name = f"node-{number}"
        body["metadata"]["name"] = name
        cluster.set_node(body)
        if described is not None:
            described["metadata"]["name"] = name
            cluster.set_report(described)
    for number, body in enumerate(held):
        body["metadata"]["uid"] = f"uid-{number}"
        body["metadata"]["name"] = f"held-{number}"
        body["spec"]["nodeName"] = f"node-{number % len(drawn)}"
        cluster.assign(body)
    return cluster


def state_of(plugin: NodeNUMAResource, cluster: Cluster, body: Json) -> NUMAState:
    return plugin.prepare(cluster.info(body))


def of_machines(*, most: int, examples: int) -> Callable[[Property], Callable[[], None]]:
    """Run a property on up to `most` machines with as many pods, for a pod that can be placed somewhere at all."""

    def decorate(holds: Property) -> Callable[[], None]:
        @given(
            st.lists(nodes(), min_size=1, max_size=most), st.lists(bound_pods(), max_size=most), asking_pods()
        )
        @settings(max_examples=examples, deadline=None)
        def test(drawn: list[tuple[Json, Json | None]], held: list[Json], asks: Json) -> None:
            cluster = drawn_cluster(drawn, held)
            state = state_of(cluster.plugin, cluster, asks)
            if state.plan.status.is_success:
                holds(cluster, state, cluster.table.rows)

        test.__name__ = holds.__name__
        return test

    return decorate


def many(ask: Any, state: NUMAState, rows: Rows) -> Any:
    """The answer of columns, which are asked when there are more than a few rows."""
    repeats = FEW + 1
    return ask(state, np.tile(rows, repeats))[: rows.size]


@of_machines(most=4, examples=150)
def test_columns_say_what_a_trial_on_each_node_says(cluster: Cluster, state: NUMAState, rows: Rows) -> None:
    plugin = cluster.plugin

    codes = plugin.detail(state, rows, many(plugin.filter, state, rows))

    for row, code in zip(rows.tolist(), codes.tolist(), strict=True):
        exact = plugin.trial(state, state.pod, row)
        said = plugin.refusal(state, code) if code else SUCCESS
        assert code != NUMAReason.UNALIGNED
        assert said == exact.status
    feasible = rows[codes == 0]
    scores = many(plugin.score, state, feasible)
    for row, points in zip(feasible.tolist(), scores.tolist(), strict=True):
        assert points == plugin.exact_score(state, row)


@of_machines(most=4, examples=100)
def test_one_row_at_a_time_says_the_same_as_all_at_once(
    cluster: Cluster, state: NUMAState, rows: Rows
) -> None:
    plugin = cluster.plugin

    together = plugin.detail(state, rows, many(plugin.filter, state, rows))
    alone = plugin.detail(state, rows, plugin.filter(state, rows))

    for some, other in zip(together.tolist(), alone.tolist(), strict=True):
        assert bool(some) == bool(other)
        assert not some or plugin.refusal(state, some) == plugin.refusal(state, other)
    feasible = rows[together == 0]
    assert plugin.score(state, feasible).tolist() == many(plugin.score, state, feasible).tolist()


@of_machines(most=3, examples=150)
def test_what_filter_lets_pass_reserve_can_book(cluster: Cluster, state: NUMAState, rows: Rows) -> None:
    plugin = cluster.plugin

    info = state.pod

    for row in rows[plugin.filter(state, rows) == 0].tolist():
        name = cluster.table.name_of(row)
        cluster.table.assign(info, name, assumed=True)
        expected = plugin.trial(state, info, row, is_filtered=True)
        assert plugin.reserve(state, info, row).is_success
        got = plugin.books.reserved(info.uid)
        assert got is None or (got.allocation, got.binding) == (expected.allocation, expected.binding)
        plugin.unreserve(state, info, name)
        cluster.table.unassign(info.uid)


@given(st.lists(bound_pods(), min_size=3, max_size=12), asking_pods(), st.sampled_from(POLICIES))
@settings(max_examples=150, deadline=None)
def test_nodes_that_share_a_trial_get_the_same_words_as_from_trials_of_their_own(
    held: list[Json], asks: Json, policy: str
) -> None:
    labels = {"node.koordinator.sh/numa-topology-policy": policy}
    alike = [
        (node("x", cpus=16, labels=labels), report("x", numa_per_socket=2, cores=2, memory_gi=3))
        for _ in range(6)
    ]
    cluster = drawn_cluster(alike, held)
    plugin = cluster.plugin
    state = state_of(plugin, cluster, asks)
    if not state.plan.status.is_success:
        return
    rows = cluster.table.rows

    codes = plugin.detail(state, rows, many(plugin.filter, state, rows))

    for row, code in zip(rows.tolist(), codes.tolist(), strict=True):
        exact = plugin.trial(state, state.pod, row).status
        assert (plugin.refusal(state, code) if code else SUCCESS) == exact


@of_machines(most=4, examples=150)
def test_where_pods_do_not_matter_the_answer_is_the_same_without_them(
    cluster: Cluster, state: NUMAState, rows: Rows
) -> None:
    plugin = cluster.plugin
    is_fixed = ~plugin.pods_matter(state, rows)
    before = plugin.filter(state, rows)

    for row in rows.tolist():
        for uid in list(cluster.table.pods_at(row)):
            cluster.table.unassign(uid)

    assert plugin.filter(state, rows)[is_fixed].tolist() == before[is_fixed].tolist()


RESTRICTED = {"node.koordinator.sh/numa-topology-policy": "Restricted"}


def two_pairs_of_cpus(held: Json) -> Cluster:
    """Two nodes with two NUMA nodes of two CPUs and 1Gi each; on the first one, a pod holds `held`."""
    cluster = Cluster()
    for name in ("in-use", "free"):
        cluster.set_node(node(name, cpus=4, labels=RESTRICTED))
        cluster.set_report(report(name, cores=1, memory_gi=1))
    annotations = {"scheduling.koordinator.sh/resource-status": json.dumps(held)}
    cluster.assign(bound_to(pod("holds"), "in-use", annotations))
    return cluster


def refusals(cluster: Cluster, body: Json) -> list[tuple[str, ...]]:
    """Why columns refuse a pod, by node; empty where it fits."""
    plugin, rows = cluster.plugin, cluster.table.rows
    state = state_of(plugin, cluster, body)
    codes = plugin.detail(state, rows, many(plugin.filter, state, rows)).tolist()
    return [plugin.refusal(state, code).reasons if code else () for code in codes]


def test_restricted_counts_on_no_numa_node_where_something_is_used_up() -> None:
    memory_of_one = {"numaNodeResources": [{"node": 0, "resources": {"memory": "1Gi"}}]}
    cluster = two_pairs_of_cpus(memory_of_one)

    asked = {"cpu": "3", "memory": "1Gi"}
    assert refusals(cluster, pod("asks", requests=asked)) == [("Unsatisfied NUMA memory",), ()]


def test_several_numa_nodes_may_be_used_up_to_the_last_byte() -> None:
    cluster = two_pairs_of_cpus({})

    assert refusals(cluster, pod("asks", requests={"cpu": "4", "memory": "2Gi"})) == [(), ()]


def test_a_pod_that_wants_numa_nodes_to_itself_gets_none_together_with_one_that_is_somebodys() -> None:
    cpu_of_one = {"cpuset": "0", "numaNodeResources": [{"node": 0, "resources": {"cpu": "1"}}]}
    cluster = two_pairs_of_cpus(cpu_of_one)
    wants = {"numaTopologyPolicy": "Restricted", "singleNUMANodeExclusive": "Required"}

    of_used, of_free = refusals(cluster, pod("asks", requests={"cpu": "3"}, numa=wants))

    assert of_used and of_used[0].startswith("Unaligned NUMA Hint")
    assert not of_free


def test_pods_without_wishes_are_held_up_by_others_only_where_the_node_has_a_policy() -> None:
    cluster = Cluster()
    cluster.machine("plain")
    cluster.machine("aligned", labels={"node.koordinator.sh/numa-topology-policy": "SingleNUMANode"})
    rows = cluster.table.rows

    matters = cluster.plugin.pods_matter(state_of(cluster.plugin, cluster, pod("asks")), rows)

    assert matters.tolist() == [False, True]
    assert cluster.plugin.pods_matter(state_of(cluster.plugin, cluster, pod("lsr", qos="LSR")), rows).all()
