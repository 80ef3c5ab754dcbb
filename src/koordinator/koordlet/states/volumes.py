"""Find which volume is bound to which claim: block I/O control needs it. Source: behaviour/koordlet-observe 7.1."""

import random
from typing import NoReturn

from koordinator.api.meta import ObjectMeta
from koordinator.api.storage import PersistentVolumeClaim, PersistentVolumeClaimSpec
from koordinator.cluster.informer import Informer
from koordinator.koordlet.parts import Shared

GATE = "BlkIOReconcile"


class VolumesState:
    """Keeps `view.volumes`."""

    name = "PersistentVolumeClaim"
    is_required = False

    def __init__(self, shared: Shared) -> None:
        self._view = shared.view
        self._informer = Informer(
            shared.cluster,
            PersistentVolumeClaim,
            rng=random.Random(shared.rng.getrandbits(64)),
            transform=_binding,
        )
        self.synced = self._informer.synced
        self._volumes: dict[str, str] = {}
        self._view.volumes = self._volumes
        self._informer.add_handler(self._seen, lambda _, claim: self._seen(claim), self._deleted)

    @property
    def trouble(self) -> str:
        """Return why the API server tells nothing."""
        return "" if self.synced.is_set() else str(self._informer.guard.last_error or "no answer yet")

    async def run(self) -> NoReturn:
        """Follow all claims."""
        await self._informer.run()

    def _seen(self, claim: PersistentVolumeClaim) -> None:
        if claim.spec.volume_name:
            self._volumes[claim.key] = claim.spec.volume_name
        else:
            self._volumes.pop(claim.key, None)

    def _deleted(self, claim: PersistentVolumeClaim) -> None:
        self._volumes.pop(claim.key, None)


def _binding(claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
    """Return all that is read of a claim: there may be many thousands in the cluster."""
    meta = claim.metadata
    identity = ObjectMeta(
        namespace=meta.namespace, name=meta.name, uid=meta.uid, resource_version=meta.resource_version
    )
    return PersistentVolumeClaim(
        metadata=identity, spec=PersistentVolumeClaimSpec(volume_name=claim.spec.volume_name)
    )
