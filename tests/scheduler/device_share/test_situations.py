"""Nodes that are alike in all that decides are decided once; others get answers of their own."""

import json
from typing import Any

import pytest

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.device import Device
from koordinator.clock import FixedClock
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.plugins.device_share.partition import UNSUPPORTED_COUNT
from koordinator.scheduler.plugins.device_share.plugin import DeviceShare
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.device_share.test_plugin import ALLOCATED, CORE, HINT, JOINT, RATIO, RDMA, gpu_pod
from tests.scheduler.world import Json, node

PARTITIONS = "scheduling.koordinator.sh/gpu-partitions"
HONOR = {"node.koordinator.sh/gpu-partition-policy": "Honor"}
MODEL = "node.koordinator.sh/gpu-model"
SAME_SWITCH = {JOINT: json.dumps({"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"})}


class Machines:
    """Nodes with two switches, a card and a NIC at each; NICs have a fast and a slow virtual function."""

    def __init__(self, count: int = 2) -> None:
        self.engine = Engine(
            default_plugins.shipped_config(), FixedClock(0.0), plugins=installed_plugins(), classes_max=0
        )
        self.table = self.engine.table
        [profile] = self.engine.profiles.values()
        self.plugin = next(each for each in profile.plugins if isinstance(each, DeviceShare))
        self.asked = self.count_decisions()
        for number in range(count):
            self.set(f"node-{number}", {})

    def count_decisions(self) -> list[Any]:
        asked: list[Any] = []
        decide = self.plugin._exact.decide

        def counted(*args: Any, **more: Any) -> Any:
            asked.append(args)
            return decide(*args, **more)

        self.plugin._exact.decide = counted  # type: ignore[method-assign]
        return asked

    def set(self, name: str, labels: Json, partitions: Json | None = None, policy: Json = HONOR) -> None:
        self.table.set_node(from_builtins(node(name, cpu="64", memory="64Gi", labels=labels), Node))
        meta: Json = {"name": name}
        if partitions is not None:
            meta |= {"labels": policy, "annotations": {PARTITIONS: json.dumps(partitions)}}
        devices = [self._card(minor) for minor in (0, 1)] + [self._nic(minor) for minor in (0, 1)]
        self.plugin.set_device(None, from_builtins({"metadata": meta, "spec": {"devices": devices}}, Device))

    def _card(self, minor: int) -> Json:
        offered = {CORE: "100", RATIO: "100", "koordinator.sh/gpu-memory": "16Gi"}
        return self._at_switch(minor, {"type": "gpu", "resources": offered})

    def _nic(self, minor: int) -> Json:
        groups = [{"labels": {"type": t}, "vfs": [{"busID": f"{minor}.{t}"}]} for t in ("fast", "slow")]
        return self._at_switch(minor, {"type": "rdma", "resources": {RDMA: "100"}, "vfGroups": groups})

    def _at_switch(self, minor: int, body: Json) -> Json:
        place = {"socketID": 0, "nodeID": 0, "pcieID": f"pci-{minor}"}
        return {**body, "minor": minor, "id": f"{body['type']}-{minor}", "health": True, "topology": place}

    def take(self, node_name: str, device_type: str, minor: int, amounts: Json, vf: str = "") -> None:
        """A pod on a node holds a part of a device."""
        held: Json = {"minor": minor, "resources": amounts}
        if vf:
            held["extension"] = {"vfs": [{"busID": vf}]}
        name = f"holder-{len(list(self.table.places()))}"
        body = gpu_pod(name, annotations={ALLOCATED: json.dumps({device_type: [held]})})
        self.table.assign(PodInfo.of(from_builtins(body, Pod), self.table.registry), node_name)

    def passes(self, body: Json) -> list[bool]:
        """Filter of a pod on all nodes, in order."""
        state = self.plugin.prepare(PodInfo.of(from_builtins(body, Pod), self.table.registry))
        return [not code for code in self.plugin.filter(state, self.table.rows).tolist()]


def test_many_nodes_alike_are_decided_once_whatever_else_pods_ask_for() -> None:
    machines = Machines(50)
    for number in range(25):
        machines.take(f"node-{number}", "rdma", 0, {RDMA: "1"}, f"0.{'fast' if number % 2 else 'slow'}")

    assert all(machines.passes(gpu_pod("one", 100, annotations=SAME_SWITCH, extra={RDMA: "1"})))
    assert len(machines.asked) == 1
    assert all(machines.passes(gpu_pod("two", 100, annotations=SAME_SWITCH, extra={RDMA: "1", "cpu": "3"})))
    assert len(machines.asked) == 1


def test_nodes_whose_free_virtual_functions_are_of_another_kind_get_an_answer_of_their_own() -> None:
    machines = Machines()
    for minor in (0, 1):
        machines.take("node-0", "rdma", minor, {RDMA: "1"}, f"{minor}.fast")
        machines.take("node-1", "rdma", minor, {RDMA: "1"}, f"{minor}.slow")

    wants_fast = {HINT: json.dumps({"rdma": {"vfSelector": {"matchLabels": {"type": "fast"}}}})}

    assert machines.passes(gpu_pod("fast", annotations=wants_fast, extra={RDMA: "1"})) == [False, True]


def test_which_card_is_in_use_decides_where_a_part_of_one_must_have_a_nic_beside_it() -> None:
    machines = Machines()
    for number in (0, 1):
        machines.take(f"node-{number}", "rdma", 0, {RDMA: "100"})
        machines.take(f"node-{number}", "gpu", number, {CORE: "10", RATIO: "10"})

    both = gpu_pod("both", 50, annotations=SAME_SWITCH, extra={RDMA: "1"})

    # The card in use comes first; only on the second node does it have a NIC that is free.
    assert machines.passes(both) == [False, True]


@pytest.mark.parametrize("fitting", [None, {"2": [{"minors": [0, 1]}]}], ids=["any cards", "a partition"])
@pytest.mark.parametrize("fits_first", [True, False])
def test_what_a_number_meant_before_is_not_what_it_means_now(fits_first: bool, fitting: Json | None) -> None:
    machines = Machines(1)
    single = {"1": [{"minors": [0]}, {"minors": [1]}]}

    for number in range(200):
        is_fitting = (number % 70 < 35) == fits_first
        machines.set("node-0", {MODEL: f"model-{number}"}, fitting if is_fitting else single)

        assert machines.passes(gpu_pod("pair", 200)) == [is_fitting], number
    assert len(machines.plugin.cache.columns.kinds.values) < 100


@pytest.mark.parametrize(
    "pairs",
    [None, [], [{"minors": []}], [{}], [{"minors": [1]}], [{"minors": [0, 0]}], [{"minors": [0, 1, 2]}]],
)
def test_a_partition_of_other_than_its_number_of_cards_is_none(pairs: Json | None) -> None:
    machines = Machines(1)
    machines.set("node-0", {}, {"1": [{"minors": [0]}], "2": pairs})

    pair = PodInfo.of(from_builtins(gpu_pod("pair", 200), Pod), machines.table.registry)
    state = machines.plugin.prepare(pair)

    assert state is not None
    decision = machines.plugin._exact.decide(state, machines.plugin.cache.at(0))
    assert decision.status == UNSUPPORTED_COUNT
    assert machines.passes(gpu_pod("one", 100)) == [True]


@pytest.mark.parametrize("table", [["2"], {"two": []}, {"2": {}}])
def test_a_table_that_cannot_be_read_closes_only_nodes_that_must_keep_to_it(
    table: Any, caplog: pytest.LogCaptureFixture
) -> None:
    machines = Machines()
    machines.set("node-0", {}, table)
    machines.set("node-1", {}, table, policy={})

    assert machines.passes(gpu_pod("pair", 200)) == [False, True]
    assert "no partition table can be read: Device node-1" in caplog.text
