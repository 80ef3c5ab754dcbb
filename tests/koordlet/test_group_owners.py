"""Groups by name: whose they are, also below containers, and after the list of pods has changed."""

from collections.abc import Mapping

from koordinator.host.cgroup_layout import Driver
from koordinator.koordlet import node_pods
from koordinator.koordlet.node_pods import GroupOwner, GroupOwners, PodRecord
from tests.koordlet.qos.pods import pod_object


def test_a_group_is_that_of_the_pod_or_container_that_it_lies_in() -> None:
    record = node_pods.record(pod_object("w", "LS", containers=2), Driver.CGROUPFS)
    listed: Mapping[str, PodRecord] = {"w": record}
    owners = GroupOwners(lambda: listed)
    container = record.containers[1]

    assert owners.of(record.group) == GroupOwner("default", "w")
    assert owners.of(f"{record.group}/sandbox") == GroupOwner("default", "w")
    of_container = GroupOwner("default", "w", container.name)
    assert owners.of(container.group) == owners.of(f"{container.group}/init.scope") == of_container
    assert owners.of("kubepods/burstable") is owners.of(f"{record.group}x") is owners.of("") is None

    listed = {}
    assert owners.of(record.group) is None
