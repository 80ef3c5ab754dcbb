"""Do reservations find a node, users and their end; and do pods that want one, or name one, find it?"""

from collections.abc import Iterator, Sequence

import msgspec

from koordinator.api import labels
from koordinator.api.core import Node, Pod
from koordinator.api.errors import KoordinatorError
from koordinator.api.meta import find_condition, named
from koordinator.api.pod_labels import is_terminated
from koordinator.api.reservation import RESERVATION_ALLOCATED, Reservation, ReservationAllocated
from koordinator.doctor.finding import Finding, edit, some_of
from koordinator.doctor.snapshot import ClusterSnapshot
from koordinator.scheduler.plugins.reservation import lifecycle, objects
from koordinator.scheduler.plugins.reservation.matching import RequiredReservations, ReservationOwners

WAIT_S = 600.0
"""Owners may come minutes after their room, and room may become free."""
LATE_S = 60.0
"""The scheduler looks at each reservation every 15 s."""
POD_WAIT_S = 60.0
"""A pod that waits for less may be about to be bound."""


def check(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Reservations one by one, then the pods."""
    pods = [pod for pod in snapshot.of(Pod) if not is_terminated(pod)]
    users = _Users(pods)
    for reservation in snapshot.of(Reservation):
        if (wrong := _wrong(reservation)) is not None:
            yield wrong
        elif objects.is_unassigned(reservation):
            yield from _waiting(snapshot, reservation)
        elif objects.is_available(reservation):
            yield from _late(snapshot, reservation)
            yield from _unused(snapshot, reservation, users)
    yield from _leftover(snapshot, pods)
    yield from _wanting(snapshot, pods)


def _show(reservation: Reservation) -> str:
    return f"kubectl describe reservation {reservation.metadata.name}"


# Reservations


def _wrong(reservation: Reservation) -> Finding | None:
    """Return what nobody can act on."""
    if objects.is_terminated(reservation):
        return None
    why = "the scheduler neither places it nor gives it to anybody"
    if reason := objects.invalid_reason(reservation):
        return Finding.error(reservation, reason, why=why, do=(edit(reservation),))
    if error := ReservationOwners.of(reservation.spec.owners).error:
        return Finding.error(
            reservation,
            f"spec.owners cannot be read: {error}",
            why="it holds room that nobody may use",
            do=(edit(reservation),),
        )
    try:
        objects.requests(reservation)
        lifecycle.revisit_s(reservation, 0.0)
    except KoordinatorError as error:
        return Finding.error(
            reservation,
            str(error),
            why="nobody can tell what it asks for, or when it ends",
            do=(edit(reservation),),
        )
    return None


def _waiting(snapshot: ClusterSnapshot, reservation: Reservation) -> Iterator[Finding]:
    if snapshot.age_s(reservation) <= WAIT_S:
        return
    said = find_condition(reservation.status.conditions, objects.SCHEDULED)
    is_over = bool(lifecycle.expiry_reason(reservation, True, snapshot.now_s))
    yield Finding.warning(
        reservation,
        f"it has had no node for {snapshot.age_s(reservation) / 60:.0f} minutes",
        why=(said.message if said is not None and said.message else "no scheduler has said why")
        + ("; its time is over, and without a node it never ends" if is_over else ""),
        do=(
            f"koordinator explain reservation {reservation.metadata.name}",
            f"kubectl delete reservation {reservation.metadata.name}",
        ),
    )


def _late(snapshot: ClusterSnapshot, reservation: Reservation) -> Iterator[Finding]:
    """Nobody ends it: the node is gone, or its time."""
    has_node = not snapshot.knows(Node) or snapshot.find(Node, reservation.status.node_name) is not None
    if reason := lifecycle.expiry_reason(reservation, has_node, snapshot.now_s - LATE_S):
        yield Finding.error(
            reservation,
            f"it should have ended: {reason}",
            why="no scheduler of ours leads, it may not write, or its plugin Reservation is switched off",
            do=("koordinator doctor --check leases --check access", _show(reservation)),
        )


class _Users:
    """Pods that reservations are for. Reservations for the same owners share the search."""

    def __init__(self, pods: Sequence[Pod]) -> None:
        self._pods = pods
        self._found: dict[bytes, list[Pod]] = {}

    def of(self, reservation: Reservation) -> list[Pod]:
        owners = reservation.spec.owners
        key = msgspec.json.encode(owners)
        if key not in self._found:
            matching = ReservationOwners.of(owners)
            self._found[key] = [pod for pod in self._pods if matching.match(pod)]
        return self._found[key]


def _unused(snapshot: ClusterSnapshot, reservation: Reservation, users: _Users) -> Iterator[Finding]:
    if reservation.status.current_owners or snapshot.age_s(reservation) <= WAIT_S:
        return
    found = users.of(reservation)
    waiting = [pod for pod in found if not pod.spec.node_name]
    name = reservation.metadata.name
    if waiting:
        pod = waiting[0]
        yield Finding.warning(
            reservation,
            f"nobody uses it, and pods that it is for wait: {some_of([each.key for each in waiting])}",
            why="they ask for more than it holds, for something else that its node lacks, or for another reservation",
            do=(
                f"koordinator explain pod {pod.metadata.name} -n {pod.metadata.namespace}",
                _show(reservation),
            ),
        )
    elif found:
        yield Finding.notice(
            reservation,
            f"nobody uses it; pods that it is for run without it: {some_of([each.key for each in found])}",
            why=f"they had a node before it had one, or none of its room suited them: it holds room on "
            f"{reservation.status.node_name} for nobody",
            do=(f"kubectl delete reservation {name}", _show(reservation)),
        )
    else:
        yield Finding.notice(
            reservation,
            "nobody uses it, and it is for no pod that exists",
            why=f"it holds room on {reservation.status.node_name}; spec.owners may say something else than was meant",
            do=(edit(reservation), f"kubectl delete reservation {name}"),
        )


# Pods


def _leftover(snapshot: ClusterSnapshot, pods: Sequence[Pod]) -> Iterator[Finding]:
    """Yield pods of which the annotation `reservation-allocated` is no longer true.

    Those of a reservation that was used up or is deleted are as they should be.
    """
    named = [(pod, _named(pod)) for pod in pods if labels.RESERVATION_ALLOCATED in pod.metadata.annotations]
    unreadable = [pod.key for pod, allocated in named if allocated is None]
    if unreadable:
        yield Finding.warning(
            ("Pod", unreadable),
            f"annotation {labels.RESERVATION_ALLOCATED} cannot be read",
            why="their reservation counts them as strangers: its room is held beside theirs",
            do=(f"kubectl annotate pod NAME {labels.RESERVATION_ALLOCATED}-",),
        )
    by_uid = {each.metadata.uid: each for each in snapshot.of(Reservation)}
    waiting: list[str] = []
    ended: list[str] = []
    elsewhere: list[str] = []
    for pod, allocated in named:
        used = by_uid.get(allocated.uid) if allocated is not None else None
        if not pod.spec.node_name and snapshot.age_s(pod) > POD_WAIT_S:
            waiting.append(pod.key)
        elif used is not None and pod.spec.node_name and used.status.phase == objects.FAILED:
            ended.append(pod.key)
        elif used is not None and pod.spec.node_name and pod.spec.node_name != used.status.node_name:
            elsewhere.append(pod.key)
    remedy = f"kubectl annotate pod NAME {labels.RESERVATION_ALLOCATED}-"
    if waiting:
        yield Finding.warning(
            ("Pod", waiting),
            "they name the reservation that they use, and have no node",
            why="an attempt to bind them failed, and nobody took the annotation back",
            do=(remedy, "koordinator explain pods --pending -A"),
        )
    if ended:
        yield Finding.notice(
            ("Pod", ended),
            "they use a reservation that has failed",
            why="it expired, or failed while they were bound: their room is plain usage of the node now",
            do=(remedy, "kubectl get reservations"),
        )
    if elsewhere:
        yield Finding.warning(
            ("Pod", elsewhere),
            "they name a reservation on another node than theirs",
            why="it counts them as no owners: its room stays held",
            do=(remedy, "kubectl get reservations"),
        )


def _named(pod: Pod) -> ReservationAllocated | None:
    try:
        return RESERVATION_ALLOCATED.read(pod.metadata.annotations, pod.key)
    except KoordinatorError:
        return None


def _wanting(snapshot: ClusterSnapshot, pods: Sequence[Pod]) -> Iterator[Finding]:
    """Pods that require a reservation that is not there."""
    for pod in pods:
        if pod.spec.node_name or labels.RESERVATION_AFFINITY not in pod.metadata.annotations:
            continue
        try:
            affinity = RequiredReservations.of(pod).affinity
        except KoordinatorError as error:
            yield Finding.error(
                pod,
                f"annotation {labels.RESERVATION_AFFINITY} cannot be read: {error}",
                why="no scheduler places the pod",
                do=(f"correct the template of {named(pod)}",),
            )
            continue
        if affinity is None or not affinity.name:
            continue
        wanted = snapshot.find(Reservation, affinity.name)
        if wanted is None or objects.is_terminated(wanted):
            state = "does not exist" if wanted is None else f"has ended ({wanted.status.phase})"
            yield Finding.error(
                pod,
                f"it requires Reservation {affinity.name}, which {state}",
                why="the pod waits for ever",
                do=("kubectl get reservations", f"correct the template of {named(pod)}"),
            )
