"""Define what a plugin of the descheduler is; packages import all of it from here (docs/descheduler-plugins.md).

A plugin inherits from the class of each extension point at which it can be enabled. Its pass over the cluster is a
generator that yields actions and is sent whether each was accepted, so it decides without doing anything itself: dry
runs, limits and tests work with any plugin. Source: behaviour/descheduler 3.2 and 3.4.
"""

import abc
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from typing import Any, ClassVar, TypeVar

import msgspec

from koordinator.api import config_text
from koordinator.api.config_text import ConfigProblem
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.meta import ViewPart
from koordinator.cluster.config import Credentials
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.proof import Prove
from koordinator.cluster.protocol import Cluster
from koordinator.descheduler.caches import Caches
from koordinator.descheduler.measurements import Observation
from koordinator.descheduler.metrics import DeschedulerMetrics
from koordinator.descheduler.migration.controller import Migration
from koordinator.descheduler.pod_filter import PodPredicate

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


ENTRY_POINTS = "koordinator.descheduler.plugins"
"""Group of the entry points through which packages offer plugins; an entry's name is the plugin's."""

__all__ = [
    "ENTRY_POINTS",
    "Action",
    "Actions",
    "BalancePlugin",
    "DeschedulePlugin",
    "EvictAction",
    "EvictOrder",
    "EvictPlugin",
    "FilterPlugin",
    "Handle",
    "LiveHandle",
    "NoArgs",
    "Observation",
    "Plugin",
    "SetCordon",
    "SetDeletionCost",
]


class NoArgs(ViewPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of a plugin that has none."""


class Handle(msgspec.Struct, frozen=True, kw_only=True):
    """The questions that a plugin may ask: `may_evict` is cheap and for candidates (every filter plugin of the profile
    passes the pod), `may_evict_now` is asked right before an eviction. They answer from the first cycle on."""

    may_evict: PodPredicate
    may_evict_now: PodPredicate


class LiveHandle(Handle, frozen=True, kw_only=True):
    """The handle in a process, for plugins that evict or look objects up."""

    cluster: Cluster
    caches: Caches
    events: EventRecorder
    metrics: DeschedulerMetrics
    migration: Migration
    limits: CycleLimits
    refusal: Callable[[Pod], str]
    """Reason for which the profile's filters keep a pod; empty where they let it go."""
    prove: Prove | None
    """The scheduler of this process, if there is one."""
    credentials: Credentials
    """Our identity, for a scheduler elsewhere."""


class EvictOrder(msgspec.Struct, frozen=True):
    """The pod to evict, which plugin wants it and why (empty where the plugin's name says it all), and the node on
    which its successor must be (empty: any)."""

    pod: Pod
    plugin: str
    reason: str
    target: str = ""


class Plugin:
    """Base of all. A plugin is made once per profile with its checked arguments."""

    name: ClassVar[str]
    args: ClassVar[type[msgspec.Struct]] = NoArgs
    """Arguments as `pluginConfig` has them."""
    is_lax: ClassVar[bool] = False
    """True where unknown members are ignored instead of refused."""
    api_version: ClassVar[str] = ""
    """The version that arguments may name, beside the kind `<name>Args`; empty: they may name any."""

    def __init__(self, args: Any, handle: LiveHandle) -> None:
        """Make the plugin of one profile."""

    @classmethod
    def problems(cls, raw: Mapping[str, Any], field: str) -> list[ConfigProblem]:
        """Everything that is wrong with the arguments that stand at `field` of the file."""
        if found := config_text.problems_of(_without_kind(raw), cls.args, field, strict=not cls.is_lax):
            return found
        try:
            cls.read(raw)
        except ProtocolError as error:
            return [ConfigProblem(f"{field}.{error.field}" if error.field else field, error.reason)]
        return []

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Any:
        """Return the arguments, completed and checked. Raises: ProtocolError, naming plugin and field."""
        args = cls.completed(raw)
        try:
            cls.check_args(args)
        except ProtocolError as error:
            raise error.of(cls.name) from error
        return args

    @classmethod
    def completed(cls, raw: Mapping[str, Any]) -> Any:
        """Return the arguments with defaults filled in, not checked. Raises: ProtocolError for what cannot be read."""
        for field, wanted in (("apiVersion", cls.api_version), ("kind", f"{cls.name}Args")):
            if cls.api_version and raw.get(field, wanted) != wanted:
                raise ProtocolError(cls.name, field, f"expected {wanted}, got {raw[field]!r}")
        try:
            return cls.complete(msgspec.convert(config_text.without_nulls(_without_kind(raw)), cls.args))
        except (msgspec.ValidationError, ValueError) as error:
            raise ProtocolError(cls.name, "", str(error)) from error

    @staticmethod
    def complete(args: Any) -> Any:
        """Return the arguments with members filled in whose defaults depend on others."""
        return args

    @staticmethod
    def check_args(args: Any) -> None:
        """Refuse arguments that make no sense together. Raises: ProtocolError."""


def _without_kind(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without the members that say what they are."""
    return {name: member for name, member in raw.items() if name not in ("apiVersion", "kind")}


class DeschedulePlugin(Plugin, abc.ABC):
    """Evicts pods for reasons of their own."""

    @abc.abstractmethod
    def deschedule(self, seen: Observation) -> Actions[Any]:
        """Look at the cluster once; what it returns is shown to those who ask about the cycle."""


class BalancePlugin(Plugin, abc.ABC):
    """Evicts pods for the balance of the cluster; runs after all `DeschedulePlugin`s."""

    async def prepare_balance(self, seen: Observation) -> str:
        """Look up what the pass over this needs, right before it; why it cannot run, empty when it can."""
        return ""

    @abc.abstractmethod
    def balance(self, seen: Observation) -> Actions[Any]:
        """Look at the cluster once, as `DeschedulePlugin.deschedule`."""


class FilterPlugin(Plugin, abc.ABC):
    """Says which pods may be evicted."""

    async def prepare(self) -> None:
        """A cycle begins: look up what the answers need."""

    @abc.abstractmethod
    def refusal(self, pod: Pod) -> str:
        """Return why the pod may not be evicted now; empty when it may."""

    def late_refusal(self, pod: Pod) -> str:
        """Return what else speaks against it right before the eviction."""
        return ""


class EvictPlugin(Plugin, abc.ABC):
    """Carries evictions out; a profile has exactly one."""

    @abc.abstractmethod
    async def evict(self, order: EvictOrder) -> str:
        """Evict, or have it done; why not, empty when it is accepted."""
