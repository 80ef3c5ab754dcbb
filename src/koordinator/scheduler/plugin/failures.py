"""Let plugins handle a failed attempt besides the scheduler itself, and decide which nomination it leaves.

Source: behaviour/scheduler C5.
"""

import enum
from collections.abc import Callable, Iterable

import msgspec

from koordinator.cluster.supervise import Guard
from koordinator.scheduler.plugin.status import Status
from koordinator.scheduler.table.pod_info import PodInfo

JOB_PREEMPTION_SUCCESS = "JobPreemptionSuccessPlugin"
"""Turns down a waiting pod whose job made room: it keeps its node."""
JOB_REJECT = "JobRejectPlugin"
"""Turns down a waiting pod because its job fails: its nomination stays as it is."""
JOB_PREEMPTION_FAILURE = "JobPreemptionFailurePlugin"
"""Turns down a waiting pod whose job could not make room: it loses its nomination."""

JOB_PLUGINS = frozenset((JOB_PREEMPTION_SUCCESS, JOB_REJECT, JOB_PREEMPTION_FAILURE))
"""Whom a waiting pod's rejection is said to come from when it is for the sake of its job."""


class SchedulingFailure(msgspec.Struct, frozen=True):
    """An attempt that ended without a binding. `nominated_node` None leaves the nomination, "" clears it."""

    pod: PodInfo
    profile_name: str
    status: Status
    rejected_by: frozenset[str]
    nominated_node: str | None = None


class Handling(enum.Enum):
    """The treatment of a failure after a plugin had a look at it."""

    GO_ON = "the next one looks, and in the end the scheduler: it queues the pod again and tells users"
    QUIETLY = "the pod is queued again, and the plugin tells users"
    DONE = "the pod has left the queue, or the plugin brings it back"


Before = Callable[[SchedulingFailure], Handling]
After = Callable[[SchedulingFailure], None]


class FailureHandlers:
    """The handlers that plugins registered (`Handle.on_failure`, `Handle.after_failure`), in that order."""

    def __init__(self, before: Iterable[Before], after: Iterable[After]) -> None:
        self._before = tuple(before)
        self._after = tuple(after)
        self._guard = Guard("scheduler plugins, handling a failure")

    def before(self, failure: SchedulingFailure) -> Handling:
        """The first answer that is not GO_ON ends it. A handler that raises counts as one that goes on."""
        for handler in self._before:
            handling = self._guard.answer(handler, failure, otherwise=lambda _: Handling.GO_ON)
            if handling is not Handling.GO_ON:
                return handling
        return Handling.GO_ON

    def after(self, failure: SchedulingFailure) -> None:
        """All are told, however the failure was handled."""
        for handler in self._after:
            self._guard.call(handler, failure)


def nomination_after(status: Status, node_name: str, nominated_node: str | None) -> str | None:
    """Return the nomination that a failure leaves: a job's preemption takes it over.

    `node_name` is where the pod waited, `nominated_node` what the attempt said itself.
    """
    if status.plugin == JOB_PREEMPTION_SUCCESS:
        return node_name
    if status.plugin == JOB_REJECT:
        return None
    if status.plugin == JOB_PREEMPTION_FAILURE:
        return ""
    return nominated_node
