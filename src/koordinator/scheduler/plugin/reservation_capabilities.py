"""Define what plugins may do about Reservations. The plugin that keeps them calls these through
`extensions.Extensions`. Source: behaviour/scheduler part C."""

import abc
from collections.abc import Callable, Mapping, Sequence

import msgspec

from koordinator.api.core import Pod
from koordinator.api.reservation import Reservation
from koordinator.scheduler.plugin.framework import Handle, Plugin, S
from koordinator.scheduler.plugin.status import SUCCESS, PodPatch, Status
from koordinator.scheduler.table.pod_info import PodInfo


class Nomination(msgspec.Struct, frozen=True):
    """The reservation whose room a pod takes on a node; none is a plain placement. A refusal is final."""

    status: Status = SUCCESS
    reservation: Reservation | None = None


class ReservationNominator(Plugin[S]):
    """Chooses the reservation that a pod uses on its node. The last of a profile counts."""

    @abc.abstractmethod
    def nominate(self, state: S, pod: PodInfo, row: int) -> Nomination:
        """Asked for the chosen node, before the pod is counted there; remembers its answer."""

    @abc.abstractmethod
    def nominated(self, uid: str, node_name: str) -> Reservation | None:
        """Return the remembered reservation of a pod on a node."""

    @abc.abstractmethod
    def pre_allocated(self, uid: str) -> Sequence[PodInfo]:
        """Return the running pods that a reserve pod is to take over, or may: then plugins are being asked."""

    @abc.abstractmethod
    def forget_nominated(self, uid: str) -> None:
        """Note that the pod is reserved, or its attempt failed without a nominated node."""


def nominated_reservation(handle: Handle, uid: str, node_name: str) -> Reservation | None:
    """Return the Reservation that a pod is to use on a node, as the profile's nominator remembers it."""
    found = (
        each.nominated(uid, node_name)
        for each in handle.companions(ReservationNominator)  # type: ignore[type-abstract]
    )
    return next((each for each in found if each is not None), None)


def pre_allocated_pods(handle: Handle, uid: str) -> Sequence[PodInfo]:
    """Return the running pods that a reserve pod takes over, as the profile's nominator remembers it."""
    found = (
        each.pre_allocated(uid)
        for each in handle.companions(ReservationNominator)  # type: ignore[type-abstract]
    )
    return next((each for each in found if each), ())


class ReservePodProvider(Plugin[S]):
    """Brings pods that stand for Reservations (`Actions.enter_pod`). They are placed as pods are; what
    PreBind would write on them is written on the Reservation, and the plugin tells users how they fare
    (`Handle.on_failure`, its own Bind). The last of a profile counts."""

    @abc.abstractmethod
    def reserve_pod(self, uid: str) -> Pod | None:
        """Return the reserve pod as its Reservation is now; None when it is gone or no such pod."""

    @abc.abstractmethod
    def reservation_for(self, uid: str) -> Reservation | None:
        """Return the Reservation that a reserve pod stands for."""


def reservation_for(handle: Handle, uid: str) -> Reservation | None:
    """Return the Reservation that a pod stands for, as the profile's provider of reserve pods knows it."""
    found = (
        each.reservation_for(uid)
        for each in handle.companions(ReservePodProvider)  # type: ignore[type-abstract]
    )
    return next((each for each in found if each is not None), None)


class ReservePods:
    """The scheduler's reserve pods as they come, change and go, for those who follow pods; one per scheduler
    (`Handle.shared`). Followers are told before the queue is."""

    def __init__(self) -> None:
        self._followers: list[tuple[Callable[[Pod], None], Callable[[Pod], None]]] = []

    @classmethod
    def of(cls, handle: Handle) -> "ReservePods":
        return handle.shared(cls, lambda _: cls())

    def follow(self, changed: Callable[[Pod], None], gone: Callable[[Pod], None]) -> None:
        """Call `changed` with each reserve pod as it is, `gone` when it neither waits nor holds room any more."""
        self._followers.append((changed, gone))

    def set(self, pod: Pod) -> None:
        for changed, _ in self._followers:
            changed(pod)

    def remove(self, pod: Pod) -> None:
        for _, gone in self._followers:
            gone(pod)


class ReservationChoice(msgspec.Struct, frozen=True):
    """A pod that would use this reservation on a row, and no other there; None: that would leave all of them alone."""

    reservation: Reservation | None


class ReservationFilterPlugin(Plugin[S]):
    """Refuses reservations on a node that passed the filters."""

    @abc.abstractmethod
    def filter_reservation(self, state: S, pod: PodInfo, reservation: Reservation, row: int) -> Status: ...

    def filter_without(self, state: S, pod: PodInfo, row: int) -> Status:
        """Refuse a pod that will do without the reservations which it may use on a row: the filters saw the row without
        them, but what they hold stays theirs."""
        return SUCCESS

    def filter_pre_allocation(self, state: S, pod: PodInfo, row: int) -> Status:
        """Refuse a reserve pod the running pods of a row that it would take over (`pre_allocated_pods`)."""
        return SUCCESS


class ReservationScorePlugin(Plugin[S]):
    """Prefers reservations on one node: 0 to 100 after normalisation."""

    @abc.abstractmethod
    def score_reservation(self, state: S, pod: PodInfo, reservation: Reservation, row: int) -> int: ...

    def normalize_reservations(self, scores: Mapping[str, int]) -> Mapping[str, int]:
        """Final scores from the raw ones, both by uid of the reservation."""
        return scores


class ReservationPreBindPlugin(Plugin[S]):
    """Writes on a Reservation that was placed as if it were a pod; where the plugin is enabled at preBind."""

    @abc.abstractmethod
    async def pre_bind_reservation(
        self, state: S, reservation: Reservation, node_name: str, patch: PodPatch
    ) -> Status: ...
