"""Keeps claims that pods use, and volumes that claims have, from being deleted under them, by a finalizer that goes
when nobody is left.

Source: the persistent volume claim and persistent volume protection controllers of kube-controller-manager. There the
API server adds the finalizer, too; here this loop does alone.
"""

from koordinator.api.core import Pod
from koordinator.api.storage import PersistentVolume, PersistentVolumeClaim
from koordinator.cluster.controller import Controller, ControllerLoop
from koordinator.cluster.informer import InformerFactory, Key, key_of
from koordinator.cluster.protocol import Cluster, patch_same
from koordinator.local.controllers.ownership import is_deleting
from koordinator.scheduler.plugins.volumes import catalog

CLAIM_FINALIZER, VOLUME_FINALIZER = "kubernetes.io/pvc-protection", "kubernetes.io/pv-protection"
BY_CLAIM = "claim"
WORKERS = 4


def claims_of(pod: Pod) -> list[str]:
    """Return the claims ("namespace/name") that a pod keeps in use: all it names, once it has a node.

    kubelets do not start a pod whose claim is being deleted, so one that waits for a node keeps none.
    """
    return ["/".join(use.key) for use in catalog.claims_of(pod)] if pod.spec.node_name else []


class VolumeProtectionController(ControllerLoop):
    """The loop; its keys are claims ("namespace", "name") and volumes ("", "name")."""

    def __init__(self, cluster: Cluster, factory: InformerFactory) -> None:
        self._cluster = cluster
        self._claims = factory.informer(PersistentVolumeClaim)
        self._volumes = factory.informer(PersistentVolume)
        self._pods = factory.informer(Pod)
        self._pods.add_index(BY_CLAIM, claims_of)
        self._controller: Controller[Key] = Controller("volume protection", self._reconcile, workers=WORKERS)
        self._controller.watch(self._claims, lambda claim: [key_of(claim)])
        self._controller.watch(self._volumes, lambda volume: [key_of(volume)])
        self._pods.add_handler(on_delete=self._pod_gone)
        self._informers = [self._claims, self._volumes, self._pods]

    def _pod_gone(self, pod: Pod) -> None:
        for place in claims_of(pod):
            namespace, _, name = place.partition("/")
            self._controller.queue.add((namespace, name))

    async def _reconcile(self, key: Key) -> None:
        namespace, name = key
        if namespace:
            claim = self._claims.get(name, namespace)
            if claim is not None:
                is_used = bool(self._pods.by_index(BY_CLAIM, claim.key))
                await self._protect(claim, CLAIM_FINALIZER, is_used=is_used)
            return
        volume = self._volumes.get(name)
        if volume is not None:
            await self._protect(volume, VOLUME_FINALIZER, is_used=volume.status.phase == "Bound")

    async def _protect(
        self, obj: PersistentVolumeClaim | PersistentVolume, finalizer: str, *, is_used: bool
    ) -> None:
        present = obj.metadata.finalizers
        wanted = present
        if is_deleting(obj):
            wanted = present if is_used else [one for one in present if one != finalizer]
        elif finalizer not in present:
            wanted = [*present, finalizer]
        if wanted != present:
            await patch_same(self._cluster, obj, {"metadata": {"finalizers": wanted or None}})
