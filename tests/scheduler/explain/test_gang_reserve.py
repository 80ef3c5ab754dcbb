"""Explanations of gangs whose members get CPUs, NUMA nodes, volumes of their own: amounts alone do not decide."""

from typing import Any

import pytest

from koordinator.api.decode import from_builtins
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.api.storage import PersistentVolumeClaim, StorageClass
from koordinator.scheduler.explain import gang_rehearsal
from koordinator.scheduler.explain.answer import PodVerdict
from koordinator.scheduler.plugins.node_numa_resource.plugin import NodeNUMAResource
from tests.scheduler.explain.builders import Bench
from tests.scheduler.explain.test_gang_slices import live
from tests.scheduler.node_numa_resource import cluster as machines

SINGLE = {"numaTopologyPolicy": "SingleNUMANode"}
RESERVED = {"node.koordinator.sh/reservation": '{"reservedCPUs":"0-3"}'}


def machine(cluster: Bench, name: str, **parts: Any) -> None:
    """Two NUMA nodes of 8 CPUs."""
    cluster.node(name, cpu="16", memory="64Gi")
    cluster.seen(from_builtins(machines.report(name, **parts), NodeResourceTopology))


def members(cluster: Bench, count: int, **parts: Any) -> None:
    for number in range(count):
        body = machines.pod(f"job-{number}", **parts)
        body["metadata"]["labels"]["pod-group.scheduling.sigs.k8s.io"] = "job"
        cluster.seen(cluster.of(body).pod)


def holdings(cluster: Bench) -> list[dict[str, Any]]:
    [profile] = cluster.engine.profiles.values()
    plugin = next(each for each in profile.plugins if isinstance(each, NodeNUMAResource))
    rows = cluster.engine.table.rows.tolist()
    assert not plugin.books._aside and not plugin.books._chosen
    return [dict(plugin.books.at(row).node_allocation.holdings) for row in rows]


def test_members_that_bind_cpus_count_those_that_are_free() -> None:
    cluster = Bench()
    machine(cluster, "a", annotations=RESERVED)
    machine(cluster, "b")
    cluster.pod_group("job", 8)
    members(cluster, 8, qos="LSR", cpu="4")

    answer = cluster.gang("job")

    assert answer.verdict is PodVerdict.UNSCHEDULABLE
    assert "7 of 8 members fit; the 8th" in answer.sentence
    assert "not enough cpus available to satisfy request" in answer.sentence
    assert answer.fit is not None and answer.fit.nodes == {"b": 4, "a": 3}
    assert holdings(cluster) == [{}, {}]


def test_members_that_stay_on_one_numa_node_each_do_not_share_what_is_left_of_two() -> None:
    cluster = Bench()
    machine(cluster, "a")
    cluster.pod_group("job", 3)
    members(cluster, 3, cpu="5", numa=SINGLE)

    answer = cluster.gang("job")

    assert "2 of 3 members fit; the 3rd (default/job-2) finds no place on any of 1 nodes" in answer.sentence
    assert holdings(cluster) == [{}]


def test_what_was_booked_in_one_slice_is_booked_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_rehearsal, "SLICE_US", 1)
    cluster = Bench()
    machine(cluster, "a", annotations=RESERVED)
    cluster.pod_group("job", 4)
    members(cluster, 4, qos="LSR", cpu="4")

    answer = live(cluster)

    assert "3 of 4 members fit; the 4th" in answer.sentence
    assert holdings(cluster) == [{}]


def test_volumes_that_are_chosen_only_when_a_member_is_placed_are_told_to_be_left_out() -> None:
    cluster = Bench().node("n", cpu="8")
    late = {
        "metadata": {"name": "late"},
        "provisioner": "disk.example.com",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    cluster.seen(from_builtins(late, StorageClass))
    cluster.pod_group("job", 2)
    for number in range(2):
        claim = {
            "metadata": {"namespace": "default", "name": f"data-{number}", "uid": f"data-{number}"},
            "spec": {
                "storageClassName": "late",
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
        cluster.seen(from_builtins(claim, PersistentVolumeClaim))
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": f"data-{number}"}}
        cluster.member(f"job-{number}", "job", cpu="1", volumes=[volume])

    answer = cluster.gang("job")

    assert answer.notes == [
        "not looked at: what VolumeBinding books for each member (Reserve); a node may still refuse"
    ]
