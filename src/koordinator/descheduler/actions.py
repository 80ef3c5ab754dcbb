"""Define the actions that a plugin may ask for, and limit how many pods one cycle may evict.

A plugin's pass is a generator: it yields one action, is sent whether that succeeded, and decides on; so the decision
stays pure while evictions happen in between. Source: behaviour/descheduler 3.4.
"""

from collections import Counter
from collections.abc import Generator
from typing import TypeVar

import msgspec

from koordinator.api.core import Pod

R = TypeVar("R")


class EvictAction(msgspec.Struct, frozen=True):
    """Evict the pod; `reason` is for people, empty where the trigger says it all.

    `target` is the node on which its successor must be, empty: any; only MigrationController sees to that.
    """

    pod: Pod
    reason: str = ""
    target: str = ""


class SetCordon(msgspec.Struct, frozen=True):
    """Set whether the node takes new pods."""

    node: str
    cordoned: bool


class SetDeletionCost(msgspec.Struct, frozen=True):
    """Write how early the pod goes when its workload shrinks: lower goes first."""

    pod: Pod
    cost: int


Action = EvictAction | SetCordon | SetDeletionCost
Evictions = Generator[EvictAction, bool, R]
Actions = Generator[Action, bool, R]


class CycleLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Evictions allowed in one cycle; None is unlimited, 0 forbids all."""

    per_node: int | None = None
    per_namespace: int | None = None
    total: int | None = None


class CycleLimiter:
    """Counts evictions of one cycle, for all profiles together."""

    def __init__(self, limits: CycleLimits) -> None:
        self._limits = limits
        self.per_node: Counter[str] = Counter()
        self.per_namespace: Counter[str] = Counter()
        self.total = 0

    def reset(self) -> None:
        """A new cycle starts."""
        self.per_node.clear()
        self.per_namespace.clear()
        self.total = 0

    def refusal(self, node: str, namespace: str) -> str:
        """Return the limit that forbids one more eviction, empty if none does. No node: its limit is skipped."""
        limits = self._limits
        if node and _is_full(self.per_node[node], limits.per_node):
            return f"maxNoOfPodsToEvictPerNode {limits.per_node} of node {node}"
        if _is_full(self.per_namespace[namespace], limits.per_namespace):
            return f"maxNoOfPodsToEvictPerNamespace {limits.per_namespace} of namespace {namespace}"
        if _is_full(self.total, limits.total):
            return f"maxNoOfPodsToEvictTotal {limits.total}"
        return ""

    def count(self, node: str, namespace: str) -> None:
        """An eviction happened."""
        if node:
            self.per_node[node] += 1
        self.per_namespace[namespace] += 1
        self.total += 1


def _is_full(count: int, limit: int | None) -> bool:
    return limit is not None and count + 1 > limit
