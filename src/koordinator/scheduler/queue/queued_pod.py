"""A pod in the queue, what happened to it so far, and how long it backs off after failures. Source: behaviour/scheduler
B5."""

from collections.abc import Hashable
from typing import Any

import msgspec

from koordinator.scheduler.plugin.status import Status
from koordinator.scheduler.table.pod_info import PodInfo

BACKOFF_WINDOW_S = 1.0
"""Backoffs that end within one window end together, with the window, and priority decides their order."""


def backoff_s(unschedulable_count: int, error_count: int, initial_s: float, max_s: float) -> float:
    """Return how long a pod waits after a failure: doubling from `initial_s` to `max_s`.

    Errors in a row replace the count of refusals; no failures or `max_s` 0 mean no wait.
    """
    failures = error_count if error_count > 0 else unschedulable_count
    if failures == 0 or max_s == 0:
        return 0.0
    # 2^63 seconds is beyond any maximum: larger exponents would only overflow.
    return min(max_s, initial_s * 2.0 ** min(failures - 1, 63))


def end_of_window(until_s: float) -> float:
    """Return the end of the window in which a backoff expires: until then the pod backs off."""
    return (until_s // BACKOFF_WINDOW_S + 1) * BACKOFF_WINDOW_S


class QueuedPod(msgspec.Struct, eq=False):
    """A pod in the queue and what happened to it so far. `rejected_by` are plugins whose events wake it,
    `pending_by` those whose events wake it without a backoff."""

    pod: PodInfo
    profile_name: str
    class_key: Hashable
    queued_s: float
    sort_key: tuple[Any, ...] = ()
    attempt_count: int = 0
    unschedulable_count: int = 0
    error_count: int = 0
    first_attempt_s: float | None = None
    rejected_by: frozenset[str] = frozenset()
    pending_by: frozenset[str] = frozenset()
    also_waits_for: frozenset[str] = frozenset()
    """Plugins that did not refuse it, and without which an event since then would have helped."""
    gate: Status | None = None
    backoff_until_s: float | None = None
    about: tuple[PodInfo, Hashable] | None = None
    """Another pod with its class, when it is that one's refusal that keeps this one waiting."""
    waits_out: bool = False
    """Not tried before its backoff is over: what it waits for would not have changed."""

    @property
    def hint(self) -> tuple[PodInfo, Hashable]:
        """Return the pod that plugins are asked about when something happens, with its class."""
        return self.about if self.about is not None and self.gate is None else (self.pod, self.class_key)

    @property
    def rejecters(self) -> frozenset[str]:
        """Plugins that refused the pod, or the one whose gate is closed."""
        return self.rejected_by | self.pending_by if self.gate is None else frozenset((self.gate.plugin,))

    @property
    def refused_by(self) -> frozenset[str]:
        """Plugins whose events can help."""
        return self.rejecters | self.also_waits_for


def is_another_question(old: PodInfo, new: PodInfo) -> bool:
    """Return whether an update is more than a change of the pod's status, claims made for it apart."""
    before, now = old.pod.metadata, new.pod.metadata
    return (
        old.pod.spec != new.pod.spec
        or before.labels != now.labels
        or before.annotations != now.annotations
        or old.pod.status.resource_claim_statuses != new.pod.status.resource_claim_statuses
    )
