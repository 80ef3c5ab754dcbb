"""List what this version knows on the wire but does not run yet; users who create such objects get a warning.

The one table of it. Admission warns by it, and `koordinator doctor` finds what is there all the same; when a component
for something lands, its line goes.
"""

from collections.abc import Collection, Iterator, Mapping

from koordinator.api import labels, resources
from koordinator.api.analysis import Recommendation
from koordinator.api.core import Pod
from koordinator.api.meta import Object
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.reservation import Reservation

KINDS: Mapping[type[Object], str] = {
    Reservation: "nothing is reserved, and its status stays empty (the scheduler's plugin Reservation)",
    PodMigrationJob: "no pod is migrated, and its status stays empty (koord-descheduler)",
    Recommendation: "nothing is recommended, and its status stays empty",
}
"""Kinds without a component, and what that means for an object of theirs."""

DEVICES = frozenset(
    (
        resources.GPU,
        resources.GPU_SHARED,
        resources.GPU_CORE,
        resources.GPU_MEMORY,
        resources.GPU_MEMORY_RATIO,
        resources.RDMA,
        resources.FPGA,
    )
)
"""Amounts that nodes count, but of which no pod gets a device."""
NO_DEVICE = (
    "nodes are filled up to their sums, but the pod is given no device (the scheduler's plugin DeviceShare)"
)
NO_RESERVATION = "the pod stays pending (the scheduler's plugin Reservation)"


def kind_warning(view: type[Object]) -> str:
    """Return the warning for users who create an object of one of `KINDS`."""
    return f"{view.resource.kind}: this version of Koordinator does not act on it yet: {KINDS[view]}"


def devices_of(pod: Pod) -> Collection[str]:
    """Return which of `DEVICES` a pod requests."""
    return {
        name
        for container in (*pod.spec.containers, *pod.spec.init_containers)
        for name in (*container.resources.requests, *container.resources.limits)
        if name in DEVICES
    }


def pod_warnings(pod: Pod) -> Iterator[str]:
    """Yield the warnings for users who create the pod."""
    if found := devices_of(pod):
        names = ", ".join(sorted(found))
        yield f"{names}: this version of Koordinator does not share devices yet: {NO_DEVICE}"
    if labels.RESERVATION_AFFINITY in pod.metadata.annotations:
        key = f"metadata.annotations[{labels.RESERVATION_AFFINITY}]"
        yield f"{key}: this version of Koordinator does not place pods into reservations yet: {NO_RESERVATION}"
