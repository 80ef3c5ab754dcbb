"""RequiredReservation: a pod that requires a reservation is never placed without one.

The annotation `reservation-affinity` promises that its pod goes into a reservation and nowhere else
(behaviour/reservations 5.2). Where the plugin that knows reservations does not run, such a pod has to wait: other
nodes are not what it asked for, and room that somebody reserved is not free. Profiles without that plugin get this
one (`profile`).
"""

from koordinator.api import labels
from koordinator.scheduler.plugin.events import ClusterEvent
from koordinator.scheduler.plugin.framework import PreFilterPlugin, PreFilterResult
from koordinator.scheduler.plugin.status import SKIP, unresolvable
from koordinator.scheduler.table import pod_info
from koordinator.scheduler.table.pod_info import PodInfo

NEEDED = unresolvable(
    f"the pod requires a reservation (annotation {labels.RESERVATION_AFFINITY}), "
    "and the plugin Reservation does not run in this scheduler profile"
)


class RequiredReservation(PreFilterPlugin[bool]):
    """The state is whether the pod requires a reservation; an empty annotation requires one, too."""

    name = "RequiredReservation"
    keyed_by = (pod_info.annotations(labels.RESERVATION_AFFINITY),)
    wakes_on = (ClusterEvent.POD_UPDATED,)

    def prepare(self, pod: PodInfo) -> bool:
        return labels.RESERVATION_AFFINITY in pod.pod.metadata.annotations

    def pre_filter(self, state: bool) -> PreFilterResult:
        return PreFilterResult(NEEDED if state else SKIP)
