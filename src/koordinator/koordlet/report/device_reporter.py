"""Keeping the Device object: GPUs, other accelerators and RDMA cards of this node.

Source: behaviour/koordlet-observe 10.4.

Only labels and annotations of ours are written, and only when something really changed: conditions keep their times.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from koordinator import clock
from koordinator.api import labels
from koordinator.api.annotations.device import GPU_PARTITIONS
from koordinator.api.device import Device
from koordinator.api.meta import controller_reference
from koordinator.host import network
from koordinator.host.errors import ContentError
from koordinator.host.gpu import XidEvent
from koordinator.host.network import RDMADevice
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.report import device
from koordinator.koordlet.report.device import HEALTH_NOT_SUPPORTED, DeviceReport, Fault
from koordinator.koordlet.report.outage import FirstRounds, Outage
from koordinator.koordlet.report.stored_object import StoredObject
from koordinator.koordlet.report.xpu import XPUFiles

CONTAINED_XIDS = frozenset((63, 92, 94))
"""Row remapping noted, many corrected errors, contained memory error: only the application is lost.
Source: NVIDIA, "Xid Errors", and the memory error management guide of its data centre cards."""
QUIET_S = 600.0
"""Time that a card must have been without critical errors to be fit again."""

GATE, RDMA_GATE = "Accelerators", "RDMADevices"
INTERVAL_S = 3.0
OUR_LABELS = (labels.GPU_VENDOR, labels.GPU_MODEL, labels.GPU_DRIVER_VERSION, labels.GPU_PARTITION_POLICY)


class GPUHealth:
    """The known faults of a node's cards, by UUID.

    They are critical errors (Xid) that the driver tells. Most need a reset of the card, which nobody can tell from
    outside: the card stays unhealthy until the agent is started again. Errors that the hardware contained need none:
    the card is fit again when it has been quiet for a while. (In the reference no card ever recovers.)
    Source: behaviour/koordlet-observe 10.1.
    """

    def __init__(self, uuids: Iterable[str], without_health: Iterable[str] = ()) -> None:
        """`without_health` are those that do not tell of errors."""
        self._uuids = tuple(uuids)
        self._silent = frozenset(without_health)
        self._faults: dict[str, tuple[Fault, float | None]] = {}
        """With the time from which on the card is fit again, None: never."""

    def on_xid_events(self, events: Iterable[XidEvent], now_s: float) -> None:
        """Note errors; one without a card is of all of them."""
        for event in events:
            fault = device.xid_fault(event.xid)
            if fault is None:
                continue
            until_s = now_s + QUIET_S if event.xid in CONTAINED_XIDS else None
            for uuid in self._uuids if not event.uuid else (event.uuid,):
                self._note(uuid, fault, until_s)

    def fault(self, uuid: str, now_s: float) -> Fault | None:
        """Return what is wrong with a card now; None when it is fit."""
        if uuid in self._faults:
            fault, until_s = self._faults[uuid]
            if until_s is None or now_s < until_s:
                return fault
            del self._faults[uuid]
        return HEALTH_NOT_SUPPORTED if uuid in self._silent else None

    def _note(self, uuid: str, fault: Fault, until_s: float | None) -> None:
        """Note a fault; what needs a reset outweighs what passes."""
        known = self._faults.get(uuid)
        if known is None or known[1] is not None:
            self._faults[uuid] = (fault, until_s)


class DeviceReporter:
    """Looks at the cards each few seconds and tells the scheduler of changes."""

    name = "device"

    def __init__(self, shared: Shared) -> None:
        self._rounds = FirstRounds(INTERVAL_S)
        self._shared = shared
        self._accelerators = shared.gates.is_on(GATE)
        self._rdma = shared.gates.is_on(RDMA_GATE)
        self._rdma_outage = Outage("reading RDMA cards")
        self._rdma_cards: list[RDMADevice] = []
        self._files = XPUFiles(shared.host.files, shared.config.collect.xpu_directory)
        gpus = shared.gpus
        self._gpus = gpus.devices if gpus is not None and self._accelerators else []
        self._health = GPUHealth((gpu.uuid for gpu in self._gpus), gpus.without_health if gpus else ())
        self._stored = StoredObject(shared, Device, new=self._new, patch_of=patch_of)
        self.informers = [self._stored.informer]

    @property
    def interval_s(self) -> float:
        """Return a few seconds; short until the first report."""
        return self._rounds.interval_s

    async def run(self) -> None:
        """One round. Errors of cards are heard of even while the API is away."""
        now_s = self._shared.clock.now()
        if self._gpus and self._shared.gpus is not None:
            self._health.on_xid_events(self._shared.gpus.errors(), now_s)
        if self._shared.view.node is None or not self._stored.is_known:
            self._rounds.waited()
            return
        self._rounds.reported()
        found, stored = self.report(now_s), self._stored.newest
        if stored is not None:
            found = msgspec.structs.replace(
                found, devices=device.with_old_times(found.devices, stored.spec.devices)
            )
        await self._stored.write(found)

    def report(self, now_s: float) -> DeviceReport:
        """Return what there is now; cards of different models have neither model nor driver."""
        model = device.common_model([gpu.name for gpu in self._gpus])
        driver_version = self._shared.gpus.driver_version if model and self._shared.gpus is not None else ""
        return device.report(
            self._gpus,
            self._files.read() if self._accelerators else [],
            self._cards(now_s) if self._rdma else [],
            faults={gpu.uuid: fault for gpu in self._gpus if (fault := self._health.fault(gpu.uuid, now_s))},
            gpu_model=model,
            driver_version=driver_version,
            only_files=self._shared.config.collect.xpu_only_files,
            now=clock.rfc3339(now_s),
        )

    def _cards(self, now_s: float) -> list[RDMADevice]:
        """RDMA cards; those of the last round while they cannot be read."""
        host = self._shared.host
        try:
            found = network.rdma_devices(host.files, host.roots)
        except ContentError as error:
            self._rdma_outage.failed(error, now_s)
            return self._rdma_cards
        self._rdma_outage.ended()
        self._rdma_cards = found
        return self._rdma_cards

    def _new(self, found: DeviceReport) -> dict[str, Any]:
        node = self._shared.view.node
        owners = [] if node is None else [controller_reference(node)]
        return {
            "metadata": {
                "name": self._shared.config.node_name,
                "labels": found.labels,
                "annotations": _annotations(found),
                "ownerReferences": msgspec.to_builtins(owners),
            },
            "spec": {"devices": msgspec.to_builtins(found.devices)},
        }


def patch_of(stored: Device, found: DeviceReport) -> dict[str, Any] | None:
    """Return the merge patch that brings our parts of the object up to date; None when they are."""
    meta: dict[str, Any] = {}
    old_labels = {key: stored.metadata.labels.get(key) for key in OUR_LABELS}
    new_labels = {key: found.labels.get(key) for key in OUR_LABELS}
    if old_labels != new_labels:
        meta["labels"] = new_labels
    partitions = _annotations(found).get(labels.GPU_PARTITIONS)
    if stored.metadata.annotations.get(labels.GPU_PARTITIONS) != partitions:
        meta["annotations"] = {labels.GPU_PARTITIONS: partitions}
    patch: dict[str, Any] = {"metadata": meta} if meta else {}
    if stored.spec.devices != found.devices:
        patch["spec"] = {"devices": msgspec.to_builtins(found.devices)}
    if not patch:
        return None
    patch.setdefault("metadata", {})["uid"] = stored.metadata.uid
    return patch


def _annotations(found: DeviceReport) -> dict[str, str]:
    return {GPU_PARTITIONS.key: GPU_PARTITIONS.encode(found.partitions)} if found.partitions else {}
