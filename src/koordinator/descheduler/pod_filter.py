"""Decide which pods a plugin may look at (namespaces, label selectors), and whether a pod may be evicted at all. Pure.
Source: behaviour/descheduler 4.3, 5.2 and 8.3."""

from collections.abc import Callable, Iterable, Sequence

from koordinator.api.affinity import LabelSelector
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.label_selector import compile_selector
from koordinator.api.meta import ViewPart
from koordinator.descheduler import facts

PodPredicate = Callable[[Pod], bool]


class Namespaces(ViewPart, frozen=True, kw_only=True):
    """Namespaces that count, or that do not; setting both is an error."""

    include: list[str] = []
    exclude: list[str] = []


class PodSelector(ViewPart, frozen=True, kw_only=True):
    """A named selector; without `selector` it is ignored."""

    name: str = ""
    selector: LabelSelector | None = None


def in_namespaces(namespaces: Namespaces | None) -> PodPredicate:
    """Return a predicate for pods whose namespace counts; all do when none is named."""
    if namespaces is None:
        return _any_pod
    include, exclude = frozenset(namespaces.include), frozenset(namespaces.exclude)

    def passes(pod: Pod) -> bool:
        namespace = pod.metadata.namespace
        return (not include or namespace in include) and namespace not in exclude

    return passes


def matches_some(selectors: Iterable[PodSelector]) -> PodPredicate:
    """Return a predicate for pods that match one of the usable selectors; every pod does when there is none.
    Raises: ProtocolError for a selector that cannot be read."""
    compiled = [compile_selector(s.selector) for s in selectors if s.selector is not None]
    if not compiled:
        return _any_pod
    return lambda pod: any(matches(pod.metadata.labels) for matches in compiled)


def matches_labels(selector: LabelSelector | None) -> PodPredicate:
    """Return a predicate for pods whose labels match; all do without a selector. Raises: ProtocolError."""
    if selector is None:
        return _any_pod
    matches = compile_selector(selector)
    return lambda pod: matches(pod.metadata.labels)


def compose(
    namespaces: Namespaces | None,
    selectors: Sequence[PodSelector],
    profile: PodPredicate,
    label_selector: LabelSelector | None = None,
) -> PodPredicate:
    """Namespace, label selector, profile filter, pod selectors, in that order. Raises: ProtocolError."""
    stages = (in_namespaces(namespaces), matches_labels(label_selector), profile, matches_some(selectors))
    asked = [passes for passes in stages if passes is not _any_pod]
    return asked[0] if len(asked) == 1 else lambda pod: all(passes(pod) for passes in asked)


def check_namespaces(namespaces: Namespaces | None, field: str) -> None:
    """Raises: ProtocolError when both lists are given."""
    if namespaces is not None and namespaces.include and namespaces.exclude:
        raise ProtocolError("", field, "only one of include and exclude may be set")


def _any_pod(_: Pod) -> bool:
    return True


SYSTEM_CRITICAL_PRIORITY = 2_000_000_000
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
SOURCE_ANNOTATION = "kubernetes.io/config.source"

Refusal = Callable[[Pod], str]


class EvictableOptions(ViewPart, frozen=True, kw_only=True):
    """The options that spare pods. `ignore_pvc_pods` spares pods with claims; the others allow an eviction."""

    evict_all_bare_pods: bool = False
    evict_failed_bare_pods: bool = False
    evict_local_storage_pods: bool = False
    evict_system_critical_pods: bool = False
    ignore_pvc_pods: bool = False
    priority_threshold: int | None = None
    label_selector: LabelSelector | None = None


def refusal(options: EvictableOptions) -> Refusal:
    """Return a function that tells why a pod is spared, in one phrase; empty when it may be evicted.
    Raises: ProtocolError for a label selector that cannot be read."""
    selector = options.label_selector
    matches = compile_selector(selector) if selector is not None else None

    def reason(pod: Pod) -> str:
        if facts.has_evict_annotation(pod):
            return ""
        found = of_daemon_set(pod) or inherent_refusal(pod) or _refusal_by_options(pod, options)
        if not found and matches is not None and not matches(pod.metadata.labels):
            return "its labels do not match the label selector"
        return found

    return reason


def inherent_refusal(pod: Pod) -> str:
    """Return why no option makes the pod evictable: it would come back, or it goes anyway."""
    if MIRROR_ANNOTATION in pod.metadata.annotations:
        return "it is a mirror pod"
    if pod.metadata.annotations.get(SOURCE_ANNOTATION, "api") != "api":
        return "it is a static pod"
    if pod.metadata.deletion_timestamp is not None:
        return "it is being deleted"
    return ""


def of_daemon_set(pod: Pod) -> str:
    """Return that a DaemonSet would make the pod again, if one would."""
    is_its_own = any(owner.kind == "DaemonSet" for owner in pod.metadata.owner_references)
    return "it belongs to a DaemonSet" if is_its_own else ""


def has_local_storage(pod: Pod) -> bool:
    return any(v.host_path is not None or v.empty_dir is not None for v in pod.spec.volumes)


def has_claims(pod: Pod) -> bool:
    return any(v.persistent_volume_claim is not None for v in pod.spec.volumes)


def _refusal_by_options(pod: Pod, options: EvictableOptions) -> str:
    if not pod.metadata.owner_references and not options.evict_all_bare_pods:
        if not options.evict_failed_bare_pods:
            return "it has no owner"
        if pod.status.phase != "Failed":
            return "it has no owner and has not failed"
    if not options.evict_system_critical_pods and pod.spec.priority is not None:
        if pod.spec.priority >= SYSTEM_CRITICAL_PRIORITY:
            return "it is critical to the system"
        threshold = options.priority_threshold
        if threshold is not None and pod.spec.priority >= threshold:
            return f"its priority is not below {threshold}"
    if has_local_storage(pod) and not options.evict_local_storage_pods:
        return "it has local storage"
    if has_claims(pod) and options.ignore_pvc_pods:
        return "it has volume claims"
    return ""
