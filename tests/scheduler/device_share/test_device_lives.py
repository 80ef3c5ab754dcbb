"""Whole lives of schedulers under random faults, with cards, virtual functions and Reservations of them.

Nothing is ever given twice, and in the end the scheduler knows exactly what one knows that has just started."""

import asyncio
import contextlib
import json
import logging
from collections import Counter
from typing import Any

import msgspec
import pytest

from koordinator.api import crd, quantity
from koordinator.api.annotations import device as annotation
from koordinator.api.core import Node, Pod
from koordinator.api.device import Device
from koordinator.api.groups import CustomResourceDefinition
from koordinator.api.reservation import RESERVATION_ALLOCATED, Reservation
from koordinator.cluster import errors
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.config.config import PluginRef, SchedulerConfig
from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.plugins import built_in
from koordinator.scheduler.plugins.device_share.node_device_cache import NodeDeviceCache
from koordinator.scheduler.scheduler import Scheduler
from koordinator.scheduler.table.pod_info import PodInfo
from tests.churn.table_differences import differences
from tests.cluster import virtual_loop
from tests.scheduler.device_share.test_plugin import CORE, HINT, MEMORY, RATIO, RDMA, device, gpu_pod
from tests.scheduler.device_share.test_reserved_devices import gpu_reservation
from tests.scheduler.test_fault_injection import LABELS, NODES, SETTLE_S, UNREST_S, Ledger, Life
from tests.scheduler.world import node

Json = dict[str, Any]
GENERAL = {HINT: json.dumps({"rdma": {"vfSelector": {"matchLabels": {"type": "general"}}}})}
GPUS, NICS = 2, 1
BATCH_CORE, BATCH_MEMORY = "koordinator.sh/batch-gpu-core", "koordinator.sh/batch-gpu-memory"
LENT_PERCENT, LENT_GIB = 60, 8
EXTRA = {CORE: "200", RATIO: "200", MEMORY: "32Gi", RDMA: "100"}


def config() -> SchedulerConfig:
    """The shipped configuration, with a plugin that holds pods back and has bugs."""
    shipped = default_plugins.shipped_config()
    [profile] = shipped.profiles
    assert profile.plugins is not None
    sets = {
        point: msgspec.structs.replace(found, enabled=[*found.enabled, PluginRef(name="Ledger")])
        for point in ("reserve", "permit", "pre_bind")
        for found in (getattr(profile.plugins, point),)
    }
    plugins = msgspec.structs.replace(profile.plugins, **sets)
    return msgspec.structs.replace(shipped, profiles=[msgspec.structs.replace(profile, plugins=plugins)])


class DeviceLife(Life):
    """Users who want cards, and daemons that report other ones every now and then."""

    extra: Json = EXTRA
    gpus, nics = GPUS, NICS

    def device(self, name: str, unhealthy: tuple[int, ...] = ()) -> Json:
        return device(name, self.gpus, nics=self.nics, unhealthy=unhealthy)

    async def set_machine(self, name: str) -> None:
        await self.api.create(Node, node(name, extra=self.extra))
        await self.set_device(self.device(name))

    def _new_scheduler(self) -> Scheduler:
        return Scheduler(
            self.faulty, config(), seed=self.seed, plugins={**built_in.PLUGINS, "Ledger": Ledger}
        )

    async def act(self) -> None:
        act = self.rng.choice(
            (self._create,) * 6
            + (self._delete,) * 3
            + (self._finish, self._lose_node, self._touch, self._report, self._reserve, self._end_reservation)
        )
        with contextlib.suppress(errors.NotFound, errors.AlreadyExists):
            await act()

    async def _create(self) -> None:
        rng = self.rng
        has_nic = rng.random() < 0.3
        body = gpu_pod(
            f"pod-{next(self._numbers)}",
            rng.choice((30, 50, 70, 100, 200)),
            annotations=GENERAL if has_nic else {},
            extra={RDMA: "1"} if has_nic else {},
        )
        body["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "100m"
        del body["metadata"]["uid"]
        body["metadata"]["labels"] = {name: "yes" for name in LABELS if rng.random() < 0.1}
        if rng.random() < 0.4:
            body["metadata"]["labels"]["app"] = "web"
        await self.api.create(Pod, body, "default")

    async def _report(self) -> None:
        """A card or NIC fails or recovers, one is gone or back, or the report as a whole."""
        name, rng = f"node-{self.rng.randrange(NODES)}", self.rng
        if rng.random() < 0.2:
            await self.api.delete(Device, name)
            await asyncio.sleep(rng.uniform(0.0, 1.0))
        body = self.device(name, (rng.randrange(self.gpus),) if rng.random() < 0.5 else ())
        if rng.random() < 0.3:
            del body["spec"]["devices"][rng.randrange(self.gpus + self.nics)]
        if rng.random() < 0.2:
            body["spec"]["devices"][0]["minor"] = 5
        await self.set_device(body)

    async def set_device(self, body: Json) -> None:
        try:
            await self.api.create(Device, body)
        except errors.AlreadyExists:
            await self.api.patch(Device, body["metadata"]["name"], {"spec": body["spec"]})

    def terms(self) -> Json:
        """The terms of the next Reservation."""
        rng = self.rng
        return {
            "allocateOnce": rng.random() < 0.3,
            "allocatePolicy": rng.choice(("", "Aligned", "Restricted")),
        }

    async def _reserve(self) -> None:
        rng = self.rng
        body = gpu_reservation(
            f"room-{next(self._numbers)}",
            rng.choice((50, 100)),
            more={RDMA: "1"} if rng.random() < 0.3 else None,
            **self.terms(),
        )
        body["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "200m"
        del body["metadata"]["uid"]
        await self.api.create(Reservation, body)

    async def _end_reservation(self) -> None:
        found = (await self.api.list(Reservation)).items
        if found:
            await self.api.delete(Reservation, self.rng.choice(found).metadata.name)

    async def _lose_node(self) -> None:
        name = f"node-{self.rng.randrange(NODES)}"
        await self.api.delete(Node, name)
        await asyncio.sleep(self.rng.uniform(0.0, 1.0))
        for found in (await self.api.list(Pod)).items:
            if found.spec.node_name == name:
                await self.api.delete(Pod, found.metadata.name, "default", grace_period_s=0)
        await self.api.create(Node, node(name, extra=self.extra))

    # What must hold

    def waits_for_others(self, pod: Pod) -> bool:
        """Whether a pod may wait although a node would take it."""
        return False

    async def check_step(self) -> None:
        await self._check_assumed(self.scheduler)
        await self.check_devices()

    async def check_devices(self) -> None:
        """No card is given out beyond its whole, and no virtual function twice; of a Reservation counts what its
        owners do not use."""
        cores: Counter[tuple[str, int]] = Counter()
        vfs: Counter[tuple[str, str]] = Counter()
        owned: dict[str, Counter[int]] = {}
        owned_vfs: dict[str, set[str]] = {}
        for pod in (await self.api.list(Pod)).items:
            if not pod.spec.node_name or pod.status.phase in ("Succeeded", "Failed"):
                continue
            cards, bus_ids = _holds(pod.metadata.annotations)
            for minor, core in cards.items():
                cores[pod.spec.node_name, minor] += core
            vfs.update((pod.spec.node_name, bus_id) for bus_id in bus_ids)
            used = RESERVATION_ALLOCATED.read(pod.metadata.annotations)
            if used is not None:
                owned.setdefault(used.uid, Counter()).update(cards)
                owned_vfs.setdefault(used.uid, set()).update(bus_ids)
        for room in (await self.api.list(Reservation)).items:
            if room.status.phase != "Available":
                continue
            cards, bus_ids = _holds(room.metadata.annotations)
            own, uid = owned.get(room.metadata.uid, Counter()), room.metadata.uid
            for minor, core in cards.items():
                cores[room.status.node_name, minor] += max(0, core - own[minor])
            vfs.update((room.status.node_name, each) for each in bus_ids - owned_vfs.get(uid, set()))
        assert all(core <= 100 for core in cores.values()), cores
        assert all(count == 1 for count in vfs.values()), vfs

    async def check_settled(self) -> None:
        await self.check_step()
        fresh = Scheduler(self.api, config(), plugins={**built_in.PLUGINS, "Ledger": Ledger})
        async with fresh.following():
            probes = [
                gpu_pod("whole", 100),
                gpu_pod("half", 50),
                gpu_pod("nic", 50, annotations=GENERAL, extra={RDMA: "1"}),
            ]
            assert differences(self.scheduler, fresh, probes) == []
            assert _books(self.scheduler) == _books(fresh)
            [profile] = fresh.profiles.values()
            for pod in (await self.api.list(Pod)).items:
                if not pod.spec.node_name and not self.waits_for_others(pod):
                    info = PodInfo.of(pod, fresh.table.registry)
                    rows = Evaluation(profile, fresh.table, info).feasible
                    names = [fresh.table.name_of(row) for row in rows.tolist()]
                    assert names == [], f"{pod.key} waits although it fits"


class FencingLife(DeviceLife):
    """Reservations that are placed onto pods that will leave, now and then onto several."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.taken_over: set[str] = set()

    def terms(self) -> Json:
        several = {"enableMultiple": self.rng.random() < 0.5}
        fence = {"preAllocation": True, "allocatePolicy": "Restricted", "preAllocationPolicy": several}
        return {**super().terms(), **(fence if self.rng.random() < 0.8 else {})}

    async def act(self) -> None:
        await (self._reserve() if self.rng.random() < 0.2 else super().act())

    async def check_devices(self) -> None:
        await super().check_devices()
        fences = {
            each.metadata.uid: each
            for each in (await self.api.list(Reservation)).items
            if each.spec.pre_allocation and each.status.phase == "Available"
        }
        for pod in (await self.api.list(Pod)).items:
            used = RESERVATION_ALLOCATED.read(pod.metadata.annotations)
            fence = fences.get(used.uid) if used is not None else None
            if fence is not None and pod.metadata.creation_timestamp < fence.metadata.creation_timestamp:
                cards, _ = _holds(pod.metadata.annotations)
                if cards.keys() <= _holds(fence.metadata.annotations)[0].keys():
                    self.taken_over.add(pod.metadata.uid)


class LendingLife(DeviceLife):
    """Cards that lend a part of them, or nothing, and batch pods who want that."""

    extra: Json = {**EXTRA, BATCH_CORE: "200", BATCH_MEMORY: "32Gi"}

    async def _report(self) -> None:
        if self.rng.random() < 0.5:
            await super()._report()
        else:
            await self._lend()

    async def _lend(self) -> None:
        amounts = {BATCH_CORE: str(LENT_PERCENT), BATCH_MEMORY: f"{LENT_GIB}Gi"}
        entries = [
            {"minor": minor, "id": f"GPU-{minor}", "resources": amounts}
            for minor in range(GPUS)
            if self.rng.random() < 0.8
        ]
        text = json.dumps({"gpu": entries}) if entries else None
        name = f"node-{self.rng.randrange(NODES)}"
        body = {"metadata": {"annotations": {"node.koordinator.sh/batch-gpus": text}}}
        await self.api.patch(Node, name, body)

    async def _create(self) -> None:
        rng = self.rng
        if rng.random() < 0.5:
            await super()._create()
            return
        wants = {BATCH_CORE: str(rng.choice((10, 30, 40))), BATCH_MEMORY: f"{rng.choice((1, 4))}Gi"}
        body = gpu_pod(f"pod-{next(self._numbers)}", extra=wants)
        requests = body["spec"]["containers"][0]["resources"]["requests"]
        requests["cpu"] = "100m"
        del requests[CORE], requests[RATIO], body["metadata"]["uid"]
        await self.api.create(Pod, body, "default")

    async def check_devices(self) -> None:
        """Nothing that is lent is given twice either."""
        await super().check_devices()
        given: Counter[tuple[str, int, str]] = Counter()
        for pod in (await self.api.list(Pod)).items:
            if pod.spec.node_name and pod.status.phase not in ("Succeeded", "Failed"):
                for each in (annotation.DEVICE_ALLOCATED.read(pod.metadata.annotations) or {}).get("gpu", ()):
                    for name in (BATCH_CORE, BATCH_MEMORY):
                        amount = quantity.value(each.resources.get(name, 0))
                        given[pod.spec.node_name, each.minor, name] += amount
        for (_, _, name), amount in given.items():
            assert amount <= (LENT_PERCENT if name == BATCH_CORE else LENT_GIB << 30), given


def _holds(annotations: dict[str, str]) -> tuple[dict[int, int], set[str]]:
    """Cores by minor, and bus ids of virtual functions."""
    found = annotation.DEVICE_ALLOCATED.read(annotations) or {}
    cards = {each.minor: int(str(each.resources.get(CORE, 0))) for each in found.get("gpu", ())}
    vfs = {vf.bus_id for each in found.get("rdma", ()) if each.extension for vf in each.extension.vfs}
    return cards, vfs


def _books(scheduler: Scheduler) -> Json:
    cache = scheduler.table.shared(NodeDeviceCache)
    table, found = scheduler.table, {}
    for row in table.rows.tolist():
        record = cache.at(row)
        free = {
            name: columns.amounts[name].free.values[:, row].tolist()
            for columns in cache.columns.by_type.values()
            for name in (CORE, RATIO, RDMA, BATCH_CORE, BATCH_MEMORY)
            if name in columns.amounts
            and columns.amounts[name].free.values[:, row].any()  # who started late knows fewer names
        }
        used = {t: of_type for t, of_type in record.used.items() if of_type}
        found[table.name_of(row)] = (record.held, used, record.devices.taken_vfs, free)
    return found


async def live(kind: type[DeviceLife], seed: int, restart_at: int | None = None) -> DeviceLife:
    life = kind(seed, restart_at)
    for manifest in crd.manifests():
        await life.api.create(CustomResourceDefinition, manifest)
    for number in range(NODES):
        await life.set_machine(f"node-{number}")
    task = asyncio.create_task(life.schedule(), name="schedulers")
    try:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + UNREST_S
        while loop.time() < until_s:
            await life.act()
            await life.check_step()
            await asyncio.sleep(life.rng.uniform(0.0, 0.4))
            await life.check_step()
        life.faulty.heal()
        await asyncio.sleep(SETTLE_S)
        await life.check_settled()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    return life


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


# In the last ones, a Reservation was placed, and the answer that says so got lost.
LIVES = [(0, None), (1, None), (2, None), (100, 3), (101, 21), (102, 89), (221, 3), (226, 55)]


@pytest.mark.parametrize(("seed", "restart_at"), LIVES)
def test_whatever_happens_no_card_is_given_twice_or_lost(seed: int, restart_at: int | None) -> None:
    virtual_loop.run(live(DeviceLife, seed, restart_at))


@pytest.mark.parametrize(("seed", "restart_at"), [(4, None), (2, 21), (3, None)])
def test_whatever_happens_nothing_that_is_lent_is_given_twice(seed: int, restart_at: int | None) -> None:
    async def lives() -> None:
        life = await live(LendingLife, seed, restart_at)
        given = [each.metadata.annotations for each in (await life.api.list(Pod)).items]
        assert any(BATCH_CORE in text for each in given for text in each.values())

    virtual_loop.run(lives())


def test_whatever_happens_cards_that_are_taken_over_are_given_once() -> None:
    async def lives() -> int:
        count = 0
        for seed, restart_at in ((1, 13), (3, 55), (9, None), (10, None)):
            life = await live(FencingLife, seed, restart_at)
            assert isinstance(life, FencingLife)
            count += len(life.taken_over)
        return count

    assert virtual_loop.run(lives()) > 0
