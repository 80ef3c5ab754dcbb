"""Spreads the evictions of one workload or namespace over time. Source: behaviour/descheduler 7.7."""

from collections.abc import Mapping

import msgspec

from koordinator.api.schema import IntOrString
from koordinator.descheduler.migration import limits
from koordinator.descheduler.token_bucket import TokenBucket

WORKLOAD = "workload"
NAMESPACE = "namespace"
TYPES = (WORKLOAD, NAMESPACE)

FORGET_AFTER_DURATIONS = 1.5


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """`max_migrating` evictions in `duration_s`, `burst` of them at once (0 is 1). Duration 0: no limit."""

    duration_s: float
    max_migrating: IntOrString | None = None
    burst: int = 0


class Subject(msgspec.Struct, frozen=True):
    """The owner of an evicted pod: uid of the controller (empty: none), its replicas (0: unknown), the namespace."""

    workload: str
    replicas: int
    namespace: str


class ObjectLimiter:
    """A token bucket for each workload and namespace from which something was evicted."""

    def __init__(
        self, allowances: Mapping[str, Allowance], max_migrating_per_workload: IntOrString | None
    ) -> None:
        self._allowances = {kind: allowances[kind] for kind in TYPES if kind in allowances}
        self._per_workload = max_migrating_per_workload
        self._buckets: dict[tuple[str, str], TokenBucket] = {}
        self._forget_at_s: dict[tuple[str, str], float] = {}

    def evicted(self, subject: Subject, now_s: float) -> None:
        """An eviction was performed. Raises: ProtocolError for a malformed limit."""
        self._forget(now_s)
        for kind, allowance in self._allowances.items():
            key = (kind, _object_of(kind, subject))
            most = self._max(kind, allowance, subject) if key[1] and allowance.duration_s > 0 else 0
            if most <= 0:
                continue
            rate = most / allowance.duration_s
            bucket = self._buckets.get(key)
            if bucket is None:
                bucket = self._buckets[key] = TokenBucket(rate, allowance.burst or 1, now_s)
            elif bucket.rate != rate:
                bucket.set_rate(rate, now_s)
            bucket.take(now_s)
            self._forget_at_s[key] = now_s + FORGET_AFTER_DURATIONS * allowance.duration_s

    def blocking(self, subject: Subject, now_s: float) -> str:
        """The object whose evictions must wait, as `workload <uid>`; empty if none must."""
        self._forget(now_s)
        for kind in self._allowances:
            key = (kind, _object_of(kind, subject))
            bucket = self._buckets.get(key)
            if bucket is not None and not bucket.has_token(now_s):
                return f"{kind} {key[1]}"
        return ""

    def __len__(self) -> int:
        return len(self._buckets)

    def _max(self, kind: str, allowance: Allowance, subject: Subject) -> int:
        given = allowance.max_migrating
        if kind == WORKLOAD:
            return limits.limit(subject.replicas, self._per_workload if given is None else given)
        return given if isinstance(given, int) else 0

    def _forget(self, now_s: float) -> None:
        for key in [key for key, at_s in self._forget_at_s.items() if at_s < now_s]:
            del self._buckets[key], self._forget_at_s[key]


def _object_of(kind: str, subject: Subject) -> str:
    return subject.workload if kind == WORKLOAD else subject.namespace
