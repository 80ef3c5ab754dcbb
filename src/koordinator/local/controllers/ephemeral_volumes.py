"""Makes the claims of pods' ephemeral volumes; each belongs to its pod and goes with it.

Source: the ephemeral volume controller of kube-controller-manager.
"""

from typing import Any

from koordinator.api.core import Pod
from koordinator.api.meta import is_controlled_by
from koordinator.api.storage import PersistentVolumeClaim
from koordinator.api.volumes import Volume
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller, ControllerLoop
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory, Key, key_of
from koordinator.cluster.protocol import Cluster
from koordinator.local.controllers import pod_control
from koordinator.local.controllers.ownership import is_deleting, owner_reference

WORKERS = 4
FOREIGN_S = 5.0  # between two looks whether a claim of somebody else has gone


def new_claim(pod: Pod, volume: Volume) -> dict[str, Any]:
    """Return the claim to create for an ephemeral volume."""
    template = volume.ephemeral.volume_claim_template if volume.ephemeral is not None else {}
    meta = template.get("metadata") or {}
    kept = {field: dict(meta[field]) for field in ("labels", "annotations") if meta.get(field)}
    name = f"{pod.metadata.name}-{volume.name}"
    return {
        "metadata": {"name": name, **kept, "ownerReferences": [owner_reference(pod)]},
        "spec": template.get("spec") or {},
    }


class EphemeralVolumeController(ControllerLoop):
    """The loop; its keys are pods with ephemeral volumes."""

    def __init__(self, cluster: Cluster, factory: InformerFactory, events: EventRecorder) -> None:
        self._cluster = cluster
        self._events = events
        self._pods = factory.informer(Pod)
        self._claims = factory.informer(PersistentVolumeClaim)
        self._controller: Controller[Key] = Controller("ephemeral volumes", self._reconcile, workers=WORKERS)
        self._pods.add_handler(self._on_pod)
        self._claims.add_handler(on_delete=self._claim_gone)
        self._informers = [self._pods, self._claims]

    def _on_pod(self, pod: Pod) -> None:
        if any(volume.ephemeral is not None for volume in pod.spec.volumes):
            self._controller.queue.add(key_of(pod))

    def _claim_gone(self, claim: PersistentVolumeClaim) -> None:
        for owner in claim.metadata.owner_references:
            if owner.kind == "Pod":
                self._controller.queue.add((claim.metadata.namespace, owner.name))

    async def _reconcile(self, key: Key) -> float | None:
        pod = self._pods.get(key[1], key[0])
        if pod is None or is_deleting(pod):
            return None
        again_s = None
        for volume in pod.spec.volumes:
            if volume.ephemeral is not None and not await self._provide(pod, volume):
                again_s = FOREIGN_S
        return again_s

    async def _provide(self, pod: Pod, volume: Volume) -> bool:
        """Return whether the pod has the claim of a volume; else another one has its name. Raises: ApiError."""
        body = new_claim(pod, volume)
        name, namespace = body["metadata"]["name"], pod.metadata.namespace
        known = self._claims.get(name, namespace)
        if known is not None and is_controlled_by(known, pod):
            return True
        try:
            if known is None:
                await self._cluster.create(PersistentVolumeClaim, body, namespace)
                return True
        except errors.ApiError as error:
            if not pod_control.is_namespace_ending(error):
                self._tell(pod, volume, f"create PVC {name}: {error}")
            raise
        self._tell(
            pod, volume, f"PVC {namespace}/{name} was not created for pod {pod.key} (pod is not owner)"
        )
        return False

    def _tell(self, pod: Pod, volume: Volume, why: str) -> None:
        self._events.warning(pod, "FailedBinding", f"ephemeral volume {volume.name}: {why}")
