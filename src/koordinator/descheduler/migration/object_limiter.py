"""Decide how many pods of a workload may move at once (behaviour/descheduler 8.4), and spread the evictions of one
workload or namespace over time, by token buckets that are told the time (7.6, 7.7)."""

from collections.abc import Mapping

import msgspec

from koordinator.api.errors import ProtocolError
from koordinator.api.scalars import ScalarError, parse_int
from koordinator.api.schema import IntOrString

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
        self._buckets: dict[tuple[str, str], EvictionTokenBucket] = {}
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
                bucket = self._buckets[key] = EvictionTokenBucket(rate, allowance.burst or 1, now_s)
            elif bucket.rate != rate:
                bucket.set_rate(rate, now_s)
            bucket.take(now_s)
            idle_s = max(FORGET_AFTER_DURATIONS * allowance.duration_s, (allowance.burst or 1) / rate)
            self._forget_at_s[key] = now_s + idle_s  # it is full by then

    def blocking(self, subject: Subject, now_s: float) -> str:
        """Return the object whose evictions must wait, as `workload <uid>`; empty if none must."""
        self._forget(now_s)
        for kind in self._allowances:
            key = (kind, _object_of(kind, subject))
            bucket = self._buckets.get(key)
            if bucket is not None and not bucket.has_token(now_s):
                return f"{kind} {key[1]}"
        return ""

    def _max(self, kind: str, allowance: Allowance, subject: Subject) -> int:
        given = allowance.max_migrating
        if kind == WORKLOAD:
            return limit(subject.replicas, self._per_workload if given is None else given)
        return given if isinstance(given, int) else 0

    def _forget(self, now_s: float) -> None:
        for key in [key for key, at_s in self._forget_at_s.items() if at_s < now_s]:
            del self._buckets[key], self._forget_at_s[key]


def _object_of(kind: str, subject: Subject) -> str:
    return subject.workload if kind == WORKLOAD else subject.namespace


def limit(replicas: int, given: IntOrString | None, field: str = "") -> int:
    """Return the limit for a workload of `replicas` pods: an integer, a percentage, or None for the default rule.
    Raises: ProtocolError for a text that is no percentage."""
    if given is None:
        found = replicas * 10 // 100 if replicas > 10 else 2 if replicas >= 4 else 1
    else:
        found = (given if isinstance(given, int) else percent(given, field) * replicas // 100) or 1
    return min(found, replicas)


def percent(text: str, field: str = "") -> int:
    """Return the N of `N%`. Raises: ProtocolError."""
    try:
        if not text.endswith("%"):
            raise ScalarError(text, "an integer or a percentage like 10%")
        return parse_int(text[:-1], 32)
    except ScalarError as error:
        raise ProtocolError("", field, str(error)) from error


class EvictionTokenBucket:
    """Holds up to `size` tokens, refilled at `rate` a second; full when made."""

    def __init__(self, rate: float, size: int, now_s: float) -> None:
        self.rate = rate
        self._size = size
        self._tokens = float(size)
        self._at_s = now_s

    def has_token(self, now_s: float) -> bool:
        """Return whether there is a token now. However often that is asked, tokens come at the same moments: what came
        is added up when one is taken, so that no rounding piles up."""
        return self._tokens_at(now_s) >= 1

    def take(self, now_s: float) -> bool:
        """Take a token if there is one; whether there was."""
        tokens = self._tokens_at(now_s)
        if tokens < 1:
            return False
        self._tokens, self._at_s = tokens - 1, now_s
        return True

    def set_rate(self, rate: float, now_s: float) -> None:
        """From now on refill at another rate."""
        self._tokens, self._at_s, self.rate = self._tokens_at(now_s), now_s, rate

    def _tokens_at(self, now_s: float) -> float:
        self._at_s = min(self._at_s, now_s)  # a clock that went back counts as no time
        passed_s = round(now_s - self._at_s, 9)  # to the nanosecond: what is due now has come
        return min(float(self._size), self._tokens + passed_s * self.rate)
