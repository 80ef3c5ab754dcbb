"""Share code among the stock strategies. Pure. Source: behaviour/descheduler 12.0 and 12.2."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from koordinator.api import qos
from koordinator.api.affinity import LabelSelector
from koordinator.api.core import ContainerStatus, Pod
from koordinator.api.meta import ViewPart
from koordinator.descheduler import facts, pod_filter
from koordinator.descheduler.config import checks
from koordinator.descheduler.facts import KUBE_QOS_RANK
from koordinator.descheduler.pod_filter import Namespaces, PodPredicate

PREFER_NO_EVICTION = "descheduler.alpha.kubernetes.io/prefer-no-eviction"


class CommonArgs(ViewPart, frozen=True, kw_only=True):
    """The options that limit which pods a strategy looks at."""

    namespaces: Namespaces | None = None
    label_selector: LabelSelector | None = None


def check(args: CommonArgs) -> None:
    """Raises: ProtocolError."""
    pod_filter.check_namespaces(args.namespaces, "namespaces")
    checks.selector(args.label_selector, "labelSelector")


def selection(args: CommonArgs, may_evict: PodPredicate) -> PodPredicate:
    """Namespace, label selector and profile filter. Raises: ProtocolError for a bad selector."""
    return pod_filter.compose(args.namespaces, (), may_evict, args.label_selector)


class PodsByLabel:
    """Pods of one pass, so that a selector looks at those only that carry one of its labels."""

    def __init__(self, pods: Iterable[Pod]) -> None:
        self._of_namespace: defaultdict[str, list[Pod]] = defaultdict(list)
        self._of_label: defaultdict[tuple[str, str, str], list[Pod]] = defaultdict(list)
        for pod in pods:
            namespace = pod.metadata.namespace
            self._of_namespace[namespace].append(pod)
            for key, text in pod.metadata.labels.items():
                self._of_label[namespace, key, text].append(pod)

    def candidates(self, namespace: str, selector: LabelSelector) -> Sequence[Pod]:
        """Return pods of the namespace among which are all that match."""
        for key, text in selector.match_labels.items():
            return self._of_label.get((namespace, key, text), ())
        return self._of_namespace.get(namespace, ())


def age_s(pod: Pod, now_s: float) -> int:
    """Whole seconds since the pod was created."""
    return int(now_s - facts.created_s(pod))


def container_statuses(pod: Pod, init: bool, ephemeral: bool = False) -> Iterator[ContainerStatus]:
    """Statuses of the containers, with those of the other kinds if wanted."""
    yield from pod.status.container_statuses
    if init:
        yield from pod.status.init_container_statuses
    if ephemeral:
        yield from pod.status.ephemeral_container_statuses


def state_reasons(statuses: Iterable[ContainerStatus]) -> set[str]:
    """Return why containers wait or ended, as far as they say."""
    found = set()
    for status in statuses:
        if status.state.waiting is not None:
            found.add(status.state.waiting.reason)
        if status.state.terminated is not None:
            found.add(status.state.terminated.reason)
    return found - {""}


def exit_codes(statuses: Iterable[ContainerStatus]) -> set[int]:
    """Exit codes of the containers that have ended."""
    return {one.state.terminated.exit_code for one in statuses if one.state.terminated is not None}


def priority_key(pod: Pod) -> tuple[bool, int, int, bool]:
    """Lower goes first: no priority, low priority, low QoS, no wish to stay."""
    priority = pod.spec.priority
    return (
        priority is not None,
        priority or 0,
        KUBE_QOS_RANK[qos.kube(pod)],
        PREFER_NO_EVICTION in pod.metadata.annotations,
    )
