"""Volumes per node are counted in place; the answers are those of counting anew."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from koordinator.clock import FixedClock
from koordinator.scheduler.config import config
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.plugin.status import Code
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.test_volumes import claim, user_of, volume
from tests.scheduler.world import node

NAMES = st.integers(0, 2)
DRIVER = "csi.example.com"
STEP = st.one_of(
    st.tuples(st.just("limit"), NAMES, st.one_of(st.none(), NAMES)),
    st.tuples(st.just("volume"), NAMES, st.one_of(st.none(), NAMES)),
    st.tuples(st.just("claim"), NAMES, st.one_of(st.none(), NAMES)),
    st.tuples(st.just("attachment"), NAMES, st.one_of(st.none(), st.tuples(NAMES, NAMES))),
    st.tuples(st.just("pod"), NAMES, st.one_of(st.none(), st.tuples(NAMES, NAMES))),
)
Key = tuple[str, int]


def object_of(kind: str, number: int, value: Any) -> tuple[type[Any], dict[str, Any]]:
    """What a step is about."""
    if kind == "limit":
        driver = {"name": DRIVER, "nodeID": "x", "allocatable": {"count": value}}
        return CSINode, {"metadata": {"name": f"n{number}"}, "spec": {"drivers": [driver]}}
    if kind == "volume":
        spec = {
            "csi": {"driver": DRIVER, "volumeHandle": f"h{value}"},
            "claimRef": {"namespace": "default", "name": f"c{number}"},
        }
        return PersistentVolume, {"metadata": {"name": f"v{number}"}, "spec": spec}
    if kind == "claim":
        return PersistentVolumeClaim, claim(f"c{number}", volumeName=f"v{value}")
    volume, where = value
    spec = {
        "attacher": DRIVER,
        "nodeName": f"n{where}",
        "source": {"persistentVolumeName": f"v{volume}"},
    }
    return VolumeAttachment, {"metadata": {"name": f"a{number}"}, "spec": spec}


class Counted:
    """A scheduler that hears of steps."""

    def __init__(self, settings: config.SchedulerConfig | None = None) -> None:
        settings = settings or config.SchedulerConfig()
        self.engine = Engine(settings, FixedClock(), plugins=installed_plugins())
        [profile] = self.engine.profiles.values()
        self.plugin: Any = next(each for each in profile.plugins if each.name == "NodeVolumeLimits")
        self.objects: dict[Key, Any] = {}
        for number in range(3):
            self.engine.table.set_node(from_builtins(node(f"n{number}"), Node))

    def step(self, kind: str, number: int, value: Any) -> None:
        key, old = (kind, number), self.objects.pop((kind, number), None)
        if kind == "pod":
            self.engine.table.unassign(f"p{number}")
            if value is not None:
                self.objects[key] = value
                self.engine.table.assign(self.user(f"p{number}", f"c{value[0]}"), f"n{value[1]}")
            return
        view = type(old) if value is None else object_of(kind, number, value)[0]
        new = None if value is None else from_builtins(object_of(kind, number, value)[1], view)
        if new is not None:
            self.objects[key] = new
        for handle in self.engine.handles:
            for watch in handle.watches:
                if watch.view is view and old is not None and new is not None:
                    watch.on_update(old, new)
                elif watch.view is view and new is not None:
                    watch.on_add(new)
                elif watch.view is view and old is not None:
                    watch.on_delete(old)

    def deliver(self, view: type[Any], body: dict[str, Any]) -> None:
        """An object that comes."""
        for handle in self.engine.handles:
            for watch in handle.watches:
                if watch.view is view:
                    watch.on_add(from_builtins(body, view))

    def user(self, name: str, *claims: str) -> PodInfo:
        body = user_of(name, *claims)
        body["metadata"]["uid"] = name
        return PodInfo.of(from_builtins(body, Pod), self.engine.table.registry)

    def answers(self) -> list[list[int]]:
        wishes = [("c0",), ("c1",), ("c0", "c2")]
        states = [self.plugin.prepare(self.user("new", *wish)) for wish in wishes]
        return [self.plugin.filter(state, self.engine.table.rows).tolist() for state in states]


@settings(deadline=None, max_examples=60)
@given(st.lists(STEP, max_size=20))
def test_counts_kept_in_place_are_those_counted_anew(steps: list[tuple[str, int, Any]]) -> None:
    kept = Counted()
    last: dict[Key, Any] = {}
    for kind, number, value in steps:
        kept.step(kind, number, value)
        kept.answers()  # fills what is remembered
        last[(kind, number)] = value

    anew = Counted()
    for (kind, number), value in last.items():
        if value is not None:
            anew.step(kind, number, value)
    assert kept.answers() == anew.answers()


def test_attachments_count_where_a_driver_is_known_for_their_volume() -> None:
    counted = Counted()
    counted.step("limit", 0, 2)
    counted.step("claim", 0, 0)
    counted.step("volume", 0, 0)
    counted.step("attachment", 0, (1, 0))  # of a volume that nobody knows
    counted.deliver(PersistentVolume, {"metadata": {"name": "v2"}, "spec": {"local": {"path": "/x"}}})
    counted.step("attachment", 1, (2, 0))  # of one that no driver made

    state = counted.plugin.prepare(counted.user("new", "c0"))
    row = counted.engine.table.row_of("n0")
    assert counted.plugin.facts(state, row) == (
        f"{DRIVER}: 0 volumes attached, 1 more for this pod, at most 2",
    )

    counted.step("volume", 1, 1)
    assert counted.plugin.facts(state, row) == (
        f"{DRIVER}: 1 volumes attached, 1 more for this pod, at most 2",
    )


EBS = "ebs.csi.aws.com"


def with_disk(name: str, **source: Any) -> dict[str, Any]:
    body = user_of(name)
    body["metadata"]["uid"] = name
    body["spec"]["volumes"] = [{"name": "disk", **source}]
    return body


@pytest.mark.parametrize(
    ("driver", "provisioner", "one", "same", "other"),
    [
        pytest.param(
            EBS,
            "kubernetes.io/aws-ebs",
            {"awsElasticBlockStore": {"volumeID": "vol-1"}},
            {"awsElasticBlockStore": {"volumeID": "aws://us-east-1a/vol-1"}},
            {"awsElasticBlockStore": {"volumeID": "vol-2"}},
            id="AWS",
        ),
        pytest.param(
            "pd.csi.storage.gke.io",
            "kubernetes.io/gce-pd",
            {"gcePersistentDisk": {"pdName": "a"}},
            {"gcePersistentDisk": {"pdName": "a", "readOnly": True}},
            {"gcePersistentDisk": {"pdName": "b"}},
            id="Google",
        ),
        pytest.param(
            "disk.csi.azure.com",
            "kubernetes.io/azure-disk",
            {"azureDisk": {"diskName": "a", "diskURI": "/a"}},
            {"azureDisk": {"diskName": "b", "diskURI": "/a"}},
            {"azureDisk": {"diskName": "a", "diskURI": "/b"}},
            id="Azure",
        ),
        pytest.param(
            "cinder.csi.openstack.org",
            "kubernetes.io/cinder",
            {"cinder": {"volumeID": "a"}},
            {"cinder": {"volumeID": "a", "readOnly": True}},
            {"cinder": {"volumeID": "b"}},
            id="OpenStack",
        ),
    ],
)
def test_disks_of_kubernetes_itself_count_for_the_driver_that_attaches_them(
    driver: str, provisioner: str, one: Any, same: Any, other: Any
) -> None:
    counted = Counted()
    limited = {"drivers": [{"name": driver, "nodeID": "x", "allocatable": {"count": 2}}]}
    counted.deliver(CSINode, {"metadata": {"name": "n0"}, "spec": limited})
    by_claim = {"metadata": {"name": "v0"}, "spec": other}
    counted.deliver(PersistentVolume, by_claim)
    counted.deliver(PersistentVolumeClaim, claim("c0", volumeName="v0"))
    counted.deliver(StorageClass, {"metadata": {"name": "old"}, "provisioner": provisioner})
    counted.deliver(PersistentVolumeClaim, claim("c1", "old"))
    registry = counted.engine.table.registry
    counted.engine.table.assign(PodInfo.of(from_builtins(with_disk("there", **one), Pod), registry), "n0")
    row = counted.engine.table.row_of("n0")

    def told(pod: PodInfo) -> tuple[str, ...]:
        found: tuple[str, ...] = counted.plugin.facts(counted.plugin.prepare(pod), row)
        return found

    text = f"{driver}: 1 volumes attached, {{}} more for this pod, at most 2"
    for body, more in ((one, 0), (same, 0), (other, 1)):
        assert told(PodInfo.of(from_builtins(with_disk("new", **body), Pod), registry)) == (
            text.format(more),
        )
    assert told(counted.user("new", "c0", "c1")) == (text.format(2),)
    counted.engine.table.unassign("there")
    assert told(counted.user("new", "c0")) == (text.format(1).replace("1 volumes", "0 volumes"),)


def test_pods_without_disks_are_not_asked_of_and_those_with_different_ones_are_no_class() -> None:
    counted = Counted()
    registry = counted.engine.table.registry
    pods = [
        PodInfo.of(from_builtins(with_disk("new", **source), Pod), registry)
        for source in (
            {"emptyDir": {}},
            {"awsElasticBlockStore": {"volumeID": "a"}},
            {"cinder": {"volumeID": "a"}},
        )
    ]

    codes = [counted.plugin.pre_filter(counted.plugin.prepare(pod)).status.code for pod in pods]
    assert codes == [Code.SKIP, Code.SUCCESS, Code.SUCCESS]
    assert len({counted.plugin.class_key(pod) for pod in pods}) == 3


def test_an_attachment_counts_for_the_driver_that_it_names() -> None:
    counted = Counted()
    for number in range(2):
        driver = {"name": f"d{number}", "nodeID": "x", "allocatable": {"count": 5}}
        counted.deliver(CSINode, {"metadata": {"name": f"n{number}"}, "spec": {"drivers": [driver]}})
    csi = {"csi": {"driver": "d0", "volumeHandle": "h"}}
    counted.deliver(PersistentVolume, {"metadata": {"name": "v0"}, "spec": csi})
    for number in range(2):
        source = {"persistentVolumeName": "v0"}
        spec = {"attacher": "d1", "nodeName": f"n{number}", "source": source}
        counted.deliver(VolumeAttachment, {"metadata": {"name": f"a{number}"}, "spec": spec})
    counted.deliver(
        PersistentVolume,
        {"metadata": {"name": "v1"}, "spec": {"csi": {"driver": "d1", "volumeHandle": "i"}}},
    )
    counted.deliver(PersistentVolumeClaim, claim("c0", volumeName="v1"))

    state, row = counted.plugin.prepare(counted.user("new", "c0")), counted.engine.table.row_of("n1")
    assert counted.plugin.facts(state, row) == ("d1: 1 volumes attached, 1 more for this pod, at most 5",)


@pytest.mark.parametrize(
    ("free", "reasons"),
    [
        pytest.param("10Gi", (), id="just enough"),
        pytest.param("9Gi", ("node(s) did not have enough free storage",), id="too little"),
        pytest.param(None, ("node(s) did not have enough free storage",), id="nobody says"),
    ],
)
def test_a_volume_is_promised_where_its_driver_has_space_for_it(
    free: str | None, reasons: tuple[str, ...]
) -> None:
    counted = Counted()
    [profile] = counted.engine.profiles.values()
    plugin: Any = next(each for each in profile.plugins if each.name == "VolumeBinding")
    made = {"provisioner": DRIVER, "volumeBindingMode": "WaitForFirstConsumer"}
    counted.deliver(StorageClass, {"metadata": {"name": "made"}, **made})
    counted.deliver(CSIDriver, {"metadata": {"name": DRIVER}, "spec": {"storageCapacity": True}})
    counted.deliver(PersistentVolumeClaim, claim("c0", "made"))
    if free is not None:
        of = {"storageClassName": "made", "capacity": free, "nodeTopology": {}}
        counted.deliver(CSIStorageCapacity, {"metadata": {"name": "s", "namespace": "d"}, **of})
    user = counted.user("new", "c0")

    state, row = plugin.prepare(user), counted.engine.table.row_of("n0")
    refused = [
        plugin.refusal(state, code).reasons
        for code in plugin.filter(state, counted.engine.table.rows)
        if code
    ]
    assert refused == [reasons] * 3 * bool(reasons)

    found = "not enough storage to make one here" if reasons else "a volume can be had here"
    assert plugin.facts(state, row) == (f"claim default/c0 (10Gi of class made): {found}",)
    status = plugin.reserve(state, user, row)
    assert (status.is_success, status.reasons) == (not reasons, reasons)


SHAPE = [{"utilization": 0, "score": 2}, {"utilization": 100, "score": 10}]


@pytest.mark.parametrize(
    ("claims", "shape", "scores"),
    [
        pytest.param({"c0": "local"}, SHAPE, [100, 40, 0], id="10 of 10 GiB, 10 of 40 GiB, no volume"),
        pytest.param({"c0": "local", "c1": "other"}, SHAPE, [70, 40, 0], id="mean of the classes there"),
        pytest.param({"c1": "other"}, SHAPE, [40, 0, 0], id="another class"),
        pytest.param({"c0": "local"}, [], None, id="no shape"),
        pytest.param({}, SHAPE, None, id="no claim"),
    ],
)
def test_volumes_are_scored_by_the_part_that_claims_fill(
    claims: dict[str, str], shape: list[Any], scores: list[int] | None
) -> None:
    plugins = [{"name": "VolumeBinding", "args": {"shape": shape} if shape else {}}]
    counted = Counted(config.decode({"profiles": [{"schedulerName": "s", "pluginConfig": plugins}]}))
    [profile] = counted.engine.profiles.values()
    plugin: Any = next(each for each in profile.plugins if each.name == "VolumeBinding")
    for name in ("local", "other"):
        of_nobody = {"provisioner": "kubernetes.io/no-provisioner"}
        body = {"metadata": {"name": name}, "volumeBindingMode": "WaitForFirstConsumer", **of_nobody}
        counted.deliver(StorageClass, body)
    for host in ("n0", "n1", "n2"):
        body = node(host, labels={"kubernetes.io/hostname": host})
        counted.engine.table.set_node(from_builtins(body, Node))
    volumes = [("v0", "n0", "10Gi", "local"), ("v1", "n1", "40Gi", "local"), ("v2", "n0", "40Gi", "other")]
    for name, host, size, storage_class in volumes:
        body = volume(name, host, size)
        body["spec"]["storageClassName"] = storage_class
        counted.deliver(PersistentVolume, body)
    for name, storage_class in claims.items():
        counted.deliver(PersistentVolumeClaim, claim(name, storage_class))
    state = plugin.prepare(counted.user("new", *claims))

    if scores is None:
        assert plugin.pre_score(state).code is Code.SKIP
    else:
        assert plugin.pre_score(state).code is Code.SUCCESS
        assert plugin.score(state, counted.engine.table.rows).tolist() == scores


def test_nothing_is_kept_of_attachments_that_are_gone_and_all_of_those_that_stay() -> None:
    counted = Counted()
    counted.step("attachment", 0, (0, 0))
    counted.step("attachment", 1, (0, 1))
    counted.step("attachment", 2, (1, 1))

    counted.step("attachment", 0, None)
    assert counted.plugin._nodes_of == {"v0": {"n1"}, "v1": {"n1"}}
    assert {name: len(found) for name, found in counted.plugin._attachments.items()} == {"n1": 2}
    counted.step("attachment", 1, None)
    counted.step("attachment", 2, None)
    assert (counted.plugin._nodes_of, counted.plugin._attachments) == ({}, {})
