"""Volumes promised to pods: remembered from Reserve on, written at PreBind, waited for until bound."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from koordinator.api.meta import ObjectMeta, ObjectReference
from koordinator.api.storage import PersistentVolume, PersistentVolumeClaim
from koordinator.cluster import errors
from koordinator.scheduler.plugin.framework import Handle
from koordinator.scheduler.plugin.status import SUCCESS, Status, error
from koordinator.scheduler.plugins.volumes.catalog import ClaimKey, VolumeCatalog, is_bound
from koordinator.scheduler.table.nodes import NodeTable, RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo

SELECTED_NODE = "volume.kubernetes.io/selected-node"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"


class PodVolumes(msgspec.Struct, frozen=True):
    """The needs of a pod: claims to give to existing volumes, and claims to have volumes made for."""

    static: list[tuple[PersistentVolumeClaim, PersistentVolume]]
    dynamic: list[PersistentVolumeClaim]


class Promises(RowKeeper):
    """The promises to claims that are not written yet, whichever profile made them. `version` grows with changes."""

    def __init__(self, table: NodeTable) -> None:
        self.version = 0
        self.claim_of: dict[str, ObjectReference] = {}
        """By name of the volume."""
        self.volume_of: dict[ClaimKey, str] = {}
        self.node_of: dict[ClaimKey, str] = {}


class Commitments:
    """Plans of pods that have a node and are not bound yet."""

    def __init__(self, handle: Handle, catalog: VolumeCatalog, promises: Promises, timeout_s: float) -> None:
        self._handle = handle
        self._promises = promises
        self._catalog = catalog
        self._timeout_s = timeout_s
        self._plans: dict[str, PodVolumes] = {}
        self._waiting: list[asyncio.Event] = []
        catalog.on_change = self._changed

    # What others see

    def meant_for(self, claim: PersistentVolumeClaim) -> list[PersistentVolume]:
        """Volumes that name a claim of this name, as if the promise were written already."""
        key = (claim.metadata.namespace, claim.metadata.name)
        found = list(self._catalog.meant_for(key))
        name = self._promises.volume_of.get(key)
        volume = self._catalog.volume(name) if name is not None else None
        if volume is not None and volume.spec.claim_ref is None:
            promised = self._promises.claim_of[volume.metadata.name]
            spec = msgspec.structs.replace(volume.spec, claim_ref=promised)
            found.append(msgspec.structs.replace(volume, spec=spec))
        return found

    def free_volumes(self, class_name: str) -> list[PersistentVolume]:
        """Volumes of a class that are promised to nobody."""
        promised = self._promises.claim_of
        return [each for each in self._catalog.free_volumes(class_name) if each.metadata.name not in promised]

    def selected_node(self, claim: PersistentVolumeClaim) -> str:
        """Return the node for which the claim's volume is made, "" before it is known."""
        meta = claim.metadata
        promised = self._promises.node_of.get((meta.namespace, meta.name), "")
        return promised or meta.annotations.get(SELECTED_NODE, "")

    # A pod

    def make(self, uid: str, plan: PodVolumes, node_name: str) -> None:
        """Promise the volumes of a plan."""
        self._plans[uid] = plan
        for claim, volume in plan.static:
            self._promises.claim_of[volume.metadata.name] = _reference(claim)
            self._promises.volume_of[(claim.metadata.namespace, claim.metadata.name)] = volume.metadata.name
        for claim in plan.dynamic:
            self._promises.node_of[(claim.metadata.namespace, claim.metadata.name)] = node_name
        self._promises.version += 1

    def withdraw(self, uid: str) -> None:
        """Take the promises back; what was written stays, and the next attempt finds it."""
        plan = self._plans.pop(uid, None)
        if plan is None:
            return
        for claim, volume in plan.static:
            self._promises.claim_of.pop(volume.metadata.name, None)
            self._promises.volume_of.pop((claim.metadata.namespace, claim.metadata.name), None)
        for claim in plan.dynamic:
            self._promises.node_of.pop((claim.metadata.namespace, claim.metadata.name), None)
        self._promises.version += 1

    async def fulfil(self, pod: PodInfo, claims: Sequence[ObjectMeta], node_name: str) -> Status:
        """Write the plan and wait until all claims are bound."""
        plan = self._plans.get(pod.uid)
        if plan is None:
            return SUCCESS
        try:
            async with asyncio.timeout(self._timeout_s):
                status = await self._fulfil(plan, claims, node_name)
        except TimeoutError:
            return error(f"binding volumes: not bound after {self._timeout_s:g}s (bindTimeoutSeconds)")
        except errors.ApiError as failure:
            return error(f"binding volumes: {failure.message}")
        if status.is_success:
            self.withdraw(pod.uid)
        return status

    async def _fulfil(self, plan: PodVolumes, claims: Sequence[ObjectMeta], node_name: str) -> Status:
        for claim, volume in plan.static:
            await self._write_volume(claim, volume)
        annotated: dict[ClaimKey, str] = {}
        for claim in plan.dynamic:
            if claim.metadata.annotations.get(SELECTED_NODE) != node_name:
                written = await self._write_claim(claim, node_name)
                annotated[(written.metadata.namespace, written.metadata.name)] = (
                    written.metadata.resource_version
                )
        changed = asyncio.Event()
        self._waiting.append(changed)
        try:
            while True:
                changed.clear()
                status = self._progress(claims, annotated, plan)
                if status is not None:
                    return status
                await changed.wait()
        finally:
            self._waiting.remove(changed)

    def _progress(
        self, claims: Sequence[ObjectMeta], annotated: dict[ClaimKey, str], plan: PodVolumes
    ) -> Status | None:
        """Success when all claims are bound, an error when they never will be, None while they may."""
        is_done = True
        for meta in claims:
            key = (meta.namespace, meta.name)
            claim = self._catalog.claim(key)
            if claim is None or claim.metadata.uid != meta.uid:
                return error(f'binding volumes: persistentvolumeclaim "{meta.name}" is gone')
            if is_bound(claim):
                continue
            is_done = False
            if claim.metadata.resource_version == annotated.get(key):
                annotated.pop(key)  # from here on, a missing annotation means that the driver gave up
            is_dynamic = any(each.metadata.uid == meta.uid for each in plan.dynamic)
            if is_dynamic and key not in annotated and SELECTED_NODE not in claim.metadata.annotations:
                return error(f'binding volumes: provisioning failed for PVC "{meta.name}"')
        return SUCCESS if is_done else None

    async def _write_volume(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> None:
        meta = volume.metadata
        body: dict[str, Any] = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "spec": {"claimRef": msgspec.to_builtins(_reference(claim))},
        }
        if volume.spec.claim_ref is None:
            body["metadata"]["annotations"] = {BOUND_BY_CONTROLLER: "yes"}
        await self._handle.cluster.patch(PersistentVolume, meta.name, body)

    async def _write_claim(self, claim: PersistentVolumeClaim, node_name: str) -> PersistentVolumeClaim:
        meta = claim.metadata
        body = {"metadata": {"uid": meta.uid, "annotations": {SELECTED_NODE: node_name}}}
        return await self._handle.cluster.patch(PersistentVolumeClaim, meta.name, body, meta.namespace)

    def _changed(self, old: Any, new: Any) -> None:
        for event in self._waiting:
            event.set()


def _reference(claim: PersistentVolumeClaim) -> ObjectReference:
    meta = claim.metadata
    return ObjectReference(
        api_version="v1",
        kind="PersistentVolumeClaim",
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
    )
