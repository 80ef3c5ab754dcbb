"""Look up how many replicas the workload of a pod should have, and which of its pods are unavailable.

Built-in workloads come from caches; for any other kind the API is asked for its scale, before a cycle or round, since
gates cannot wait. Source: behaviour/descheduler 8.3.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from koordinator.api import kinds
from koordinator.api.core import Pod
from koordinator.api.meta import Object, OwnerReference, controller_of
from koordinator.cluster import errors
from koordinator.cluster.informer import Informer
from koordinator.cluster.protocol import Cluster
from koordinator.descheduler.caches import BY_OWNER, Caches
from koordinator.descheduler.migration import surge
from koordinator.descheduler.migration.gates import Workload
from koordinator.descheduler.migration.surge import Surge

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

SCALE_FRESH_S = 60.0
"""Time for which an answer about a scale is used; workloads are rarely resized."""
SCALES_AT_ONCE = 8
FOREIGN = "foreign owner"
_WITHOUT_SCALE = ("Job", "DaemonSet", "Node")
_BUILT_IN = ("ReplicationController", "ReplicaSet", "Deployment", "StatefulSet")


class _Scale(msgspec.Struct, frozen=True):
    """The answer of the API; `replicas` None: nothing that can be used."""

    replicas: int | None
    at_s: float


class Workloads:
    """Workloads by the controller reference of their pods. Answers hold until `refresh`."""

    def __init__(self, cluster: Cluster, caches: Caches) -> None:
        self._cluster = cluster
        self._caches = caches
        self._known: dict[str, Workload | None] = {}
        self._scales: dict[str, _Scale] = {}
        self._built_in: dict[str, Informer[Any]] = {
            "ReplicationController": caches.replication_controllers,
            "ReplicaSet": caches.replica_sets,
            "Deployment": caches.deployments,
            "StatefulSet": caches.stateful_sets,
        }
        self._plurals: dict[tuple[str, str], str] = {}
        caches.pods.add_index(FOREIGN, _foreign)

    def of(self, namespace: str, owner: OwnerReference) -> Workload | None:
        """Return the workload; of one that is not there, or is another of that name by now, 0 replicas.
        None: it cannot be looked up."""
        if owner.uid not in self._known:
            self._known[owner.uid] = self._find(namespace, owner)
        return self._known[owner.uid]

    def surge_of(self, pod: Pod) -> Surge | None:
        """Return the workload that decides how many replicas there are of a pod, None where none of them could be added
        for a time."""
        owner = controller_of(pod)
        if owner is None:
            return None
        namespace, kind, name = pod.metadata.namespace, owner.kind, owner.name
        replica_set = _same(self._caches.replica_sets, namespace, owner) if kind == "ReplicaSet" else None
        parent = controller_of(replica_set) if replica_set is not None else None
        if parent is not None:
            kind, name = parent.kind, parent.name
        known = self._find(namespace, owner)
        if kind not in surge.KINDS or known is None or known.replicas == 0:
            return None
        return Surge(kind, namespace, name, known.replicas)

    async def change(self, wanted: Surge, *, now: int, replicas: int) -> bool:
        """Give a workload so many replicas if it has `now`; whether it has them then. Raises: ApiError."""
        root = "/api/v1" if wanted.kind == "ReplicationController" else "/apis/apps/v1"
        path = f"{root}/namespaces/{wanted.namespace}/{wanted.kind.lower()}s/{wanted.name}/scale"
        scale = await self._cluster.request("GET", path)
        found = (scale.get("spec") or {}).get("replicas", 0)
        if found != now:
            return bool(found == replicas)
        version = (scale.get("metadata") or {}).get("resourceVersion")
        patch = {"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}}
        await self._cluster.request("PATCH", path, patch)
        return True

    async def refresh(self) -> None:
        """Forget what was worked out, and ask for the scales of all workloads of kinds that are not built in."""
        self._known.clear()
        now_s = self._cluster.clock.now()
        owners = {}
        for pod in self._caches.pods.by_index(FOREIGN, FOREIGN):
            if (owner := controller_of(pod)) is not None:
                owners[owner.uid] = (pod.metadata.namespace, owner)
        self._scales = {uid: scale for uid, scale in self._scales.items() if uid in owners}
        due = [
            (namespace, owner)
            for uid, (namespace, owner) in owners.items()
            if uid not in self._scales or now_s - self._scales[uid].at_s >= SCALE_FRESH_S
        ]
        for start in range(0, len(due), SCALES_AT_ONCE):
            part = due[start : start + SCALES_AT_ONCE]
            found = await asyncio.gather(*(self._ask(namespace, owner) for namespace, owner in part))
            for (_, owner), replicas in zip(part, found, strict=True):
                self._scales[owner.uid] = _Scale(replicas, now_s)

    def _find(self, namespace: str, owner: OwnerReference) -> Workload | None:
        found = self._size(namespace, owner)
        if found is None:
            return None
        replicas, controllers = found
        pods = self._caches.pods
        return Workload.of(replicas, (pod for uid in controllers for pod in pods.by_index(BY_OWNER, uid)))

    def _size(self, namespace: str, owner: OwnerReference) -> tuple[int, Sequence[str]] | None:
        """Return a workload's replicas, and the UIDs of the controllers of its pods; None: it cannot be looked up."""
        caches, own = self._caches, (owner.uid,)
        group, _, _ = owner.api_version.rpartition("/")
        if group not in ("", "apps") or owner.kind not in _BUILT_IN:
            scale = self._scales.get(owner.uid)
            return None if scale is None or scale.replicas is None else (scale.replicas, own)
        found = _same(self._built_in[owner.kind], namespace, owner)
        parent = controller_of(found) if found is not None and owner.kind == "ReplicaSet" else None
        if parent is None or parent.kind != "Deployment":
            return (found.spec.replicas if found else 0), own
        deployment = _same(caches.deployments, namespace, parent)
        sets = caches.replica_sets.by_index(BY_OWNER, parent.uid)
        return (deployment.spec.replicas if deployment else 0), [one.metadata.uid for one in sets]

    async def _ask(self, namespace: str, owner: OwnerReference) -> int | None:
        """Return the replicas that the scale says; None when it cannot be told."""
        try:
            plural = await self._plural(owner.api_version, owner.kind)
            if not plural:
                return None
            root = f"/apis/{owner.api_version}" if "/" in owner.api_version else f"/api/{owner.api_version}"
            path = f"{root}/namespaces/{namespace}/{plural}/{owner.name}/scale"
            scale = await self._cluster.request("GET", path)
        except errors.NotFound:
            return 0
        except errors.ApiError as error:
            log.warning("scale not known: %s", error, extra={"kind": owner.kind, "workload": owner.name})
            return None
        if (scale.get("metadata") or {}).get("uid") not in (None, "", owner.uid):
            return 0
        replicas = (scale.get("spec") or {}).get("replicas", 0)
        return replicas if isinstance(replicas, int) else None

    async def _plural(self, api_version: str, kind: str) -> str:
        """Return the name of the kind in URLs; empty when the server has no scale for it."""
        key = (api_version, kind)
        if key not in self._plurals:
            group, _, version = api_version.rpartition("/")
            known = kinds.by_kind(group, kind, version)
            root = f"/apis/{api_version}" if group else f"/api/{api_version}"
            served = {
                one.get("name", ""): one.get("kind")
                for one in (await self._cluster.request("GET", root)).get("resources") or []
            }
            names = [known.plural] if known is not None else [name for name in served if served[name] == kind]
            self._plurals[key] = next((name for name in names if f"{name}/scale" in served), "")
        return self._plurals[key]


def _foreign(pod: Pod) -> Iterable[str]:
    """Index the pods of workloads whose replicas only their scale tells."""
    owner = controller_of(pod)
    if owner is None or owner.kind in _WITHOUT_SCALE:
        return ()
    group, _, _ = owner.api_version.rpartition("/")
    return () if group in ("", "apps") and owner.kind in _BUILT_IN else (FOREIGN,)


def _same(informer: Informer[T], namespace: str, owner: OwnerReference) -> T | None:
    found = informer.get(owner.name, namespace)
    return found if found is not None and found.metadata.uid == owner.uid else None
