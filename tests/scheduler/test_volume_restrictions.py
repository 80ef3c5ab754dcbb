"""Disks that only one pod may have, and claims for a single pod: who is refused, what is said, and who is woken."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.storage import PersistentVolumeClaim
from koordinator.clock import FixedClock
from koordinator.scheduler.config import config
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.status import Code
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.test_volumes import claim
from tests.scheduler.world import node, pod

Json = dict[str, Any]
DISK = "node(s) had no available disk"
CLAIM = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode "
    "already in-use by another pod"
)


def disk(name: str, *, read_only: bool = False) -> Json:
    return {"name": f"v-{name}", "gcePersistentDisk": {"pdName": name, "readOnly": read_only}}


def replicated(image: str, *monitors: str, read_only: bool = False) -> Json:
    body = {"monitors": list(monitors), "pool": "p", "image": image, "readOnly": read_only}
    return {"name": f"v-{image}", "rbd": body}


def target(name: str, *, read_only: bool = False) -> Json:
    return {"name": f"v-{name}", "iscsi": {"iqn": name, "readOnly": read_only}}


def block(name: str) -> Json:
    return {"name": f"v-{name}", "awsElasticBlockStore": {"volumeID": name}}


def use_of(name: str) -> Json:
    return {"name": f"v-{name}", "persistentVolumeClaim": {"claimName": name}}


OWN: Json = {"name": "v-own", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}


class Restricted:
    """A scheduler with the nodes `n0` and `n1`."""

    def __init__(self) -> None:
        self.engine = Engine(config.SchedulerConfig(), FixedClock(), plugins=installed_plugins())
        [profile] = self.engine.profiles.values()
        self.plugin: Any = next(each for each in profile.plugins if each.name == "VolumeRestrictions")
        for name in ("n0", "n1"):
            self.engine.table.set_node(from_builtins(node(name), Node))

    def claim(self, name: str, mode: str = "ReadWriteOncePod") -> None:
        body = from_builtins(claim(name, accessModes=[mode]), PersistentVolumeClaim)
        for handle in self.engine.handles:
            for watch in handle.watches:
                if watch.view is PersistentVolumeClaim:
                    watch.on_add(body)

    def pod(self, name: str, *volumes: Json) -> PodInfo:
        body = pod(name, volumes=list(volumes))
        body["metadata"]["uid"] = name
        return PodInfo.of(from_builtins(body, Pod), self.engine.table.registry)

    def place(self, name: str, where: str, *volumes: Json) -> None:
        self.engine.table.assign(self.pod(name, *volumes), where)

    def refused(self, *volumes: Json) -> dict[str, str]:
        """Node → why a pod with these volumes is refused there."""
        state, table = self.plugin.prepare(self.pod("new", *volumes)), self.engine.table
        codes = dict(zip(table.rows.tolist(), self.plugin.filter(state, table.rows).tolist(), strict=True))
        return {
            table.name_of(row): " ".join(self.plugin.refusal(state, code).reasons)
            for row, code in codes.items()
            if code
        }

    def facts(self, *volumes: Json, where: str = "n0") -> tuple[str, ...]:
        state, row = self.plugin.prepare(self.pod("new", *volumes)), self.engine.table.row_of(where)
        found: tuple[str, ...] = self.plugin.facts(state, row)
        return found


Placed = tuple[int, int, bool]
PLACED = st.tuples(st.integers(0, 1), st.integers(0, 1), st.booleans())
"""Node, disk, whether it is only read."""


@settings(deadline=None, max_examples=80)
@given(st.lists(PLACED, max_size=6), st.sets(st.integers(0, 5)))
def test_a_disk_is_taken_by_those_who_are_there_now_and_readers_share_it(
    placed: list[Placed], gone: set[int]
) -> None:
    world = Restricted()
    for number, (where, which, read_only) in enumerate(placed):
        world.place(f"p{number}", f"n{where}", disk(f"d{which}", read_only=read_only))
    for number in gone:
        world.engine.table.unassign(f"p{number}")

    left = [each for number, each in enumerate(placed) if number not in gone]
    for read_only in (True, False):
        for which in (0, 1):
            taken = {
                f"n{where}": DISK
                for where, other, is_reader in left
                if other == which and not (is_reader and read_only)
            }
            assert world.refused(disk(f"d{which}", read_only=read_only)) == taken
    if not left:
        assert not world.plugin._disks, "nothing is kept of disks that nobody has"


@pytest.mark.parametrize(
    ("there", "wanted", "clash"),
    [
        (replicated("i", "a", "b"), replicated("i", "b", "c"), True),
        (replicated("i", "a", "b"), replicated("i", "c"), False),
        (replicated("i", "a"), replicated("j", "a"), False),
        (replicated("i", "a", read_only=True), replicated("i", "a", read_only=True), False),
        (replicated("i", "a", read_only=True), replicated("i", "a"), True),
        (target("t"), target("t", read_only=True), True),
        (target("t", read_only=True), target("t", read_only=True), False),
        (block("b"), block("b"), True),
        (block("b"), block("c"), False),
        (block("x"), disk("x"), False),
    ],
)
def test_disks_are_the_same_by_what_their_kind_calls_them(there: Json, wanted: Json, clash: bool) -> None:
    world = Restricted()
    world.place("p", "n1", there)
    assert world.refused(wanted) == ({"n1": DISK} if clash else {})


def test_pods_without_volumes_are_not_looked_at() -> None:
    world = Restricted()
    world.place("p", "n0")
    world.engine.table.unassign("p")
    assert world.plugin.class_key(world.pod("a")) == world.plugin.class_key(world.pod("b")) == ()
    state = world.plugin.prepare(world.pod("a"))
    assert world.plugin.epoch(state) is None
    assert world.plugin.pre_filter(state).status.code is Code.SKIP


def test_pods_of_one_class_name_the_same_disks_and_claims() -> None:
    world = Restricted()
    first = world.pod("a", disk("x"), use_of("data"))
    assert world.plugin.class_key(first) == world.plugin.class_key(world.pod("b", disk("x"), use_of("data")))
    for others in (
        (disk("y"), use_of("data")),
        (disk("x"), use_of("more")),
        (disk("x", read_only=True), use_of("data")),
        (disk("x"),),
    ):
        assert world.plugin.class_key(world.pod("b", *others)) != world.plugin.class_key(first)


def test_a_claim_for_one_pod_is_taken_everywhere_until_its_last_user_is_gone() -> None:
    world = Restricted()
    world.claim("data")
    state = world.plugin.prepare(world.pod("new", use_of("data")))
    assert world.plugin.pre_filter(state).status.code is Code.SKIP
    free = world.plugin.epoch(state)

    world.place("a", "n0", use_of("data"))
    world.place("b", "n0", use_of("data"))
    assert world.refused(use_of("data")) == {"n0": CLAIM, "n1": CLAIM}
    assert world.plugin.pre_filter(state).status.is_success
    assert world.plugin.epoch(state) != free, "what was found out before is asked again"

    world.engine.table.unassign("a")
    assert world.refused(use_of("data")) == {"n0": CLAIM, "n1": CLAIM}
    world.engine.table.unassign("b")
    assert world.refused(use_of("data")) == {}
    assert not world.plugin._users
    assert world.plugin.epoch(state) == free


def test_claims_that_pods_may_share_and_those_of_one_pod_alone_take_nothing() -> None:
    world = Restricted()
    world.claim("shared", "ReadWriteMany")
    for name in ("a", "b"):
        world.place(name, "n0", use_of("shared"), OWN)
    assert world.refused(use_of("shared"), OWN) == {}
    assert world.facts(use_of("shared"), OWN) == ()


def test_a_claim_that_is_not_there_is_named_before_any_node_is_looked_at() -> None:
    world = Restricted()
    world.claim("data")
    state = world.plugin.prepare(world.pod("new", use_of("data"), use_of("lost")))
    status = world.plugin.pre_filter(state).status
    assert (status.code, status.reasons) == (
        Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
        ('persistentvolumeclaim "lost" not found',),
    )


def test_a_pod_with_disks_is_asked_of_every_node() -> None:
    world = Restricted()
    state = world.plugin.prepare(world.pod("new", disk("x")))
    assert world.plugin.pre_filter(state).status.code is Code.SUCCESS


def test_facts_name_the_pods_that_have_the_disk_and_the_claim() -> None:
    world = Restricted()
    world.claim("data")
    world.place("plain", "n0")
    world.place("reader", "n0", disk("x", read_only=True))
    world.place("writer", "n0", disk("y"), use_of("data"))

    assert world.facts(disk("x", read_only=True)) == ()
    assert world.facts(disk("x")) == ("disk gce x is used by pod default/reader",)
    taken = ("disk gce y is used by pod default/writer",)
    assert world.facts(disk("y")) == world.facts(disk("y", read_only=True)) == taken
    assert world.facts(disk("z")) == ()
    of_claim = "claim default/data (ReadWriteOncePod) is used"
    assert world.facts(use_of("data")) == (f"{of_claim} by pod default/writer",)
    assert world.facts(use_of("data"), where="n1") == (f"{of_claim} on another node",)
    world.place("more", "n1", disk("x"))
    reported = ("disk gce x is used by pod default/more",)
    assert world.facts(use_of("data"), disk("x"), where="n1") == reported, "what is near comes first"
    world.engine.table.unassign("writer")
    assert world.facts(use_of("data"), where="n1") == ()


@pytest.mark.parametrize(
    ("gone", "woken"),
    [
        ((), False),
        ((disk("x"),), True),
        ((disk("x", read_only=True),), True),
        ((disk("y"),), False),
        ((use_of("data"),), True),
        ((use_of("more"),), False),
        ((disk("y"), use_of("data")), True),
    ],
)
def test_a_pod_that_goes_wakes_those_that_want_its_disks_and_claims(
    gone: tuple[Json, ...], woken: bool
) -> None:
    world = Restricted()
    waiting = world.pod("new", disk("x"), use_of("data"))
    event = QueueingEvent(ClusterEvent.ASSIGNED_POD_DELETED, 0, world.pod("old", *gone), None)
    assert world.plugin.wakes(event, waiting) is woken


def test_a_room_that_nobody_can_name_wakes_all_that_were_refused() -> None:
    world = Restricted()
    event = QueueingEvent(ClusterEvent.ASSIGNED_POD_DELETED, 0, None, None)
    assert world.plugin.wakes(event, world.pod("new", disk("x")))


@pytest.mark.parametrize(("name", "woken"), [("data", True), ("more", False)])
def test_the_claim_of_a_pod_wakes_it_when_it_comes(name: str, woken: bool) -> None:
    world = Restricted()
    came = from_builtins(claim(name), PersistentVolumeClaim)
    event = QueueingEvent(ClusterEvent.STORAGE, None, None, came)
    assert world.plugin.wakes(event, world.pod("new", use_of("data"))) is woken
