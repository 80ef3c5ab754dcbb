"""Find out once which plugins of a profile have which capabilities, and run them by the rules.
Source: behaviour/scheduler C1 and C2."""

# The capabilities are abstract on purpose; here they only tell instances apart.
# mypy: disable-error-code="type-abstract"

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from koordinator.api.core import Pod
from koordinator.api.feature_gates import FeatureGates
from koordinator.api.reservation import Reservation
from koordinator.scheduler.plugin.capabilities import (
    AttemptPlugin,
    FilterTransformer,
    FindOneNodePlugin,
    JobRefusal,
    NodeTransformer,
    PostFilterTransformer,
    PreBindExtension,
    PreferNodesPlugin,
    PreFilterTransformer,
    ResizePodPlugin,
    SharedFailure,
)
from koordinator.scheduler.plugin.framework import Diagnosis, Plugin
from koordinator.scheduler.plugin.reservation_capabilities import (
    Nomination,
    ReservationFilterPlugin,
    ReservationNominator,
    ReservationPreBindPlugin,
    ReservationScorePlugin,
    ReservePodProvider,
)
from koordinator.scheduler.plugin.status import SUCCESS, PodPatch, Status
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import Trial

log = logging.getLogger(__name__)

C = TypeVar("C")
P = TypeVar("P", bound=Plugin[Any])

Points = Mapping[str, Sequence[tuple[Plugin[Any], int]]]
States = Mapping[str, Any]
"""Plugin → the state that it prepared for the pod."""


class TransformedPod(msgspec.Struct, frozen=True):
    """The pod as transformers show it, or why the attempt ends."""

    pod: PodInfo
    status: Status = SUCCESS


class ShownNodes(msgspec.Struct, frozen=True):
    """Plugins that show a pod nodes otherwise than they are, with their states for it."""

    parts: list[tuple[NodeTransformer[Any], Any]]

    def show(self, what_if: Trial) -> None:
        """Show all rows, until the trial ends."""
        for plugin, state in self.parts:
            for row in sorted(plugin.shown_rows(state)):
                plugin.show(state, row, what_if)

    def show_row(self, row: int, what_if: Trial) -> None:
        """Show one row, until the trial ends."""
        for plugin, state in self.parts:
            plugin.show(state, row, what_if)


class Extensions:
    """The capabilities of a profile.

    `transforms`, `shows`, `steers` and `books` tell at a glance whether evaluations, the nodes that they see, the
    choice of nodes and the booking of pods have anything to ask; mostly they have not. `points` are the plugins per
    extension point, `plugins` all of them in order of creation.
    """

    def __init__(self, points: Points, plugins: Sequence[Plugin[Any]], gates: FeatureGates) -> None:
        def at(point: str, kind: type[C]) -> tuple[C, ...]:
            return tuple(plugin for plugin, _ in points.get(point, ()) if isinstance(plugin, kind))

        def among(kind: type[C]) -> tuple[C, ...]:
            return tuple(plugin for plugin in plugins if isinstance(plugin, kind))

        pre_filters = at("pre_filter", PreFilterTransformer)
        self.before_pre_filters = _with_own(pre_filters, "before_pre_filter")
        self.after_pre_filters = _with_own(pre_filters, "after_pre_filter")
        self.node_transformers = at("pre_filter", NodeTransformer)
        self.attempts = at("pre_filter", AttemptPlugin)
        self.before_filters = at("filter", FilterTransformer)
        self.after_post_filters = at("post_filter", PostFilterTransformer)
        self.find_one_nodes = among(FindOneNodePlugin)
        self.prefer_nodes = _only(among(PreferNodesPlugin))
        self.resizers = among(ResizePodPlugin) if gates.is_on("ResizePod") else ()
        self.pre_bind_extensions = at("pre_bind", PreBindExtension)
        self.nominator = _last(among(ReservationNominator))
        self.reserve_pods = _last(among(ReservePodProvider))
        self.reservation_filters = among(ReservationFilterPlugin)
        self.reservation_scorers = among(ReservationScorePlugin)
        self.reservation_pre_binds = at("pre_bind", ReservationPreBindPlugin)
        self.transforms = bool(self.before_pre_filters or self.before_filters)
        self.shows = self.transforms or bool(self.node_transformers)
        self.steers = bool(self.after_pre_filters or self.find_one_nodes or self.prefer_nodes)
        self.batches = gates.is_on("EnableInlineBatchSchedule") and bool(self.find_one_nodes)
        self.books = bool(self.resizers or self.nominator)

    def stateful(self) -> tuple[Plugin[Any], ...]:
        """Plugins that are asked about pods through a capability, wherever else they stand."""
        groups: tuple[Sequence[Plugin[Any] | None], ...] = (
            self.before_pre_filters,
            self.after_pre_filters,
            self.node_transformers,
            self.before_filters,
            self.find_one_nodes,
            (self.prefer_nodes, self.nominator),
            self.resizers,
            self.reservation_filters,
            self.reservation_scorers,
            self.reservation_pre_binds,
        )
        return tuple(plugin for group in groups for plugin in group if plugin is not None)

    # Transformers

    def see_before_pre_filter(self, pod: PodInfo, what_if: Trial) -> TransformedPod:
        """Return the pod after all transformers before PreFilter, each on what the one before it made."""
        return _seen(
            self.before_pre_filters, pod, lambda plugin, seen: plugin.before_pre_filter(seen, what_if)
        )

    def see_before_filter(self, states: States, pod: PodInfo, what_if: Trial) -> TransformedPod:
        """Return the pod after all transformers before Filter."""
        return _seen(
            self.before_filters,
            pod,
            lambda plugin, seen: plugin.before_filter(states[plugin.name], seen, what_if),
        )

    def shown_nodes(self, pod: PodInfo) -> ShownNodes | None:
        """Return the nodes that the pod sees otherwise than they are; None when there are none."""
        shown = [
            (plugin, state)
            for plugin in self.node_transformers
            if plugin.shows_nodes(state := plugin.prepare(pod))
        ]
        return ShownNodes(shown) if shown else None

    def notify_after_post_filter(self, pod: PodInfo, diagnosis: Diagnosis, status: Status) -> None:
        """Let the transformers after PostFilter know."""
        for plugin in self.after_post_filters:
            plugin.after_post_filter(pod, diagnosis, status)

    # Attempts

    def begin_attempt(self, pod: PodInfo) -> Status | JobRefusal | SharedFailure:
        """Success, or the first objection to trying the pod now; its author may be one whom the plugin asked."""
        for plugin in self.attempts:
            status = plugin.begin_attempt(pod)
            if not isinstance(status, Status):
                return status
            if not status.is_success:
                return status if status.plugin else status.by(plugin.name)
        return SUCCESS

    # Booking

    def nominate(self, states: States, pod: PodInfo, row: int) -> Nomination:
        """Return the reservation for the chosen node; a plain placement without a nominator."""
        if self.nominator is None:
            return Nomination()
        found = self.nominator.nominate(states[self.nominator.name], pod, row)
        if found.status.is_success or found.status.is_skip:
            return found
        return Nomination(found.status.by(self.nominator.name))

    def resize(self, states: States, pod: PodInfo, node_name: str) -> TransformedPod:
        """Return the pod as it shall be counted on its node."""
        for plugin in self.resizers:
            found = plugin.resize(states[plugin.name], pod, node_name)
            if isinstance(found, Status):
                return TransformedPod(pod, found.by(plugin.name))
            pod = found
        return TransformedPod(pod)

    def forget_nominated(self, uid: str) -> None:
        """Note that the pod's nomination of a reservation is over."""
        if self.nominator is not None:
            self.nominator.forget_nominated(uid)

    # Reservations

    def reservation_for(self, uid: str) -> Reservation | None:
        """Return the Reservation that a pod stands for; None for true pods."""
        return self.reserve_pods.reservation_for(uid) if self.reserve_pods is not None else None

    def reserve_pod(self, uid: str) -> Pod | None:
        """Return the state of a pod that only the scheduler knows."""
        return self.reserve_pods.reserve_pod(uid) if self.reserve_pods is not None else None

    def filter_reservation(
        self, states: States, pod: PodInfo, reservation: Reservation | None, row: int
    ) -> Status:
        """Success, or the first refusal of a reservation; None: of the row, where the pod would do without any."""
        for plugin in self.reservation_filters:
            state = states[plugin.name]
            if reservation is None:
                status = plugin.filter_without(state, pod, row)
            else:
                status = plugin.filter_reservation(state, pod, reservation, row)
            if not status.is_success:
                return status.by(plugin.name)
        return SUCCESS

    def filter_pre_allocation(self, states: States, pod: PodInfo, row: int) -> Status:
        """Success, or the first refusal of the running pods that a reserve pod would take over."""
        for plugin in self.reservation_filters:
            status = plugin.filter_pre_allocation(states[plugin.name], pod, row)
            if not status.is_success:
                return status.by(plugin.name)
        return SUCCESS

    def score_reservations(
        self, states: States, pod: PodInfo, reservations: Sequence[Reservation], row: int
    ) -> dict[str, int]:
        """uid → the sum of all plugins' scores, each of weight 1."""
        totals = {reservation.metadata.uid: 0 for reservation in reservations}
        for plugin in self.reservation_scorers:
            raw = {
                each.metadata.uid: plugin.score_reservation(states[plugin.name], pod, each, row)
                for each in reservations
            }
            for uid, score in plugin.normalize_reservations(raw).items():
                totals[uid] += score
        return totals

    async def pre_bind_reservation(self, states: States, reservation: Reservation, node_name: str) -> Status:
        """Collect what plugins write on a Reservation that got a node, and store it with one call."""
        patch = PodPatch()
        for plugin in self.reservation_pre_binds:
            status = await plugin.pre_bind_reservation(states[plugin.name], reservation, node_name, patch)
            if not (status.is_success or status.is_skip):
                return status.by(plugin.name)
        for extension in self.pre_bind_extensions:
            status = await extension.apply_reservation_patch(reservation, patch)
            if not status.is_skip:
                return status.by(extension.name)
        return SUCCESS

    async def apply_patch(self, pod: PodInfo, patch: PodPatch) -> Status:
        """Store what PreBind plugins collected: the first extension that does not skip does it."""
        for extension in self.pre_bind_extensions:
            status = await extension.apply_patch(pod, patch)
            if not status.is_skip:
                return status.by(extension.name)
        return SUCCESS


def _with_own(
    plugins: tuple[PreFilterTransformer[Any], ...], method: str
) -> tuple[PreFilterTransformer[Any], ...]:
    """Return those that do something in a method."""
    bare = getattr(PreFilterTransformer, method)
    return tuple(each for each in plugins if getattr(type(each), method) is not bare)


def _only(found: tuple[P, ...]) -> P | None:
    """Return the first: the others are ignored, and somebody should know."""
    for other in found[1:]:
        log.warning(
            "plugin ignored: another plugin already chooses nodes",
            extra={"plugin": other.name, "used": found[0].name},
        )
    return found[0] if found else None


def _last(found: tuple[C, ...]) -> C | None:
    return found[-1] if found else None


def _seen(
    plugins: Iterable[P], pod: PodInfo, transform: Callable[[P, PodInfo], PodInfo | Status]
) -> TransformedPod:
    """Return the pod after all transformers, each on what the one before it made; the first failure ends it."""
    for plugin in plugins:
        found = transform(plugin, pod)
        if isinstance(found, Status):
            return TransformedPod(pod, found.by(plugin.name))
        pod = found
    return TransformedPod(pod)
