"""Random volumes of a cluster: classes, claims, PersistentVolumes, drivers, and what of them a pod uses.

On purpose (`docs/deliberate-differences.md`) no node says that it runs CSI drivers for disks of Kubernetes' own, and no
volume names the nodes that reach it by a field.
"""

import random
from typing import Any

from tests.real.plugins.pods import NAMESPACES, chance, labels, node_term, selector, some

Json = dict[str, Any]

CLASSES = ("standard", "local", "fast", "")
CLAIMS = ("data", "logs", "scratch")
DRIVERS = ("csi.example.com", "ebs.csi.aws.com", "pd.csi.storage.gke.io", "disk.csi.azure.com")
IN_TREE = (
    "kubernetes.io/aws-ebs",
    "kubernetes.io/gce-pd",
    "kubernetes.io/azure-disk",
    "kubernetes.io/cinder",
)
MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
SIZES = ("1Gi", "5Gi", "10Gi", "500M")
ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
OLD_ZONE, OLD_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
BOUND = "pv.kubernetes.io/bind-completed"
BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
SELECTED_NODE = "volume.kubernetes.io/selected-node"


class Volumes:
    """Objects are drawn first; pods name them, and some that are not there."""

    def __init__(self, rng: random.Random, nodes: tuple[str, ...]) -> None:
        self._rng, self._nodes = rng, nodes
        self._claims = [
            self._claim(namespace, name) for namespace in NAMESPACES[:3] for name in some(rng, CLAIMS, 3)
        ]
        self._volumes = [self._volume(f"pv-{number}") for number in range(rng.randint(1, 6))]
        self._bind()
        self._more: list[Json] = []

    def objects(self) -> list[Json]:
        rng = self._rng
        found = [*self._claims, *self._volumes, *self._more]
        found += [self._storage_class(name) for name in CLASSES if name and chance(rng, 85)]
        found += [self._csi_node(name) for name in self._nodes if chance(rng, 90)]
        found += [self._driver(name) for name in DRIVERS if chance(rng, 60)]
        found += [self._capacity(number) for number in range(rng.randint(0, 4))]
        found += [self._attachment(number) for number in range(rng.randint(0, 3))]
        return found

    def of_pod(self, meta: Json, *, is_on_node: bool) -> list[Json]:
        """No claim comes twice."""
        rng = self._rng
        found: list[Json] = []
        claims = rng.sample((*CLAIMS, "lost") if chance(rng, 15) else CLAIMS, 3)
        for number in range(rng.randint(0, 3)):
            kind = rng.choice(("claim", "claim", "claim", "claim", "ephemeral", "disk", "inline", "other"))
            each: Json = {"name": f"v{number}"}
            if kind == "claim":
                each["persistentVolumeClaim"] = {"claimName": claims[number]}
            elif kind == "ephemeral":
                spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
                each["ephemeral"] = {"volumeClaimTemplate": {"spec": spec}}
                if chance(rng, 75):
                    self._more.append(self._ephemeral(meta, each["name"], is_on_node=is_on_node))
            elif kind == "disk":
                each |= _disk(rng)
            elif kind == "inline":
                each["csi"] = {"driver": rng.choice(DRIVERS)}
            else:
                each["emptyDir"] = {}
            found.append(each)
        return found

    def _ephemeral(self, meta: Json, volume: str, *, is_on_node: bool) -> Json:
        """Pods on nodes have their own."""
        claim = self._claim(meta["namespace"], f"{meta['name']}-{volume}")
        is_own = is_on_node or chance(self._rng, 80)
        uid = meta["uid"] if is_own else "another"
        claim["metadata"]["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": uid, "controller": True}
        ]
        return claim

    def _claim(self, namespace: str, name: str) -> Json:
        rng = self._rng
        spec: Json = {
            "accessModes": rng.sample(MODES[:3], rng.randint(1, 2)),
            "resources": {"requests": {"storage": rng.choice(SIZES)}},
            "volumeMode": rng.choice(("Filesystem", "Filesystem", "Filesystem", "Block")),
        }
        if chance(rng, 25):
            spec["accessModes"] = ["ReadWriteOncePod"]
        if chance(rng, 90):
            spec["storageClassName"] = rng.choice(CLASSES)
        if chance(rng, 15):
            spec["selector"] = selector(rng)
        annotations = {}
        if chance(rng, 10):
            annotations[SELECTED_NODE] = rng.choice(self._nodes)
        meta = {
            "name": name,
            "namespace": namespace,
            "uid": f"{namespace}/{name}",
            "annotations": annotations,
        }
        if chance(rng, 5):
            meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        status = {"phase": "Lost" if chance(rng, 5) else "Pending"}
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": meta,
            "spec": spec,
            "status": status,
        }

    def _volume(self, name: str) -> Json:
        rng = self._rng
        spec: Json = {
            "capacity": {"storage": rng.choice(SIZES)},
            "accessModes": rng.sample(MODES[:3], rng.randint(1, 3)),
            "persistentVolumeReclaimPolicy": "Delete",
            "volumeMode": rng.choice(("Filesystem", "Filesystem", "Filesystem", "Block")),
            "storageClassName": rng.choice(CLASSES),
        }
        if chance(rng, 15):
            spec["accessModes"] = ["ReadWriteOncePod"]
        if chance(rng, 50):
            terms = [node_term(rng, ()) for _ in range(rng.randint(1, 2))]
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
        source = rng.choice(("csi", "csi", "local", "disk"))
        if source == "csi":
            spec["csi"] = {"driver": rng.choice(DRIVERS), "volumeHandle": rng.choice((name, name, "same"))}
        elif source == "local":
            spec["local"] = {"path": "/data"}
        else:
            spec |= _disk(rng)
        marks = labels(rng)
        for key in some(rng, (ZONE, REGION, OLD_ZONE, OLD_REGION), 2):
            marks[key] = rng.choice(("a", "b", "a__b", "c", ""))
            if "gcePersistentDisk" in spec:
                marks[key] = marks[key].partition("__")[0]  # their zones would have to be Google's
        meta = {"name": name, "uid": name, "labels": marks}
        status = {"phase": rng.choice(("Available", "Available", "Available", "Pending", "Failed"))}
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": meta,
            "spec": spec,
            "status": status,
        }

    def _bind(self) -> None:
        """Some claims have a volume, some are on their way, some name one that is gone."""
        rng = self._rng
        free = list(self._volumes)
        for claim in self._claims:
            draw, meta = rng.randint(0, 9), claim["metadata"]
            if draw < 4 and free:
                volume = free.pop()
                claim["spec"]["volumeName"] = volume["metadata"]["name"]
                claim["status"]["phase"] = "Bound"
                meta["annotations"][BOUND] = "yes"
                self._refer(volume, meta)
                volume["status"]["phase"] = "Bound"
            elif draw == 4 and free:
                self._refer(free.pop(), meta)
            elif draw == 5:
                claim["spec"]["volumeName"] = "pv-gone"
                if chance(rng, 50):
                    meta["annotations"][BOUND] = "yes"
            elif draw == 6 and free:
                claim["spec"]["volumeName"] = free[-1]["metadata"]["name"]

    def _refer(self, volume: Json, meta: Json) -> None:
        uid = meta["uid"] if chance(self._rng, 80) else self._rng.choice(("", "another"))
        volume["spec"]["claimRef"] = {
            "kind": "PersistentVolumeClaim",
            "namespace": meta["namespace"],
            "name": meta["name"],
        }
        if uid:
            volume["spec"]["claimRef"]["uid"] = uid

    def _storage_class(self, name: str) -> Json:
        rng = self._rng
        found: Json = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": name},
            "provisioner": rng.choice((*DRIVERS, "kubernetes.io/no-provisioner", rng.choice(IN_TREE))),
            "volumeBindingMode": rng.choice(("WaitForFirstConsumer", "WaitForFirstConsumer", "Immediate")),
        }
        if chance(rng, 30):
            wanted = [{"key": rng.choice((ZONE, "zone")), "values": some(rng, ("a", "b", "c"), 2) or ["a"]}]
            found["allowedTopologies"] = [{"matchLabelExpressions": wanted}]
        return found

    def _csi_node(self, name: str) -> Json:
        rng = self._rng
        drivers = []
        for driver in some(rng, DRIVERS, 4):
            each: Json = {"name": driver, "nodeID": name, "topologyKeys": [ZONE] if chance(rng, 50) else []}
            if chance(rng, 70):
                each["allocatable"] = {"count": rng.choice((0, 1, 1, 2, 3, 25))} if chance(rng, 85) else {}
            drivers.append(each)
        meta = {"name": name, "uid": name}
        return {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSINode",
            "metadata": meta,
            "spec": {"drivers": drivers},
        }

    def _driver(self, name: str) -> Json:
        rng = self._rng
        spec: Json = {"attachRequired": chance(rng, 85)}
        if chance(rng, 60):
            spec["storageCapacity"] = chance(rng, 70)
        return {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIDriver",
            "metadata": {"name": name},
            "spec": spec,
        }

    def _capacity(self, number: int) -> Json:
        rng = self._rng
        found: Json = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIStorageCapacity",
            "metadata": {"name": f"capacity-{number}", "namespace": "default"},
            "storageClassName": rng.choice(CLASSES[:3]),
        }
        if chance(rng, 85):
            found["nodeTopology"] = (
                {"matchLabels": {"zone": rng.choice(("a", "b"))}} if chance(rng, 70) else {}
            )
        if chance(rng, 85):
            found["capacity"] = rng.choice(("0", "2Gi", "5Gi", "100Gi"))
        if chance(rng, 30):
            found["maximumVolumeSize"] = rng.choice(("1Gi", "5Gi", "100Gi"))
        return found

    def _attachment(self, number: int) -> Json:
        rng = self._rng
        spec = {
            "attacher": rng.choice(DRIVERS),
            "nodeName": rng.choice(self._nodes),
            "source": {"persistentVolumeName": f"pv-{rng.randint(0, 6)}"},
        }
        meta = {"name": f"attachment-{number}"}
        return {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "VolumeAttachment",
            "metadata": meta,
            "spec": spec,
            "status": {"attached": chance(rng, 50)},
        }


def _disk(rng: random.Random) -> Json:
    name, is_read_only = rng.choice(("d1", "d2")), chance(rng, 50)
    kind = rng.choice(("gcePersistentDisk", "awsElasticBlockStore", "rbd", "iscsi", "cinder", "azureDisk"))
    sources: dict[str, Json] = {
        "gcePersistentDisk": {"pdName": name, "readOnly": is_read_only},
        "awsElasticBlockStore": {"volumeID": name, "readOnly": is_read_only},
        "rbd": {
            "monitors": some(rng, ("m1", "m2", "m3"), 3) or ["m1"],
            "image": name,
            "pool": "rbd",
            "readOnly": is_read_only,
        },
        "iscsi": {"targetPortal": "p", "iqn": name, "lun": rng.choice((0, 1)), "readOnly": is_read_only},
        "cinder": {"volumeID": name},
        "azureDisk": {"diskName": name, "diskURI": f"/{name}"},
    }
    return {kind: sources[kind]}
