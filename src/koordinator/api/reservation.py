"""Typed view of Reservation: room on a node kept for pods to come. Source: behaviour/crds 3.

By their annotations pods and reservations find each other.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from koordinator.api import labels
from koordinator.api.affinity import LabelSelector, NodeSelectorTerm, Taint, Toleration
from koordinator.api.annotations.codec import Annotation, Empty, Payload
from koordinator.api.meta import Object, ObjectReference, Resource, ViewPart
from koordinator.api.quantity import ResourceList
from koordinator.api.schema import ATOMIC, DATE_TIME, REQUIRED, always, default, limits, one_of


class ReservationController(ViewPart, frozen=True, kw_only=True):
    """The controller that owns a pod, in any namespace or in the one named."""

    api_version: Annotated[str, REQUIRED, "API version of the controller."] = always("")
    kind: Annotated[str, REQUIRED, "Kind of the controller."] = always("")
    name: Annotated[str, REQUIRED, "Name of the controller."] = always("")
    uid: Annotated[str, REQUIRED, "UID of the controller."] = always("")
    namespace: Annotated[str, "Namespace of the controller."] = ""
    controller: Annotated[bool | None, "Whether it is the managing owner."] = None
    block_owner_deletion: Annotated[bool | None, "Whether its deletion waits for the pod."] = None


class ReservationOwner(ViewPart, frozen=True, kw_only=True):
    """Pods that may use the room: all members that are set must fit the pod."""

    object: Annotated[ObjectReference | None, ATOMIC, "The pod itself."] = None
    controller: Annotated[ReservationController | None, ATOMIC, "The controller that owns the pod."] = None
    label_selector: Annotated[LabelSelector | None, ATOMIC, "Labels of the pod."] = None


class PreAllocationPolicy(ViewPart, frozen=True, kw_only=True):
    """The pods that may be placed before the room is free."""

    mode: Annotated[
        str, one_of("Default", "Cluster"), default("Default"), "Default: by owners; Cluster: by labels."
    ] = "Default"
    enable_multiple: Annotated[bool, default(False), "Whether more than one pod may be."] = False


class ReservationSpec(ViewPart, frozen=True, kw_only=True):
    """The room that is kept, for whom and for how long."""

    template: Annotated[
        dict[str, Any],
        REQUIRED,
        "Pod template with the requests and placement rules; its spec.nodeName names the node.",
    ] = always({})
    owners: Annotated[
        list[Annotated[ReservationOwner, limits(min_properties=1)]],
        REQUIRED,
        limits(min_items=1),
        "Pods that may use the room; one must fit.",
    ] = always([])
    ttl: Annotated[
        str | None, default("24h"), "Lifetime, such as 24h; 0 never ends. Exclusive with expires."
    ] = None
    expires: Annotated[str | None, DATE_TIME, "When it ends; looked at before the ttl."] = None
    pre_allocation: Annotated[
        bool, "Whether it may be placed on a node that is still full, and wait there."
    ] = False
    pre_allocation_policy: Annotated[
        PreAllocationPolicy | None, "Which pods may be placed before the room is free."
    ] = None
    allocate_once: Annotated[
        bool | None, default(True), "Whether the first owner takes it all; true when absent."
    ] = None
    allocate_policy: Annotated[
        str,
        one_of("Aligned", "Restricted"),
        "Whether owners may use free room of the node on top (Aligned, when absent) or not (Restricted).",
    ] = ""
    unschedulable: Annotated[bool, "Whether new pods are kept out."] = False
    taints: Annotated[list[Taint], "Pods must tolerate these; NoExecute evicts nobody."] = []


class ReservationCondition(ViewPart, frozen=True, kw_only=True):
    """One thing that is known of a Reservation."""

    type: Annotated[str, "Scheduled or Ready."] = ""
    status: Annotated[str, "True, False or Unknown."] = ""
    reason: Annotated[str, "Scheduled, Unschedulable, Available, Succeeded or Expired."] = ""
    message: Annotated[str, "The same for people."] = ""
    last_probe_time: Annotated[str | None, DATE_TIME, "When it was last looked at."] = None
    last_transition_time: Annotated[str | None, DATE_TIME, "When the status last changed."] = None


class ReservationStatus(ViewPart, frozen=True, kw_only=True):
    """The place of the room, and its users."""

    phase: Annotated[
        str, default("Pending"), "Pending (when absent), Available, Waiting, Succeeded or Failed."
    ] = ""
    conditions: Annotated[list[ReservationCondition], "What is known of the Reservation."] = []
    current_owners: Annotated[list[Annotated[ObjectReference, ATOMIC]], "Pods that use the room now."] = []
    node_name: Annotated[str, "The node on which the room is."] = ""
    allocatable: Annotated[ResourceList, "What owners can use in all."] = {}
    allocated: Annotated[ResourceList, "What owners use now."] = {}


class Reservation(Object, frozen=True, kw_only=True):
    """Room on a node that is kept for pods to come; pods in any namespace may be its owners."""

    resource: ClassVar[Resource] = Resource(
        group="scheduling.koordinator.sh",
        version="v1alpha1",
        kind="Reservation",
        plural="reservations",
        namespaced=False,
        subresources=("status",),
    )

    spec: Annotated[ReservationSpec, "The room that is kept, for whom and for how long."] = ReservationSpec()
    status: ReservationStatus = ReservationStatus()


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
