"""What columns say of many nodes is what the exact decision says of each; sharing evaluations changes no placement."""

import json
import random
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.device import Device
from koordinator.api.labels import SECONDARY_DEVICE_WELL_PLANNED
from koordinator.clock import FixedClock
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.results import Placed
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.plugins.device_share.allocate import node_score
from koordinator.scheduler.plugins.device_share.plugin import DeviceShare
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.world import Json, node, pod

PREFIX = "koordinator.sh/"
CORE, RATIO, MEMORY = (f"{PREFIX}gpu-{part}" for part in ("core", "memory-ratio", "memory"))
BATCH_CORE, BATCH_MEMORY = f"{PREFIX}batch-gpu-core", f"{PREFIX}batch-gpu-memory"
RDMA, FPGA, SHARED = f"{PREFIX}rdma", f"{PREFIX}fpga", f"{PREFIX}gpu.shared"
SCHEDULING = "scheduling.koordinator.sh/"
GIB = 1 << 30

REQUESTS: list[Json] = [
    {"nvidia.com/gpu": "1"},
    {"nvidia.com/gpu": "2"},
    {CORE: "400", RATIO: "400"},
    {CORE: "50", RATIO: "50"},
    {CORE: "30", RATIO: "70"},
    {CORE: "20", MEMORY: str(5 * GIB)},
    {MEMORY: str(GIB // 64)},
    {CORE: "100", RATIO: "60", SHARED: "2"},
    {RDMA: "30"},
    {RDMA: "200"},
    {FPGA: "100"},
    {"nvidia.com/gpu": "1", RDMA: "20"},
    {CORE: "50", RATIO: "50", RDMA: "100", FPGA: "50"},
    {"huawei.com/npu-core": "4", RATIO: "20"},
    {BATCH_CORE: "30", BATCH_MEMORY: "4Gi"},
    {BATCH_CORE: "5", BATCH_MEMORY: "1Gi"},
    {BATCH_CORE: "10", BATCH_MEMORY: "1Gi", RDMA: "20"},
]
ANNOTATIONS: list[Json] = [
    {},
    {},
    {},
    {},
    {"device-allocate-hint": {"rdma": {"vfSelector": {}}}},
    {"device-allocate-hint": {"rdma": {"vfSelector": {"matchLabels": {"type": "fast"}}}}},
    {"device-allocate-hint": {"rdma": {"selector": {"matchLabels": {"tier": "a"}}, "vfSelector": {}}}},
    {"device-allocate-hint": {"gpu": {"requiredTopologyScope": "PCIe"}}},
    {"device-allocate-hint": {"gpu": {"selector": {"matchLabels": {"tier": "a"}}}}},
    {"device-allocate-hint": {"rdma": {"allocateStrategy": "ApplyForAll"}}},
    {"device-allocate-hint": {"rdma": {"allocateStrategy": "RequestsAsCount"}}},
    {"device-joint-allocate": {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}},
    {
        "device-joint-allocate": {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"},
        "device-allocate-hint": {"rdma": {"vfSelector": {"matchLabels": {"type": "fast"}}}},
    },
    {"gpu-partition-spec": {}},
]
PARTITIONS = {"1": [{"minors": [0]}, {"minors": [1]}], "2": [{"minors": [0, 1]}, {"minors": [2, 3]}]}


def pod_body(name: str, requests: Json, annotations: Json) -> Json:
    body = pod(name, requests={"cpu": "100m", "memory": "1Gi", **requests})
    body["metadata"]["uid"] = f"uid-{name}"
    body["metadata"]["annotations"] = {
        SCHEDULING + key: json.dumps(each) for key, each in annotations.items()
    }
    return body


class Devices:
    """An engine, and nodes with all kinds of devices that come, go and change; the same ones for the same seed."""

    def __init__(self, seed: int, classes_max: int = 64, *, nodes: int = 6, is_odd: bool = True) -> None:
        self.rng, self.is_odd = random.Random(seed), is_odd
        self.engine = Engine(
            default_plugins.shipped_config(),
            FixedClock(0.0),
            seed=seed,
            classes_max=classes_max,
            plugins=installed_plugins(),
        )
        [self.profile] = self.engine.profiles.values()
        self.plugin = next(p for p in self.profile.plugins if isinstance(p, DeviceShare))
        self.placed: list[PodInfo] = []
        self.history: list[str] = []
        self._numbers = iter(range(1_000_000))
        for number in range(nodes):
            self.set_node(number)
            self.set_device(number)

    @property
    def table(self) -> Any:
        return self.engine.table

    def set_node(self, number: int) -> None:
        rng, labels = self.rng, {}
        if rng.random() < 0.3:
            labels["node.koordinator.sh/gpu-model"] = rng.choice(("H100", "A100"))
        if rng.random() < 0.2:
            labels["node.koordinator.sh/gpu-partition-policy"] = rng.choice(("Honor", "Prefer"))
        extra = dict.fromkeys((CORE, RATIO, RDMA, FPGA, "huawei.com/npu-core"), "800")
        extra |= {MEMORY: "1Ti", "nvidia.com/gpu": "8", BATCH_CORE: "800", BATCH_MEMORY: "1Ti"}
        body = node(
            f"node-{number}", cpu="64", memory="256Gi", labels=labels if self.is_odd else {}, extra=extra
        )
        if rng.random() < 0.7:
            body["metadata"]["annotations"] = {"node.koordinator.sh/batch-gpus": self._lent()}
        self.table.set_node(from_builtins(body, Node))

    def _lent(self) -> str:
        """What some cards lend; one of them is another card than the Device has."""
        rng = self.rng
        entries = [
            {
                "minor": minor,
                "id": f"gpu-{minor}" if rng.random() < 0.9 else "gpu-of-old",
                "resources": {
                    BATCH_CORE: str(rng.choice((5, 30, 80))),
                    BATCH_MEMORY: f"{rng.choice((1, 8))}Gi",
                },
            }
            for minor in range(4)
            if rng.random() < 0.6
        ]
        return json.dumps({"gpu": entries})

    def set_device(self, number: int) -> None:
        """A Device comes or changes, goes, or stays away."""
        rng = self.rng
        if rng.random() < 0.1:
            self.plugin.set_device(self._device(number), None)
            return
        self.plugin.set_device(None, self._device(number))

    def _device(self, number: int) -> Device:
        rng = self.rng
        devices = [self._card(minor) for minor in range(rng.choice((0, 1, 2, 4, 4, 8)))]
        devices += [
            self._nic(kind, minor) for kind in ("rdma", "fpga") for minor in range(rng.choice((0, 1, 4)))
        ]
        rng.shuffle(devices)
        meta: Json = {"name": f"node-{number}"}
        if self.is_odd and rng.random() < 0.2:
            meta["annotations"] = {SCHEDULING + "gpu-partitions": json.dumps(PARTITIONS)}
            meta["labels"] = {"node.koordinator.sh/gpu-partition-policy": rng.choice(("Honor", "Prefer"))}
        if self.is_odd and rng.random() < 0.3:
            meta.setdefault("labels", {})[SECONDARY_DEVICE_WELL_PLANNED] = "true"
        return from_builtins({"metadata": meta, "spec": {"devices": devices}}, Device)

    def _card(self, minor: int) -> Json:
        rng = self.rng
        offered = {CORE: "100", RATIO: "100", MEMORY: f"{rng.choice((16, 16, 80))}Gi"}
        if self.is_odd and rng.random() < 0.08:
            offered = rng.choice(
                ({RATIO: "100", MEMORY: "8Gi"}, {CORE: "100", RATIO: "50", MEMORY: "8Gi"}, {})
            )
        if self.is_odd and rng.random() < 0.08:
            offered = {RATIO: "100", MEMORY: "8Gi", "huawei.com/npu-core": "20"}
        return self._placed("gpu", minor, minor // 2, offered)

    def _nic(self, kind: str, minor: int) -> Json:
        body = self._placed(kind, minor, minor, {PREFIX + kind: "100"})
        if kind == "rdma" and self.rng.random() < 0.7:
            body["vfGroups"] = [
                {
                    "labels": {"type": self.rng.choice(("fast", "fast", "slow"))},
                    "vfs": [{"busID": f"{minor}.{group}.{n}"} for n in range(self.rng.choice((1, 3)))],
                }
                for group in range(self.rng.choice((1, 1, 2)))
            ]
        return body

    def _placed(self, kind: str, minor: int, switch: int, offered: Json) -> Json:
        rng = self.rng
        body: Json = {"type": kind, "minor": minor, "id": f"{kind}-{minor}", "resources": offered}
        body |= {"health": rng.random() < 0.9, "labels": {"tier": rng.choice("ab")}}
        if not self.is_odd or rng.random() < 0.9:
            body["topology"] = {"socketID": 0, "nodeID": switch // 2, "pcieID": f"pci-{switch}"}
        return body

    def pod_of(self, requests: Json, annotations: Json) -> PodInfo:
        body = pod_body(f"pod-{next(self._numbers)}", requests, annotations)
        return PodInfo.of(from_builtins(body, Pod), self.table.registry)

    def random_pod(self) -> PodInfo:
        return self.pod_of(self.rng.choice(REQUESTS), self.rng.choice(ANNOTATIONS))

    def place(self, info: PodInfo) -> None:
        key = self.profile.class_key(info)
        result = self.engine.cycle.run(self.profile, info, key, 1, 0.0)
        if isinstance(result, Placed):
            self.placed.append(info)
            held = self.plugin.cache.reserved(info.uid)
            self.history.append(f"{info.key} on {result.node_name}: {held}")
        else:
            self.history.append(f"{info.key}: {result.status.message}")

    def step(self) -> None:
        rng, what = self.rng, self.rng.random()
        if what < 0.5:
            info = self.random_pod()
            for _ in range(rng.choice((1, 2, 6))):
                self.place(PodInfo.of(from_builtins(self._again(info), Pod), self.table.registry))
        elif what < 0.7 and self.placed:
            self.table.unassign(self.placed.pop(rng.randrange(len(self.placed))).uid)
        elif what < 0.85:
            self.set_device(rng.randrange(7))
        elif what < 0.95:
            self.set_node(rng.randrange(7))
        else:
            self.table.remove_node(f"node-{rng.randrange(7)}")

    def _again(self, info: PodInfo) -> Json:
        names = self.table.registry.names
        asked = {names[column]: str(amount) for column, amount in info.requests if "/" in names[column]}
        body = pod_body(f"pod-{next(self._numbers)}", asked, {})
        body["metadata"]["annotations"] = info.pod.metadata.annotations
        return body


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 20), steps=st.integers(0, 12))
def test_columns_say_of_each_node_what_the_exact_decision_says(seed: int, steps: int) -> None:
    world = Devices(seed, nodes=7)
    for _ in range(steps):
        world.step()
    plugin, rows = world.plugin, world.table.rows
    for requests in REQUESTS:
        state = plugin.prepare(world.pod_of(requests, world.rng.choice(ANNOTATIONS)))
        assert state is not None
        codes = plugin.filter(state, rows)
        points = plugin.score(state, rows)
        for row, code, score in zip(rows.tolist(), codes.tolist(), points.tolist(), strict=True):
            record = plugin.cache.at(row)
            if not record.is_reported:
                assert code == score == 0
                continue
            exact = plugin._exact.decide(state, record).status
            assert (plugin.refusal(state, code) if code else None) == (None if exact.is_success else exact)
            if not code:
                assert score == node_score(record.devices, state.asked, plugin._strategy)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 20), is_odd=st.booleans(), steps=st.integers(1, 25))
def test_placements_are_the_same_with_and_without_classes(seed: int, is_odd: bool, steps: int) -> None:
    shared = Devices(seed, classes_max=64, is_odd=is_odd)
    fresh = Devices(seed, classes_max=0, is_odd=is_odd)

    for _ in range(steps):
        shared.step()
        fresh.step()

    assert shared.history == fresh.history


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 1 << 20),
    kind=st.integers(0, len(REQUESTS) - 1),
    steps=st.integers(0, 6),
    count=st.integers(1, 25),
)
def test_totals_after_a_burst_are_those_of_a_new_evaluation(
    seed: int, kind: int, steps: int, count: int
) -> None:
    world = Devices(seed, is_odd=bool(seed % 2))
    for _ in range(steps):
        world.step()

    for _ in range(count):
        world.place(world.pod_of(REQUESTS[kind], {}))

    for _ in range(4):
        info = world.pod_of(REQUESTS[kind], {})
        kept = world.engine.cache.evaluate(world.profile, info, world.profile.class_key(info))
        new = Evaluation(world.profile, world.table, info)
        assert kept.totals.tolist() == new.totals.tolist()
        if world.placed:
            world.table.unassign(world.placed.pop().uid)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 20), kind=st.integers(0, len(REQUESTS) - 1))
def test_what_is_foreseen_of_a_row_comes_true(seed: int, kind: int) -> None:
    """Or it is not known beforehand, which counts as refused."""
    world = Devices(seed, nodes=1, is_odd=bool(seed % 2))
    state = world.plugin.prepare(world.pod_of(REQUESTS[kind], {}))
    if not world.plugin.foresees(state) or world.plugin.filter(state, world.table.rows).any():
        return
    rows = np.repeat(world.table.rows, 30)[::-1].copy()
    foreseen = world.plugin.filter_ahead(state, rows, np.arange(30)[::-1].copy())[::-1].tolist()

    assert all(world.plugin.refusal(state, code).reasons for code in foreseen if code)
    for expected in foreseen:
        actual = world.plugin.filter(state, world.table.rows).item()
        assert actual == expected or expected == 0xFFFF
        if actual:
            break
        world.place(world.pod_of(REQUESTS[kind], {}))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 20), steps=st.integers(1, 30))
def test_columns_kept_step_by_step_are_those_of_a_new_cache(seed: int, steps: int) -> None:
    world = Devices(seed)
    for _ in range(steps):
        world.step()

    kept = world.plugin.cache
    for row in world.table.rows.tolist():
        record = kept.at(row)
        if not record.is_reported:
            continue
        for device_type, columns in kept.columns.by_type.items():
            entries = record.idle.devices.get(device_type, {})
            assert columns.count.values[row] == len(entries)
            for name in (CORE, RATIO, MEMORY, RDMA, FPGA):
                if name not in columns.amounts:
                    continue
                free = []
                for slot, (minor, entry) in enumerate(entries.items()):
                    held = sum(
                        each.amounts.get(name, 0)
                        for pod_held in record.held.values()
                        for each in pod_held.get(device_type, ())
                        if each.minor == minor
                    )
                    free.append(max(0, entry.total.get(name, 0) - held))
                    assert columns.amounts[name].free.values[slot, row] == free[-1]
                assert columns.amounts[name].free_sum.values[row] == sum(free)
                assert not columns.amounts[name].free.values[len(entries) :, row].any()
            taken = record.devices.taken_vfs.get(device_type, frozenset())
            for slot, entry in enumerate(entries.values()):
                bus_ids = [vf.bus_id for group in entry.vf_groups for vf in group.vfs]
                assert columns.free_vfs.values[slot, row] == sum(each not in taken for each in bus_ids)


def test_kinds_of_nodes_that_are_gone_are_forgotten_and_pods_get_the_same_answers() -> None:
    world = Devices(1, nodes=4)
    asked = [world.pod_of(requests, ANNOTATIONS[-1 - n % 6]) for n, requests in enumerate(REQUESTS * 2)]
    states = [world.plugin.prepare(each) for each in asked]
    columns = world.plugin.cache.columns

    for number in range(250):
        body = node(f"node-{number % 4}", labels={"node.koordinator.sh/gpu-model": f"model-{number}"})
        world.table.set_node(from_builtins(body, Node))
        world.set_device(number % 4)
        for state in states[number % 11 :: 11]:
            world.plugin.filter(state, world.table.rows)

    assert len(columns.kinds.values) < 100
    assert len(columns.layouts.values) < 100
    for row in world.table.rows.tolist():
        record = world.plugin.cache.at(row)
        assert columns.kinds.values[columns.kind.values[row]].node_labels == record.idle.node_labels
    for info, state in zip(asked, states, strict=True):
        assert world.plugin.prepare(info) is state
        rows = world.table.rows
        codes = world.plugin.filter(state, rows).tolist()
        for row, code in zip(rows.tolist(), codes, strict=True):
            exact = world.plugin._exact.decide(state, world.plugin.cache.at(row)).status
            assert (world.plugin.refusal(state, code) if code else None) == (
                None if exact.is_success else exact
            )
