"""Whole lives as in `test_device_lives`, with cards that belong together: partitions of NVSwitch machines, NICs of the
same switch, NUMA nodes, parts of several cards, gangs, and pods that take cards from others that matter less."""

import json
import logging
from collections import defaultdict
from typing import Any

import pytest

from koordinator.api.annotations import device as annotation
from koordinator.api.core import Pod
from koordinator.api.groups import PriorityClass
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.api.reservation import RESERVATION_ALLOCATED, Reservation
from tests.cluster import virtual_loop
from tests.scheduler.device_share.test_device_lives import GENERAL, DeviceLife, live
from tests.scheduler.device_share.test_numa_alignment import SINGLE
from tests.scheduler.device_share.test_plugin import CORE, JOINT, MEMORY, RATIO, RDMA, device, gpu_pod
from tests.scheduler.device_share.test_reserved_topology import room
from tests.scheduler.node_numa_resource.cluster import cpus_of, report
from tests.scheduler.reservation.test_plugin import AFFINITY

Json = dict[str, Any]
PARTITIONED = ("node-0", "node-1")
PARTITIONS = {
    "1": [{"minors": [minor]} for minor in range(4)],
    "2": [{"minors": [0, 1]}, {"minors": [2, 3]}],
    "4": [{"minors": [0, 1, 2, 3]}],
}
SAME_SWITCH = {JOINT: json.dumps({"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"})}
GANG = "gang.scheduling.koordinator.sh/"
GANG_SIZE = 3
CPUS_PER_NUMA = 8


class JoinedLife(DeviceLife):
    """Nodes of four cards and two NICs, two cards and a NIC at a switch of each NUMA node; some nodes give cards out in
    partitions."""

    extra: Json = {CORE: "400", RATIO: "400", MEMORY: "64Gi", RDMA: "200"}
    gpus, nics = 4, 2
    wishes: tuple[str, ...] = ("plain", "plain", "joint", "aligned", "parts", "gang", "vip")

    def __init__(self, seed: int, restart_at: int | None = None) -> None:
        super().__init__(seed, restart_at)
        self.kinds: defaultdict[str, int] = defaultdict(int)
        """What pods on nodes had been asked for."""

    def device(self, name: str, unhealthy: tuple[int, ...] = ()) -> Json:
        body = device(name, self.gpus, nics=self.nics, unhealthy=unhealthy, numa=True)
        if name in PARTITIONED:
            body["metadata"]["annotations"] = {
                "scheduling.koordinator.sh/gpu-partitions": json.dumps(PARTITIONS)
            }
            body["metadata"]["labels"] = {"node.koordinator.sh/gpu-partition-policy": "Honor"}
        return body

    async def set_machine(self, name: str) -> None:
        if name == "node-0":
            for priority, value in (("prod", 9500), ("batch", 5500)):
                await self.api.create(PriorityClass, {"metadata": {"name": priority}, "value": value})
        await super().set_machine(name)
        await self.api.create(NodeResourceTopology, report(name))

    async def _create(self) -> None:
        rng, kind = self.rng, self.rng.choice(self.wishes)
        if kind == "plain":
            await super()._create()
            return
        count, name = rng.choice((1, 2, 2, 4)), f"{kind}-{next(self._numbers)}"
        body = {
            "joint": lambda: gpu_pod(name, 100 * count, annotations=SAME_SWITCH | GENERAL, extra={RDMA: "1"}),
            "aligned": lambda: gpu_pod(name, 100 * min(count, 2), annotations=dict(SINGLE)),
            "parts": lambda: gpu_pod(name, 80, extra={"koordinator.sh/gpu.shared": "2"}),
            "gang": lambda: gpu_pod(name, 100),
            "vip": lambda: gpu_pod(name, 100 * count),
        }[kind]()
        body["metadata"]["labels"] = {}
        if kind == "aligned":
            body["metadata"]["labels"]["koordinator.sh/qosClass"] = "LSR"
            body["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "2"
        else:
            body["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "100m"
        body["spec"]["priorityClassName"] = "prod" if kind in ("aligned", "vip") else "batch"
        body["spec"]["terminationGracePeriodSeconds"] = 0
        body["spec"].pop("priority")
        if kind != "gang":
            await self._put(body)
            return
        for number in range(GANG_SIZE):
            annotations = {GANG + "name": name, GANG + "min-available": str(GANG_SIZE)}
            meta = {**body["metadata"], "name": f"{name}-{number}", "annotations": annotations}
            await self._put({**body, "metadata": meta})

    async def _put(self, body: Json) -> None:
        body["metadata"].pop("uid", None)
        await self.api.create(Pod, body, "default")

    # What must hold

    def waits_for_others(self, pod: Pod) -> bool:
        return pod.metadata.name.startswith("gang-")

    async def check_settled(self) -> None:
        await super().check_settled()
        gangs: defaultdict[str, list[bool]] = defaultdict(list)
        for pod in (await self.api.list(Pod)).items:
            if name := pod.metadata.annotations.get(GANG + "name"):
                gangs[name].append(bool(pod.spec.node_name))
        parted = {name for name, bound in gangs.items() if len(bound) == GANG_SIZE and len(set(bound)) > 1}
        assert not parted, gangs

    async def check_devices(self) -> None:
        await super().check_devices()
        cpus: dict[str, set[int]] = {}
        for pod in (await self.api.list(Pod)).items:
            held = annotation.DEVICE_ALLOCATED.read(pod.metadata.annotations) if pod.spec.node_name else None
            if not held or pod.status.phase in ("Succeeded", "Failed"):
                continue
            kind, name = pod.metadata.name.partition("-")[0], pod.spec.node_name
            self.kinds[kind] += 1
            cards = sorted(each.minor for each in held.get("gpu", ()))
            whole = [each for each in held.get("gpu", ()) if str(each.resources[CORE]) == "100"]
            if name in PARTITIONED and whole:
                allowed = [sorted(each["minors"]) for each in PARTITIONS[str(len(cards))]]
                assert [_first(minor) for minor in cards] in allowed, (pod.key, cards)
            switches = {_first(minor) // 2 for minor in cards}
            if kind == "joint":
                assert {each.minor for each in held["rdma"]} == switches, (pod.key, held)
            if kind == "aligned":
                assert len(switches) == 1, (pod.key, cards)
                own = set(cpus_of({"metadata": {"annotations": pod.metadata.annotations}}))
                assert own and {cpu // CPUS_PER_NUMA for cpu in own} == switches, (pod.key, own, cards)
                assert own.isdisjoint(cpus.setdefault(name, set())), (pod.key, own)
                cpus[name] |= own
            if kind == "parts":
                assert len(set(cards)) == 2, (pod.key, cards)


class OwnedLife(JoinedLife):
    """Reservations of cards and NICs of one switch or of several, and owners of all kinds."""

    wishes = ("plain", "joint", "joint", "aligned", "aligned", "parts", "vip")

    def __init__(self, seed: int, restart_at: int | None = None) -> None:
        super().__init__(seed, restart_at)
        self.owners: set[str] = set()
        """Pods of which it was seen that they use reserved devices that belong together."""

    async def act(self) -> None:
        await (self._reserve() if self.rng.random() < 0.15 else super().act())

    async def _reserve(self) -> None:
        count, name = self.rng.choice((1, 2, 2, 4)), f"room-{next(self._numbers)}"
        annotations = SAME_SWITCH | GENERAL if self.rng.random() < 0.7 else GENERAL
        body = room(name, count, rdma=100, annotations=annotations, **self.terms())
        body["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "300m"
        del body["metadata"]["uid"]
        await self.api.create(Reservation, body)

    async def _put(self, body: Json) -> None:
        if self.rng.random() < 0.7:
            body["metadata"]["labels"]["app"] = "web"
            if self.rng.random() < 0.3:
                body["metadata"]["annotations"][AFFINITY] = "{}"
        await super()._put(body)

    async def check_devices(self) -> None:
        await super().check_devices()
        held = {
            each.metadata.uid: set(_cards(each.metadata.annotations))
            for each in (await self.api.list(Reservation)).items
        }
        for pod in (await self.api.list(Pod)).items:
            uses = RESERVATION_ALLOCATED.read(pod.metadata.annotations)
            is_joined = pod.metadata.name.startswith(("joint", "aligned")) and pod.spec.node_name
            if is_joined and uses is not None:
                cards = held.get(uses.uid, set()) & set(_cards(pod.metadata.annotations))
                self.owners.update([pod.metadata.uid] if cards else [])


def _cards(annotations: dict[str, str]) -> list[int]:
    return [each.minor for each in (annotation.DEVICE_ALLOCATED.read(annotations) or {}).get("gpu", ())]


def _first(minor: int) -> int:
    """The minor that a card had before a report gave it another."""
    return 0 if minor == 5 else minor


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


OWNED_LIVES = [(0, None), (1, 21), (2, None)]
# In the last one, a member of a gang made room for itself alone, and let go of it.
LIVES = [(0, None), (13, None), (15, None), (101, 34), (202, 21), (203, 55), (1015, None)]


@pytest.mark.parametrize(("seed", "restart_at"), LIVES)
def test_whatever_happens_cards_that_belong_together_stay_so(seed: int, restart_at: int | None) -> None:
    life = virtual_loop.run(live(JoinedLife, seed, restart_at))
    assert len(life.kinds) >= 5, dict(life.kinds)


def test_whatever_happens_reserved_cards_that_belong_together_stay_so() -> None:
    async def lives() -> int:
        found = [await live(OwnedLife, seed, restart_at) for seed, restart_at in OWNED_LIVES]
        return sum(len(life.owners) for life in found if isinstance(life, OwnedLife))

    assert virtual_loop.run(lives()) >= 5
