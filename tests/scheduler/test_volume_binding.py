"""What VolumeBinding says about nodes: which claim decides, and which volumes count."""

from typing import Any

import pytest

from koordinator.api.core import Node
from koordinator.api.decode import from_builtins
from koordinator.api.storage import (
    CSIDriver,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from koordinator.scheduler.plugins.volumes.catalog import BIND_COMPLETED
from tests.scheduler.test_volume_limits import DRIVER, Counted
from tests.scheduler.test_volumes import claim, volume
from tests.scheduler.world import node

Json = dict[str, Any]

ELSEWHERE = "node(s) didn't match PersistentVolume's node affinity"
NONE_FOUND = "node(s) didn't find available persistent volumes to bind"
NO_SPACE = "node(s) did not have enough free storage"
GONE = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
PROVISIONERS = {"local": "kubernetes.io/no-provisioner", "made": DRIVER, "free": "csi.other.com"}


class Storage(Counted):
    """Nodes n0, n1 and n2, known by name; classes without a driver, with a full one, and with one that never fills."""

    def __init__(self) -> None:
        super().__init__()
        for host in ("n0", "n1", "n2"):
            body = node(host, labels={"kubernetes.io/hostname": host})
            self.engine.table.set_node(from_builtins(body, Node))
        for name, provisioner in PROVISIONERS.items():
            mode = {"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}
            self.deliver(StorageClass, {"metadata": {"name": name}, **mode})
        self.deliver(CSIDriver, {"metadata": {"name": DRIVER}, "spec": {"storageCapacity": True}})

    def bound(self, name: str, volume_name: str) -> None:
        body = claim(name, volumeName=volume_name)
        body["metadata"]["annotations"] = {BIND_COMPLETED: "yes"}
        self.deliver(PersistentVolumeClaim, body)

    def volume(self, name: str, host: str, *, claim: str = "", storage_class: str = "local") -> None:
        body = volume(name, host)
        body["spec"]["storageClassName"] = storage_class
        if claim:
            body["spec"]["claimRef"] = {"namespace": "default", "name": claim}
        self.deliver(PersistentVolume, body)

    def reasons(self, *claims: str) -> list[tuple[str, ...]]:
        """Of each node, for a pod with the claims."""
        [profile] = self.engine.profiles.values()
        plugin: Any = next(each for each in profile.plugins if each.name == "VolumeBinding")
        state = plugin.prepare(self.user("new", *claims))
        codes = plugin.filter(state, self.engine.table.rows).tolist()
        return [plugin.refusal(state, code).reasons if code else () for code in codes]


def test_of_claims_that_are_bound_the_first_that_has_no_volume_here_decides() -> None:
    storage = Storage()
    storage.volume("v0", "n0")
    storage.bound("here", "v0")
    storage.bound("gone", "lost")

    assert storage.reasons("here", "gone") == [(GONE,), (ELSEWHERE,), (ELSEWHERE,)]
    assert storage.reasons("gone", "here") == [(GONE,)] * 3


def test_what_claims_without_a_volume_lack_is_told_beside_what_is_wrong_with_the_others() -> None:
    storage = Storage()
    storage.bound("gone", "lost")
    storage.deliver(PersistentVolumeClaim, claim("new", "local"))

    assert storage.reasons("gone", "new") == [(NONE_FOUND, GONE)] * 3


@pytest.mark.parametrize(
    ("small", "large", "reason"),
    [
        pytest.param("made", "local", NO_SPACE, id="the driver of the smaller one is full"),
        pytest.param("local", "made", NONE_FOUND, id="nobody makes the smaller one"),
    ],
)
def test_of_claims_without_a_volume_the_smallest_that_lacks_something_decides(
    small: str, large: str, reason: str
) -> None:
    storage = Storage()
    for name, storage_class, size in (("large", large, "10Gi"), ("small", small, "1Gi")):
        asked = {"resources": {"requests": {"storage": size}}}
        storage.deliver(PersistentVolumeClaim, claim(name, storage_class, **asked))

    assert storage.reasons("large", "small") == [(reason,)] * 3


def test_a_claim_whose_node_is_chosen_decides_before_smaller_ones() -> None:
    storage = Storage()
    chosen = claim("chosen", "made")
    chosen["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "n1"}
    storage.deliver(PersistentVolumeClaim, chosen)
    asked = {"resources": {"requests": {"storage": "1Gi"}}}
    storage.deliver(PersistentVolumeClaim, claim("small", "local", **asked))

    assert storage.reasons("small", "chosen") == [(NONE_FOUND,), (NO_SPACE,), (NONE_FOUND,)]


def test_a_volume_that_names_a_claim_counts_in_the_class_of_the_claim_only() -> None:
    storage = Storage()
    storage.deliver(PersistentVolumeClaim, claim("data", "local"))
    storage.volume("other", "n0", claim="data", storage_class="free")
    assert storage.reasons("data") == [(NONE_FOUND,)] * 3

    storage.volume("same", "n1", claim="data")
    assert storage.reasons("data") == [(NONE_FOUND,), (), (NONE_FOUND,)]


def test_where_the_volume_that_names_a_claim_cannot_be_reached_one_may_be_made() -> None:
    storage = Storage()
    storage.deliver(PersistentVolumeClaim, claim("data", "free"))
    storage.volume("v0", "n0", claim="data", storage_class="free")

    assert storage.reasons("data") == [(), (), ()]
