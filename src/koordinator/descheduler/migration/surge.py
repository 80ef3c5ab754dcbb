"""Bring the successor of a pod up before the pod goes: one replica more until it is ready, then one less.

For jobs that ask for it (`koordinator.sh/surge`). The replica more takes the room that is reserved for the successor;
when there is one less again, the workload's controller deletes the pod that should go, since it costs least to delete.
Each step is written down before it is done, so that a restart neither adds a replica twice nor forgets one.
"""

import re
from collections.abc import Generator
from typing import Any

import msgspec

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.api.meta import find_condition
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.descheduler.migration import jobs
from koordinator.descheduler.migration.jobs import JobStep, JobUpdate, quoted_ref

KINDS = ("Deployment", "ReplicaSet", "ReplicationController")
"""Workloads whose controllers delete the pod first that costs least."""
COST_MIN = str(-(2**31))

_TEXT = re.compile(rf"({'|'.join(KINDS)}) ([^/ ]+)/(\S+): from (\d+) to (\d+) replicas")


class Surge(msgspec.Struct, frozen=True):
    """A workload and the replicas that it should have, without the one more."""

    kind: str
    namespace: str
    name: str
    replicas: int

    @property
    def text(self) -> str:
        """Return it as conditions have it; `parse` reads it."""
        return (
            f"{self.kind} {self.namespace}/{self.name}: from {self.replicas} to {self.replicas + 1} replicas"
        )

    @classmethod
    def parse(cls, text: str) -> "Surge | None":
        """Return what a condition says; None for another text."""
        found = _TEXT.fullmatch(text)
        return None if found is None else cls(found[1], found[2], found[3], int(found[4]))


class AddReplica(msgspec.Struct, frozen=True):
    """Give the workload one replica more, if it has as many as are written down."""

    surge: Surge


class RemoveReplica(msgspec.Struct, frozen=True):
    """Take the replica back, if nobody has changed their number since; `first` goes then. The reply says whether."""

    surge: Surge
    first: Pod | None


SurgeAction = AddReplica | RemoveReplica
SurgePart = Generator[SurgeAction, Any, JobStep | None]


def is_asked(job: PodMigrationJob) -> bool:
    """Return whether the successor shall come first."""
    return job.metadata.annotations.get(labels.JOB_SURGE) == "true"


def has_begun(job: PodMigrationJob) -> bool:
    """Return whether a successor was called for before the pod went."""
    return any(one.type == jobs.SURGE and Surge.parse(one.message) for one in job.status.conditions)


def open_surge(job: PodMigrationJob) -> Surge | None:
    """Return the workload that may have one replica more because of a job."""
    found = find_condition(job.status.conditions, jobs.SURGE)
    return Surge.parse(found.message) if found is not None and found.status == "False" else None


def steps(draft: JobUpdate, pod: Pod | None, current: Surge | None, is_successor_ready: bool) -> SurgePart:
    """One look before the eviction; None when there is nothing (more) to be done. `pod` is the one to go, None once it
    is gone; `current` its workload now, None where there can be no replica more."""
    known = draft.condition(jobs.SURGE)
    if draft.condition(jobs.EVICTION) is not None or (known is not None and known.status == "True"):
        return None
    if known is None:
        return None if pod is None else _begin(draft, current)
    surge = Surge.parse(known.message)
    if surge is None:  # somebody has edited it: there is no number to go back to
        draft.write(jobs.SURGE, True, jobs.SURGE_COMPLETE, known.message)
        return None
    if known.reason == jobs.ADDING_REPLICA and pod is not None:
        return (yield from _add(draft, surge, current))
    if pod is not None and not is_successor_ready:
        return draft.wait()
    reply = yield RemoveReplica(surge, pod)
    if reply.error:
        return draft.stop(reply.error)
    draft.set(jobs.SURGE, True, jobs.SURGE_COMPLETE, surge.text)
    if pod is not None and not reply.is_done:
        return None  # the workload has another size by now: its controller would make a successor of its own
    if pod is None and not is_successor_ready:
        return None  # it went by itself
    return _gone_with_it(draft, pod)


def _begin(draft: JobUpdate, current: Surge | None) -> JobStep | None:
    if current is None:
        message = "No replica more: that is for Deployments, ReplicaSets and ReplicationControllers"
        draft.write(jobs.SURGE, True, jobs.SURGE_COMPLETE, message)
        draft.event(jobs.WARNING, jobs.SURGE, message)
        return None
    draft.set(jobs.SURGE, False, jobs.ADDING_REPLICA, current.text)
    return draft.stop()  # written first, and this wakes the job


def _add(draft: JobUpdate, surge: Surge, current: Surge | None) -> SurgePart:
    if current is not None and current.replicas not in (surge.replicas, surge.replicas + 1):
        draft.set(jobs.SURGE, False, jobs.ADDING_REPLICA, current.text)  # resized meanwhile
        return draft.stop()
    reply = yield AddReplica(surge)
    if reply.error:
        draft.event(jobs.WARNING, jobs.SURGE, f"No replica more: {reply.error}")
        return draft.stop(reply.error)
    draft.set(jobs.SURGE, False, jobs.WAIT_FOR_SUCCESSOR, surge.text)
    draft.event(jobs.NORMAL, jobs.SURGE, f"Waiting for the successor, {surge.text}")
    return draft.wait()


def _gone_with_it(draft: JobUpdate, pod: Pod | None) -> JobStep | None:
    """The pod is on its way out, or gone: the job goes on as after an eviction."""
    ref = quoted_ref(draft.job.spec.pod_ref)
    if pod is None:
        draft.set(jobs.EVICTION, True, jobs.EVICT_COMPLETE)
        draft.event(jobs.NORMAL, jobs.EVICT_COMPLETE, f"Pod {ref} has been evicted")
        return None
    message = f"Pod {ref} leaves node {pod.spec.node_name}: its successor is ready, its workload has one replica less"
    draft.set(jobs.EVICTION, False, jobs.EVICTING, message)
    draft.event(jobs.NORMAL, jobs.EVICTING, message)
    return draft.wait()
