"""Share code among the stock strategies. Pure. Source: behaviour/descheduler 12.0 and 12.2."""

from collections.abc import Callable, Iterable, Iterator

from koordinator.api import qos
from koordinator.api.affinity import LabelSelector
from koordinator.api.core import ContainerStatus, Pod
from koordinator.api.meta import ViewPart
from koordinator.descheduler import facts, pod_filter
from koordinator.descheduler.facts import KUBE_QOS_RANK
from koordinator.descheduler.pod_filter import Namespaces

PREFER_NO_EVICTION = "descheduler.alpha.kubernetes.io/prefer-no-eviction"

MayEvict = Callable[[Pod], bool]


class CommonArgs(ViewPart, frozen=True, kw_only=True):
    """The options that limit which pods a strategy looks at."""

    namespaces: Namespaces | None = None
    label_selector: LabelSelector | None = None


def selection(args: CommonArgs, may_evict: MayEvict) -> MayEvict:
    """Namespace, label selector and profile filter. Raises: ProtocolError for a bad selector."""
    pod_filter.check_namespaces(args.namespaces, "namespaces")
    return pod_filter.compose(args.namespaces, (), may_evict, args.label_selector)


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
