"""Decide how a pod is evicted, and which jobs are swept away. Pure. Source: behaviour/descheduler 7.4 and 7.6."""

from typing import Any

import msgspec

from koordinator import clock
from koordinator.api import duration, labels
from koordinator.api.core import Pod
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.scalars import ScalarError
from koordinator.descheduler.config.migration import EVICTION_POLICIES
from koordinator.descheduler.migration.state import eviction_reason

SCAVENGE_AFTER_TTL_S = 300.0
SCAVENGE_WITHOUT_TTL_S = 1800.0


def policy(pod: Pod, job: PodMigrationJob, default: str) -> str:
    """Eviction, Delete or SoftEviction: the pod's label, else the job's, else the default.

    An unknown name is the default, it does not fall through to the job's label.
    """
    key = labels.EVICT_POLICY
    named = pod.metadata.labels.get(key) or job.metadata.labels.get(key) or default
    return named if named in EVICTION_POLICIES else default


def soft_eviction(job: PodMigrationJob, now_s: float) -> str:
    """JSON of the annotation that asks another component to remove the pod."""
    options = job.spec.delete_options
    body: dict[str, Any] = {"timestamp": clock.rfc3339(now_s)}
    if options is not None:
        body["deleteOptions"] = msgspec.to_builtins(options)
    body["initiator"] = job.metadata.annotations.get(labels.EVICT_TRIGGER, "")
    body["reason"] = eviction_reason(job)
    return msgspec.json.encode(body).decode()


def is_scavenged(job: PodMigrationJob, now_s: float) -> bool:
    """Return whether the job, in whatever phase, is so old that it is deleted. An unreadable ttl counts as none."""
    created = job.metadata.creation_timestamp
    if created is None:
        return False
    try:
        ttl_s = duration.parse(job.spec.ttl) if job.spec.ttl else 0.0
    except ScalarError:  # such a job can never end by itself, so it must be swept
        ttl_s = 0.0
    limit_s = ttl_s + SCAVENGE_AFTER_TTL_S if ttl_s > 0 else SCAVENGE_WITHOUT_TTL_S
    return now_s - clock.parse_rfc3339(created) >= limit_s
