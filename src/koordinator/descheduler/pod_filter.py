"""Decide which pods a plugin may look at: namespaces and label selectors. Pure. Source: behaviour/descheduler 4.3."""

from collections.abc import Callable, Iterable, Sequence

from koordinator.api.affinity import LabelSelector
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.label_selector import compile_selector
from koordinator.api.meta import ViewPart

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

    Raises: ProtocolError for a selector that cannot be read.
    """
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
    stages = (
        in_namespaces(namespaces),
        matches_labels(label_selector),
        profile,
        matches_some(selectors),
    )
    return lambda pod: all(passes(pod) for passes in stages)


def check_namespaces(namespaces: Namespaces | None, field: str) -> None:
    """Raises: ProtocolError when both lists are given."""
    if namespaces is not None and namespaces.include and namespaces.exclude:
        raise ProtocolError("", field, "only one of include and exclude may be set")


def _any_pod(_: Pod) -> bool:
    return True
