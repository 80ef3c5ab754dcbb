"""The ledger follows from objects alone, whatever came first and whatever happened in between."""

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api import labels
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.reservation import Reservation
from koordinator.clock import FixedClock
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.results import Placed
from koordinator.scheduler.plugin.handle import Actions
from koordinator.scheduler.plugins.built_in import PLUGINS
from koordinator.scheduler.plugins.reservation.ledger import ReservationLedger
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import trial_of
from tests.scheduler.reservation.test_operating_pods import placeholder
from tests.scheduler.reservation.test_plugin import ALLOCATED, owned, reservation
from tests.scheduler.world import node

Json = dict[str, Any]
NODES = ("n0", "n1")
ROOMS = ("r0", "r1", "r2")
PODS = ("p0", "p1", "p2", "p3")
HOLDER = "h0"
"""A pod in operating mode Reservation."""


class EnteringActions(Actions):
    """Reserve pods go to their rows."""

    engine: Engine

    def enter_pod(self, old: Pod | None, pod: Pod) -> None:
        if pod.spec.node_name:
            table = self.engine.table
            place = table.place_of(pod.metadata.uid)
            info = PodInfo.of(pod, table.registry)
            table.assign(
                info if place is None else place.pod.updated(pod, table.registry), pod.spec.node_name
            )

    def remove_pod(self, pod: Pod) -> None:
        self.engine.table.unassign(pod.metadata.uid)


class Life:
    """An engine that is told of objects; `objects` is what there is in the end."""

    def __init__(self, **options: Any) -> None:
        actions = EnteringActions()
        self.engine = actions.engine = Engine(
            default_plugins.shipped_config(), FixedClock(1_000.0), plugins=PLUGINS, actions=actions, **options
        )
        [self.profile] = self.engine.profiles.values()
        self.table = self.engine.table
        self.ledger = self.table.shared(ReservationLedger)
        self.rooms: dict[str, Reservation] = {}
        self.pods: dict[str, PodInfo] = {}
        self.nodes: set[str] = set()
        [self.watch] = [
            watch
            for handle in self.engine.handles
            for watch in handle.watches
            if watch.view is Reservation and "Store" in type(watch.on_add.__self__).__name__
        ]

    def room(self, name: str, node_name: str, cpu: str, policy: str, once: bool) -> None:
        body = reservation(name, cpu=cpu, allocateOnce=once, allocatePolicy=policy)
        body["status"] = {
            "phase": "Available",
            "nodeName": node_name,
            "allocatable": {"cpu": cpu, "memory": "1Gi"},
        }
        new = from_builtins(body, Reservation)
        old = self.rooms.get(name)
        self.rooms[name] = new
        if old is None:
            self.watch.on_add(new)
        else:
            self.watch.on_update(old, new)

    def drop_room(self, name: str) -> None:
        if (old := self.rooms.pop(name, None)) is not None:
            self.watch.on_delete(old)

    def pod(self, name: str, node_name: str, cpu: str, room: str) -> None:
        body = owned(name, cpu=cpu, nodeName=node_name)
        body["metadata"]["uid"] = name
        if room:
            body["metadata"]["annotations"] = {ALLOCATED: f'{{"name": "{room}", "uid": "uid-{room}"}}'}
        self.put(PodInfo.of(from_builtins(body, Pod), self.table.registry))

    def holder(self, name: str, node_name: str, cpu: str, mode: str, ready: str) -> None:
        """A running pod that is a reservation, or was."""
        body = placeholder(name, cpu=cpu, ready=ready)
        body["spec"]["nodeName"] = node_name
        body["metadata"]["labels"][labels.POD_OPERATING_MODE] = mode
        known = self.pods.get(body["metadata"]["uid"])
        seen = from_builtins(body, Pod)
        registry = self.table.registry
        self.put(PodInfo.of(seen, registry) if known is None else known.updated(seen, registry))

    def put(self, info: PodInfo) -> None:
        self.pods[info.uid] = info
        self.table.assign(info, info.node_name)

    def drop_pod(self, name: str) -> None:
        if self.pods.pop(name, None) is not None:
            self.table.unassign(name)

    def node(self, name: str) -> None:
        self.nodes.add(name)
        self.table.set_node(from_builtins(node(name, cpu="64"), Node))

    def again(self, rng: random.Random) -> "Life":
        """Return a fresh one that is told of the same objects in another order."""
        fresh = Life()
        steps: list[Any] = [lambda n=name: fresh.node(n) for name in self.nodes]
        steps += [lambda r=room: self._retold(fresh, r) for room in self.rooms.values()]
        steps += [
            lambda p=pod.pod: fresh.put(PodInfo.of(p, fresh.table.registry)) for pod in self.pods.values()
        ]
        rng.shuffle(steps)
        for step in steps:
            step()
        return fresh

    def _retold(self, fresh: "Life", room: Reservation) -> None:
        fresh.rooms[room.metadata.name] = room
        fresh.watch.on_add(room)

    def state(self) -> Json:
        """Return what counts on each node, and who uses what."""
        rows = {name: self.table.row_of(name) for name in sorted(self.nodes)}
        uids = [f"uid-{name}" for name in (*ROOMS, HOLDER)]
        records = {uid: self.ledger.find(uid) for uid in uids}
        return {
            "requested": {name: self.table.requested[:2, row].tolist() for name, row in rows.items()},
            "nonzero": {name: self.table.nonzero_requested[:, row].tolist() for name, row in rows.items()},
            "pods": {name: int(self.table.pod_count[row]) for name, row in rows.items()},
            "allocated": {uid: r.allocated for uid, r in records.items() if r is not None},
            "owners": {uid: sorted(r.owners) for uid, r in records.items() if r is not None},
            "groups": {
                uid: {row: count for row, count in r.group.rows.items() if count}
                and sorted(self.table.name_of(row) for row in r.group.rows)
                for uid, r in records.items()
                if r is not None
            },
        }


STEP = st.one_of(
    st.tuples(
        st.just("room"),
        st.sampled_from(ROOMS),
        st.sampled_from(NODES),
        st.sampled_from(["2", "4"]),
        st.sampled_from(["", "Restricted"]),
        st.booleans(),
    ),
    st.tuples(st.just("drop_room"), st.sampled_from(ROOMS)),
    st.tuples(
        st.just("pod"),
        st.sampled_from(PODS),
        st.sampled_from(NODES),
        st.sampled_from(["1", "3"]),
        st.sampled_from(["", *ROOMS, HOLDER]),
    ),
    st.tuples(
        st.just("holder"),
        st.just(HOLDER),
        st.sampled_from(NODES),
        st.sampled_from(["2", "4"]),
        st.sampled_from(["Reservation", "Reservation", "Pod"]),
        st.sampled_from(["True", "False"]),
    ),
    st.tuples(st.just("drop_pod"), st.just(f"uid-{HOLDER}")),
    st.tuples(
        st.just("pod"), st.sampled_from(PODS), st.just("n0"), st.sampled_from(["1", "3"]), st.just("r0")
    ),
    st.tuples(st.just("drop_pod"), st.sampled_from(PODS)),
    st.tuples(st.just("node"), st.sampled_from(NODES)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, min_size=15, max_size=30), st.randoms(use_true_random=False))
def test_books_are_those_of_a_fresh_start_from_the_same_objects(
    steps: list[tuple[Any, ...]], rng: random.Random
) -> None:
    life = Life()
    for name, *args in steps:
        getattr(life, name)(*args)
    for each in NODES:
        life.node(each)

    assert life.state() == life.again(rng).state()
    for room in life.rooms.values():
        record = life.ledger.find(room.metadata.uid)
        assert record is not None
        for uid in record.owners:
            place = life.table.place_of(uid)
            assert place is not None and place.row == record.row


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, min_size=12, max_size=25), st.randoms(use_true_random=False))
def test_a_trial_leaves_no_trace_whomever_it_moves(steps: list[tuple[Any, ...]], rng: random.Random) -> None:
    life = Life()
    for each in NODES:
        life.node(each)
    for name, *args in steps:
        getattr(life, name)(*args)
    before = life.state()
    there = [place.pod.uid for place in life.table.places()]
    rng.shuffle(there)

    with trial_of(life.table) as trial:
        for uid in there[: len(there) // 2 + 1]:
            place = life.table.place_of(uid)
            assert place is not None
            trial.take(place.pod)
        with trial_of(life.table) as inner:
            for uid in there[len(there) // 2 + 1 :]:
                place = life.table.place_of(uid)
                assert place is not None
                inner.take(place.pod)

    assert life.state() == before


@settings(max_examples=15, deadline=None)
@given(st.lists(STEP, min_size=12, max_size=25), st.randoms(use_true_random=False))
def test_no_node_gets_more_than_it_has_and_no_reservation_goes_to_strangers(
    steps: list[tuple[Any, ...]], rng: random.Random
) -> None:
    life = Life()
    for each in NODES:
        life.nodes.add(each)
        life.table.set_node(from_builtins(node(each, cpu="8"), Node))
    for name, *args in steps:
        if name == "room" and args[0] not in life.rooms:
            row = life.table.row_of(args[1])
            if life.table.free[0, row] >= 4000:
                life.room(*args)
    for number in range(12):
        app = rng.choice(["web", "other"])
        affinity = rng.choice([None, "{}"])
        body = owned(f"q{number}", app=app, cpu=rng.choice(["1", "2"]), affinity=affinity)
        body["metadata"]["uid"] = f"q{number}"
        info = PodInfo.of(from_builtins(body, Pod), life.table.registry)
        result = life.engine.cycle.run(life.profile, info, life.profile.class_key(info), 1, 1_000.0)
        used = life.ledger.used_by(info.uid)
        assert used is None or app == "web"
        assert isinstance(result, Placed) or used is None
        if isinstance(result, Placed) and affinity is not None:
            assert used is not None
        if isinstance(result, Placed) and rng.random() < 0.3:
            life.engine.cycle.forget(life.profile, result.pod, result.evaluation, result.node_name)
            assert life.ledger.used_by(info.uid) is None
        for each in NODES:
            row = life.table.row_of(each)
            assert life.table.requested[0, row] <= 8000
        for room in life.rooms.values():
            record = life.ledger.find(room.metadata.uid)
            assert record is not None
            assert len(record.owners) <= 1 or not record.terms.is_once
            if room.spec.allocate_policy == "Restricted":
                assert record.allocated.get("cpu", 0) <= record.terms.allocatable["cpu"]


def run(life: Life, steps: list[tuple[Any, ...]], seed: int) -> list[str]:
    """Return where owners and strangers go that come between the steps, and which reservation each uses."""
    rng, history = random.Random(seed), []
    for each in NODES:
        life.nodes.add(each)
        life.table.set_node(from_builtins(node(each, cpu="10"), Node))
    placed: list[Placed] = []
    for step, (name, *args) in enumerate(steps):
        if name != "node":
            getattr(life, name)(*args)
        for number in range(2):
            app, affinity = rng.choice(["web", "web", "other"]), rng.choice([None, None, "{}"])
            body = owned(f"q{step}-{number}", app=app, cpu=rng.choice(["1", "2"]), affinity=affinity)
            body["metadata"]["uid"] = f"q{step}-{number}"
            if app == "web" and rng.random() < 0.3:
                near = {
                    "topologyKey": "kubernetes.io/hostname",
                    "labelSelector": {"matchLabels": {"app": "web"}},
                }
                term = {"requiredDuringSchedulingIgnoredDuringExecution": [near]}
                body["spec"]["affinity"] = {"podAntiAffinity": term}
            info = PodInfo.of(from_builtins(body, Pod), life.table.registry)
            result = life.engine.cycle.run(life.profile, info, life.profile.class_key(info), 1, 1_000.0)
            if isinstance(result, Placed):
                placed.append(result)
                history.append(f"{info.uid} {result.node_name} {life.ledger.used_by(info.uid)}")
            else:
                history.append(f"{info.uid} {result.status.message}")
        if placed and rng.random() < 0.4:
            gone = placed.pop(rng.randrange(len(placed)))
            life.engine.cycle.forget(life.profile, gone.pod, gone.evaluation, gone.node_name)
    return history


@settings(max_examples=20, deadline=None)
@given(st.lists(STEP, min_size=5, max_size=12), st.integers(0, 1000))
def test_shared_evaluations_place_owners_as_fresh_ones_do(steps: list[tuple[Any, ...]], seed: int) -> None:
    assert run(Life(), steps, seed) == run(Life(classes_max=0), steps, seed)
