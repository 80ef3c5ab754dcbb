"""DefaultEvictor: evicts through the API at once, without jobs, and spares what upstream spares.
Source: behaviour/descheduler 12.1."""

from collections.abc import Callable

import msgspec

from koordinator import clock
from koordinator.api import label_selector
from koordinator.api.affinity import LabelSelector
from koordinator.api.core import Namespace, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.groups import PodDisruptionBudget, PriorityClass
from koordinator.api.label_selector import compile_selector
from koordinator.api.meta import ViewPart
from koordinator.api.storage import PersistentVolumeClaim
from koordinator.cluster import errors
from koordinator.cluster.informer import Informer
from koordinator.descheduler import facts, pod_filter
from koordinator.descheduler.caches import BY_OWNER
from koordinator.descheduler.config import checks
from koordinator.descheduler.metrics import ERROR, SUCCESS
from koordinator.descheduler.node_fit import Rooms, fits_elsewhere
from koordinator.descheduler.plugin import EvictOrder, EvictPlugin, FilterPlugin, LiveHandle
from koordinator.descheduler.plugins.stock.common import PREFER_NO_EVICTION

LOCAL_STORAGE = "PodsWithLocalStorage"
SYSTEM_CRITICAL = "SystemCriticalPods"
FAILED_BARE = "FailedBarePods"
DAEMON_SETS = "DaemonSetPods"
WITH_CLAIMS = "PodsWithPVC"
WITHOUT_BUDGET = "PodsWithoutPDB"
WITH_RESOURCE_CLAIMS = "PodsWithResourceClaims"
DEFAULTS = (LOCAL_STORAGE, SYSTEM_CRITICAL, FAILED_BARE, DAEMON_SETS)
EXTRAS = (WITH_CLAIMS, WITHOUT_BUDGET, WITH_RESOURCE_CLAIMS)
PREFERRED, MANDATORY = "Preferred", "Mandatory"
MIN_REPLICAS_EFFECTIVE = 2


class PriorityThreshold(ViewPart, frozen=True, kw_only=True):
    """Pods of this priority and above are spared."""

    value: int | None = None
    name: str = ""


class StorageClassName(ViewPart, frozen=True, kw_only=True):
    """A class of storage whose claims protect."""

    name: str = ""


class ClaimProtection(ViewPart, frozen=True, kw_only=True):
    """The classes whose claims protect a pod; none is all."""

    protected_storage_classes: list[StorageClassName] = []


class ProtectionsConfig(ViewPart, frozen=True, kw_only=True):
    """The options of single protections."""

    pods_with_pvc: ClaimProtection = msgspec.field(name=WITH_CLAIMS, default=ClaimProtection())


class Protections(ViewPart, frozen=True, kw_only=True):
    """Protections switched on besides the default ones, and default ones switched off."""

    extra_enabled: list[str] = []
    default_disabled: list[str] = []
    config: ProtectionsConfig = ProtectionsConfig()


class DefaultEvictorArgs(ViewPart, frozen=True, kw_only=True):
    """The options that spare pods. The booleans are the older way to say the same as `pod_protections`."""

    node_selector: str = ""
    label_selector: LabelSelector | None = None
    namespace_label_selector: LabelSelector | None = None
    priority_threshold: PriorityThreshold | None = None
    node_fit: bool = False
    min_replicas: checks.NonNegative = 0
    min_pod_age: str = ""
    no_eviction_policy: str = PREFERRED
    pod_protections: Protections = Protections()
    evict_local_storage_pods: bool = False
    evict_daemon_set_pods: bool = False
    evict_system_critical_pods: bool = False
    ignore_pvc_pods: bool = False
    ignore_pods_without_pdb: bool = msgspec.field(name="ignorePodsWithoutPDB", default=False)
    evict_failed_bare_pods: bool = False


def protections(args: DefaultEvictorArgs) -> frozenset[str]:
    """Return the protections in force."""
    older = {
        LOCAL_STORAGE: args.evict_local_storage_pods,
        DAEMON_SETS: args.evict_daemon_set_pods,
        SYSTEM_CRITICAL: args.evict_system_critical_pods,
        FAILED_BARE: args.evict_failed_bare_pods,
    }
    on = {name for name in DEFAULTS if not older[name] and name not in args.pod_protections.default_disabled}
    on |= set(args.pod_protections.extra_enabled)
    if args.ignore_pvc_pods:
        on.add(WITH_CLAIMS)
    if args.ignore_pods_without_pdb:
        on.add(WITHOUT_BUDGET)
    return frozenset(on)


def check(args: DefaultEvictorArgs) -> None:
    """Raises: ProtocolError."""
    name, own = "DefaultEvictor", args.pod_protections
    for field, given, known in (
        ("extraEnabled", own.extra_enabled, EXTRAS),
        ("defaultDisabled", own.default_disabled, DEFAULTS),
    ):
        for one in given:
            if one not in known or given.count(one) > 1:
                reason = (
                    f"{one!r} is there twice" if one in known else f"{one!r} is none of {', '.join(known)}"
                )
                raise ProtocolError(name, f"podProtections.{field}", reason)
    older = (
        *(args.evict_local_storage_pods, args.evict_daemon_set_pods, args.evict_system_critical_pods),
        *(args.ignore_pvc_pods, args.ignore_pods_without_pdb, args.evict_failed_bare_pods),
    )
    if any(older) and (own.extra_enabled or own.default_disabled):
        raise ProtocolError(name, "podProtections", "cannot be set together with the older booleans")
    if WITH_CLAIMS in own.extra_enabled and "" in _protected_classes(args):
        raise ProtocolError(
            name, f"podProtections.config.{WITH_CLAIMS}.protectedStorageClasses", "one has no name"
        )
    threshold = args.priority_threshold
    if threshold is not None:
        if threshold.value is not None and threshold.name:
            raise ProtocolError(name, "priorityThreshold", "only one of value and name may be set")
        if (
            SYSTEM_CRITICAL in protections(args)
            and (threshold.value or 0) > pod_filter.SYSTEM_CRITICAL_PRIORITY
        ):
            reason = f"is above {pod_filter.SYSTEM_CRITICAL_PRIORITY}"
            raise ProtocolError(name, "priorityThreshold.value", reason)
    if args.no_eviction_policy not in ("", PREFERRED, MANDATORY):
        raise ProtocolError(name, "noEvictionPolicy", f"expected {PREFERRED} or {MANDATORY}")
    if args.min_pod_age:
        checks.seconds(args.min_pod_age, "minPodAge")
    checks.selector(args.label_selector, "labelSelector")
    checks.selector(args.namespace_label_selector, "namespaceLabelSelector")
    compile_selector(label_selector.of_text(args.node_selector))


def _protected_classes(args: DefaultEvictorArgs) -> frozenset[str]:
    return frozenset(one.name for one in args.pod_protections.config.pods_with_pvc.protected_storage_classes)


class DefaultEvictor(FilterPlugin, EvictPlugin):
    """The plugin of one profile."""

    name = "DefaultEvictor"
    args = DefaultEvictorArgs
    is_lax = True
    check_args = staticmethod(check)

    def __init__(self, args: DefaultEvictorArgs, handle: LiveHandle) -> None:
        self._args = args
        self._handle = handle
        self._caches = handle.caches
        self._on = protections(args)
        self._matches = pod_filter.matches_labels(args.label_selector)
        self._takes_part = compile_selector(label_selector.of_text(args.node_selector))
        self._min_age_s = checks.seconds(args.min_pod_age, "minPodAge") if args.min_pod_age else None
        if self._min_age_s is not None:
            handle.caches.need_times()
        self._rooms: Rooms | None = None
        self._covered: dict[str, list[Callable[[Pod], bool]]] = {}
        factory = handle.caches.factory
        self._budgets: Informer[PodDisruptionBudget] | None = None
        self._claims: Informer[PersistentVolumeClaim] | None = None
        self._namespaces: Informer[Namespace] | None = None
        if WITHOUT_BUDGET in self._on:
            self._budgets = factory.informer(PodDisruptionBudget)
        self._classes = _protected_classes(args)
        if WITH_CLAIMS in self._on and self._classes:
            self._claims = factory.informer(PersistentVolumeClaim)
        selector = args.namespace_label_selector
        if selector is not None and selector.match_labels:  # upstream asks for these, then for all of it
            self._namespaces = factory.informer(Namespace)
            self._matches_namespace = compile_selector(selector)
        threshold = args.priority_threshold or PriorityThreshold()
        self._threshold, self._threshold_name = threshold.value, threshold.name
        self._priorities: Informer[PriorityClass] | None = None
        if SYSTEM_CRITICAL in self._on and threshold.name:
            self._priorities = factory.informer(PriorityClass)

    async def prepare(self) -> None:
        """Forget what was free in the last cycle, and read the budgets and the threshold."""
        self._rooms = None
        if self._priorities is not None:
            found = self._priorities.get(self._threshold_name)
            self._threshold = found.value if found is not None else None
        self._covered = {}
        for budget in self._budgets.objects.values() if self._budgets is not None else ():
            if budget.spec.selector is None:
                continue  # it covers nobody, unlike an empty one
            selects = pod_filter.matches_labels(budget.spec.selector)
            self._covered.setdefault(budget.metadata.namespace, []).append(selects)

    def refusal(self, pod: Pod) -> str:
        """Return the first thing that spares the pod, in words."""
        if facts.has_evict_annotation(pod):
            return ""
        args, meta = self._args, pod.metadata
        if self._priorities is not None and self._threshold is None:
            return f"priorityThreshold names no PriorityClass {self._threshold_name}"
        if args.no_eviction_policy == MANDATORY and PREFER_NO_EVICTION in meta.annotations:
            return "it asks not to be evicted"
        if reason := (
            pod_filter.inherent_refusal(pod) or self._protection(pod) or self._extra_protection(pod)
        ):
            return reason
        if not self._matches(pod):
            return "its labels do not match the label selector"
        return self._by_replicas_and_age(pod)

    def late_refusal(self, pod: Pod) -> str:
        """Refuse a pod that fits no other node, or whose namespace lacks the labels, where these are asked for."""
        if self._namespaces is not None:
            found = self._namespaces.get(pod.metadata.namespace)
            if found is None or not self._matches_namespace(found.metadata.labels):
                return "its namespace does not match the label selector"
        if not self._args.node_fit:
            return ""
        if self._rooms is None:
            seen = self._caches.observe(0.0, self._takes_part)
            self._rooms = Rooms(seen.nodes, seen.pods_of)
        return "" if fits_elsewhere(pod, self._rooms) else "it fits no other node"

    async def evict(self, order: EvictOrder) -> str:
        """Evict through the API, which keeps disruption budgets."""
        pod, metrics = order.pod, self._handle.metrics
        meta = pod.metadata
        where = (order.plugin, meta.namespace, pod.spec.node_name)
        try:
            await self._handle.cluster.evict(meta.namespace, meta.name, uid=meta.uid)
        except errors.ApiError as error:
            metrics.pods_evicted.inc(ERROR, *where)
            return str(error)
        metrics.pods_evicted.inc(SUCCESS, *where)
        reason = order.reason or order.plugin
        self._handle.events.normal(pod, "Descheduled", f"pod evicted by {reason}", action="Evicting")
        return ""

    def _protection(self, pod: Pod) -> str:
        on, owners = self._on, pod.metadata.owner_references
        if LOCAL_STORAGE in on and pod_filter.has_local_storage(pod):
            return "it has local storage"
        if SYSTEM_CRITICAL in on and pod.spec.priority is not None:
            if pod.spec.priority >= pod_filter.SYSTEM_CRITICAL_PRIORITY:
                return "it is critical to the system"
            if self._threshold is not None and pod.spec.priority >= self._threshold:
                return f"its priority is not below {self._threshold}"
        if not owners and (FAILED_BARE in on or pod.status.phase != "Failed"):
            return "it has no owner"
        return pod_filter.of_daemon_set(pod) if DAEMON_SETS in on else ""

    def _extra_protection(self, pod: Pod) -> str:
        if WITH_CLAIMS in self._on and self._has_protected_claim(pod):
            return "it has volume claims"
        if self._budgets is not None:
            covered = self._covered.get(pod.metadata.namespace, ())
            if not any(selects(pod) for selects in covered):
                return "no disruption budget covers it"
        if WITH_RESOURCE_CLAIMS in self._on and pod.spec.resource_claims:
            return "it has resource claims"
        return ""

    def _has_protected_claim(self, pod: Pod) -> bool:
        """Return whether a claim protects the pod; one whose class cannot be told does."""
        sources = [one.persistent_volume_claim for one in pod.spec.volumes]
        names = [one.claim_name for one in sources if one is not None]
        if self._claims is None:
            return bool(names)
        claims = [self._claims.get(name, pod.metadata.namespace) for name in names]
        own = [claim.spec.storage_class_name if claim is not None else None for claim in claims]
        return any(not name or name in self._classes for name in own)

    def _by_replicas_and_age(self, pod: Pod) -> str:
        args, owners = self._args, pod.metadata.owner_references
        if args.min_replicas >= MIN_REPLICAS_EFFECTIVE and len(owners) == 1:
            count = len(self._caches.pods.by_index(BY_OWNER, owners[0].uid))
            if count < args.min_replicas:
                return f"its owner has {count} pods, fewer than minReplicas {args.min_replicas}"
        if self._min_age_s is not None:
            started = pod.status.start_time
            now_s = self._handle.cluster.clock.now()
            if started is None or now_s - clock.parse_rfc3339(started) < self._min_age_s:
                return f"it is younger than minPodAge {args.min_pod_age}"
        return ""
