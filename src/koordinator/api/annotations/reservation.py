"""The annotations by which pods and reservations find each other."""

from collections.abc import Mapping

from koordinator.api import labels
from koordinator.api.affinity import NodeSelectorTerm, Toleration
from koordinator.api.annotations.codec import Annotation, Empty, Payload
from koordinator.api.meta import ObjectReference
from koordinator.api.quantity import ResourceList
from koordinator.api.reservation import ReservationOwner


class ReservationSelector(Payload, frozen=True, kw_only=True):
    """One of the terms must match a reservation's node labels and own labels."""

    reservation_selector_terms: list[NodeSelectorTerm] = []


class ReservationAffinity(Payload, frozen=True, kw_only=True):
    """The reservations that a pod requires; `name` alone decides where it is set."""

    name: str = ""
    required_during_scheduling_ignored_during_execution: ReservationSelector | None = None
    reservation_selector: dict[str, str] = {}
    tolerations: list[Toleration] = []


class ReservationAllocated(Payload, frozen=True, kw_only=True):
    """The reservation that a pod consumes."""

    name: str = ""
    uid: str = ""


class RestrictedOptions(Payload, frozen=True, kw_only=True):
    """The resources that a Restricted reservation restricts; none named means all it reserves."""

    resources: list[str] = []


class ExactMatchReservation(Payload, frozen=True, kw_only=True):
    """Resources of which a pod must request exactly what the reservation offers."""

    resource_names: list[str] = []


class ResizeAllocatable(Payload, frozen=True, kw_only=True):
    """The new allocatable of a reservation."""

    resources: ResourceList = {}


RESERVATION_AFFINITY = Annotation(labels.RESERVATION_AFFINITY, ReservationAffinity, empty=Empty.NOTHING_SET)
RESERVATION_ALLOCATED = Annotation(labels.RESERVATION_ALLOCATED, ReservationAllocated)
RESTRICTED_OPTIONS = Annotation(labels.RESERVATION_RESTRICTED_OPTIONS, RestrictedOptions, empty=Empty.ABSENT)
EXACT_MATCH_RESERVATION = Annotation(
    labels.EXACT_MATCH_RESERVATION, ExactMatchReservation, empty=Empty.ABSENT
)
OWNERS = Annotation(labels.RESERVATION_OWNERS, list[ReservationOwner], empty=Empty.ABSENT)
CURRENT_OWNER = Annotation(labels.RESERVATION_CURRENT_OWNER, ObjectReference, empty=Empty.ABSENT)
RESIZE_ALLOCATABLE = Annotation(labels.RESERVATION_RESIZE_ALLOCATABLE, ResizeAllocatable)


def without_allocated(annotations: Mapping[str, str], uid: str, obj: str = "") -> dict[str, str] | None:
    """Return the annotations without `reservation-allocated` if that names the reservation `uid`, else None.

    Raises: ProtocolError when it is malformed.
    """
    allocated = RESERVATION_ALLOCATED.read(annotations, obj)
    if allocated is None or allocated.uid != uid:
        return None
    return {key: text for key, text in annotations.items() if key != labels.RESERVATION_ALLOCATED}
