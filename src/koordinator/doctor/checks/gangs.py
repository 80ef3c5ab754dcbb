"""Can gangs start: do their members exist, agree, and name what is there?

What the scheduler reads as "not said" (a malformed annotation, the second of two contradicting pods) is only found
here.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from koordinator.api import gang_labels, labels
from koordinator.api.annotations import placement
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.gang_labels import GangMatchPolicy, GangMode
from koordinator.api.meta import Object, named
from koordinator.api.network_topology import CLUSTER_LAYER, OBJECT_NAME, ClusterNetworkTopology
from koordinator.api.pod_labels import is_terminated
from koordinator.api.sigs import PodGroup
from koordinator.doctor.finding import Finding, edit, some_of
from koordinator.doctor.snapshot import ClusterSnapshot
from koordinator.scheduler.plugins.coscheduling.config import (
    GATHER_STRATEGIES,
    GangConfig,
    GangDefaults,
    from_pod,
    from_pod_group,
)

WAIT_S = 600.0
"""Members of a gang may arrive over minutes."""
POD_WAIT_S = 60.0
"""A pod that waits for less may still be on its way."""
OVER = ("Finished", "Failed")
_IGNORED = "an invalid value is ignored: the gang is scheduled as if the field were not set"
_WAYS = (
    ("label", labels.POD_GROUP),
    ("label", labels.DEPRECATED_POD_GROUP),
    ("annotation", labels.GANG_NAME),
)


class Seen(msgspec.Struct):
    """A gang as objects tell of it."""

    gang_id: str
    group: PodGroup | None = None
    pods: list[Pod] = []

    @property
    def title(self) -> str:
        """Return its name in findings."""
        return named(self.group) if self.group is not None else f"gang {self.gang_id}"

    @property
    def waiting(self) -> list[Pod]:
        """Members without a node."""
        return [pod for pod in self.pods if not pod.spec.node_name and not is_terminated(pod)]

    @property
    def config(self) -> GangConfig | None:
        """Return the configuration as the scheduler reads it; None when nobody describes the gang."""
        if self.group is not None:
            return from_pod_group(self.group, GangDefaults())
        described = (from_pod(pod, GangDefaults()) for pod in self.pods)
        return next((found for found in described if found is not None), None)


def check(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Gang by gang, then groups of gangs and what gangs want of the network."""
    gangs = _gangs(snapshot)
    for gang in gangs.values():
        yield from _members(snapshot, gang)
        yield from _agreement(gang)
        yield from _said(gang)
        yield from _network(snapshot, gang)
    yield from _orphans(snapshot, gangs)
    yield from _groups(gangs)


def _gangs(snapshot: ClusterSnapshot) -> dict[str, Seen]:
    found = {group.key: Seen(group.key, group, []) for group in snapshot.of(PodGroup)}
    for pod in snapshot.of(Pod):
        meta = pod.metadata
        name = gang_labels.gang_name(meta.labels, meta.annotations)
        if name:
            gang_id = f"{meta.namespace}/{name}"
            found.setdefault(gang_id, Seen(gang_id, None, [])).pods.append(pod)
    return dict(sorted(found.items()))


def _edit(gang: Seen) -> str:
    if gang.group is not None:
        return edit(gang.group)
    return f"correct the template of pod {min(pod.key for pod in gang.pods)}"


# Members


def _members(snapshot: ClusterSnapshot, gang: Seen) -> Iterator[Finding]:
    """Too few of them, or more asked for than there will ever be."""
    config = gang.config
    if config is None:
        return
    namespace, _, name = gang.gang_id.partition("/")
    group = gang.group
    if group is not None and config.minimum < 1:
        yield Finding.warning(
            group,
            f"spec.minMember is {config.minimum}",
            why="without a minimum its pods are placed one by one, like pods without a gang",
            do=(_edit(gang),),
        )
    if group is not None and not gang.pods and group.status.phase not in OVER:
        if snapshot.age_s(group) > WAIT_S:
            yield Finding.warning(
                group,
                "it has no pods: none was created, or all were deleted",
                why="gangs that name it in their group wait for it",
                do=(
                    f"kubectl -n {namespace} get pods -l {labels.POD_GROUP}={name}    # the label that its pods need",
                    f"kubectl -n {namespace} delete podgroup {name}    # if it is unused",
                ),
            )
        return
    oldest_s = max((snapshot.age_s(pod) for pod in gang.waiting), default=0.0)
    if len(gang.pods) < config.minimum and oldest_s > WAIT_S:
        yield Finding.error(
            gang.title,
            f"it needs {config.minimum} pods to start, but had only {len(gang.pods)} for {oldest_s / 60:.0f} minutes",
            why="no member is scheduled until all of them exist",
            do=("look at the controller that creates its pods: quotas, refusals by webhooks", _edit(gang)),
        )
    total = _total_of(gang)
    if 0 < total < config.minimum:
        yield Finding.warning(
            gang.title,
            f"it needs {config.minimum} pods to start, but its {labels.GANG_TOTAL_NUMBER} is {total}",
            why="with that many pods it never starts; the scheduler does not use the total number itself",
            do=(_edit(gang),),
        )


def _total_of(gang: Seen) -> int:
    """Return what is said of the number of its members; 0 for nothing."""
    sources: list[Object] = [gang.group] if gang.group is not None else list(gang.pods)
    for source in sources:
        try:
            if total := gang_labels.total_number(source.metadata.annotations):
                return total
        except ProtocolError:
            continue  # told with the other annotations that cannot be read
    return 0


def _orphans(snapshot: ClusterSnapshot, gangs: Mapping[str, Seen]) -> Iterator[Finding]:
    """Yield pods of a PodGroup that does not exist."""
    for gang in gangs.values():
        if gang.group is not None:
            continue
        orphans = [
            pod.key
            for pod in gang.waiting
            if pod.metadata.labels.get(labels.POD_GROUP) and snapshot.age_s(pod) > POD_WAIT_S
        ]
        if orphans:
            namespace, _, name = gang.gang_id.partition("/")
            yield Finding.error(
                ("Pod", orphans),
                f"its label {labels.POD_GROUP} names PodGroup {gang.gang_id}, which does not exist",
                why="it stays gated until the PodGroup exists, which says how many members the gang needs",
                do=(f"kubectl -n {namespace} get podgroups", f"create PodGroup {name}, or correct the label"),
            )


def _agreement(gang: Seen) -> Iterator[Finding]:
    """Yield members that ask for different schedulers, name the gang in different ways, or describe it differently."""
    if gang.waiting:
        schedulers = _counted(gang.pods, lambda pod: pod.spec.scheduler_name)
        if len(schedulers) > 1:
            yield Finding.error(
                gang.title,
                f"its pods name different schedulers: {_listed(schedulers)}",
                why="a scheduler places only its own pods, so they wait forever for those of other schedulers",
                do=("set the same spec.schedulerName in all templates of the gang",),
            )
    namings = _counted(gang.pods, _naming)
    if len(namings) > 1:
        yield Finding.warning(
            gang.title,
            f"its pods name their gang in different ways: {_listed(namings)}",
            why="settings of pods without the PodGroup label may apply or not, depending on which pod is seen first",
            do=(f"use label {labels.POD_GROUP} in all templates of the gang",),
        )
    others = [pod.key for pod in gang.pods if len(set(_names(pod))) > 1]
    if others:
        yield Finding.warning(
            ("Pod", others),
            f"it names several gangs; only {gang.gang_id} is used",
            why="the other gangs wait for a member that they never get",
            do=(
                f"kubectl -n {gang.pods[0].metadata.namespace} describe pod    # keep the label or the annotation",
            ),
        )
    described = [pod for pod in gang.pods if not pod.metadata.labels.get(labels.POD_GROUP)]
    if gang.group is None:
        said = _counted(described, lambda pod: pod.metadata.annotations.get(labels.GANG_MIN_AVAILABLE, ""))
        if len(said) > 1:
            yield Finding.warning(
                gang.title,
                f"its pods have different values of {labels.GANG_MIN_AVAILABLE}: {_listed(said)}",
                why="the pod that is seen first decides, and after a restart that may be another pod",
                do=(_edit(gang), "or describe the gang in a PodGroup"),
            )


def _counted(pods: Iterable[Pod], of: Callable[[Pod], str]) -> dict[str, int]:
    return dict(sorted(Counter(map(of, pods)).items()))


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{text or 'nothing'} ({count})" for text, count in counts.items())


def _naming(pod: Pod) -> str:
    meta = pod.metadata
    kind, key = next(
        (kind, key) for kind, key in _WAYS if (meta.labels if kind == "label" else meta.annotations).get(key)
    )
    return f"{kind} {key}"


def _names(pod: Pod) -> list[str]:
    meta = pod.metadata
    texts = (meta.labels if kind == "label" else meta.annotations for kind, _ in _WAYS)
    return [name for (_, key), text in zip(_WAYS, texts, strict=True) if (name := text.get(key))]


# What is said of a gang


def _said(gang: Seen) -> Iterator[Finding]:
    """Annotations that are not understood, each told once per gang."""
    if gang.group is not None:
        for reason in _unreadable(gang.group.metadata.annotations):
            yield Finding.warning(gang.group, reason, why=_IGNORED, do=(_edit(gang),))
        return
    described = [pod for pod in gang.pods if not pod.metadata.labels.get(labels.POD_GROUP)]
    problems: dict[str, list[str]] = {}
    for pod in described:
        for reason in _unreadable(pod.metadata.annotations, waiting_time=True):
            problems.setdefault(reason, []).append(pod.key)
    for reason, pods in sorted(problems.items()):
        yield Finding.warning(("Pod", pods), reason, why=_IGNORED, do=(_edit(gang),))
    unknown: dict[str, list[str]] = {}
    for pod in described if gang.config is None else ():
        try:
            gang_labels.min_available(pod.metadata.labels, pod.metadata.annotations)
        except ProtocolError as error:
            unknown.setdefault(_reason(error), []).append(pod.key)
    for reason, pods in sorted(unknown.items()):
        yield Finding.error(
            ("Pod", pods),
            reason,
            why=f"the minimum number of members of gang {gang.gang_id} is not set, so none of them is scheduled",
            do=(_edit(gang), "or describe the gang in a PodGroup"),
        )


def _unreadable(annotations: Mapping[str, str], *, waiting_time: bool = False) -> Iterator[str]:
    readers: list[Callable[[Mapping[str, str]], Any]] = [
        gang_labels.total_number,
        gang_labels.groups,
        placement.NETWORK_TOPOLOGY_SPEC.read,
    ]
    if waiting_time:
        readers.append(gang_labels.waiting_time_s)
    for read in readers:
        try:
            read(annotations)
        except ProtocolError as error:
            yield _reason(error)
    modes, policies = [each.value for each in GangMode], [each.value for each in GangMatchPolicy]
    mode, policy = annotations.get(labels.GANG_MODE, ""), gang_labels.match_policy(annotations)
    if mode and mode not in modes:
        yield f"{labels.GANG_MODE}: {mode} is none of {', '.join(modes)}"
    if policy and policy not in policies:
        yield f"{labels.GANG_MATCH_POLICY}: {policy} is none of {', '.join(policies)}"


def _reason(error: ProtocolError) -> str:
    """Without the object, which the finding names itself."""
    return f"{error.field}: {error.reason}"


# Groups of gangs


def _groups(gangs: Mapping[str, Seen]) -> Iterator[Finding]:
    """Yield a gang group that names gangs that are not there, or that do not name it."""
    configs = {gang_id: gang.config for gang_id, gang in gangs.items()}
    for gang_id, gang in gangs.items():
        config = configs[gang_id]
        if config is None or not (gang.waiting or gang.group is not None):
            continue
        missing = [other for other in config.group if other not in gangs]
        if missing:
            yield Finding.error(
                gang.title,
                f"its group names {some_of(missing)}, which does not exist",
                why="the gangs of a group are placed together, once all of them exist",
                do=(_edit(gang), f"name gangs as namespace/name in {labels.GANG_GROUPS}"),
            )
        different = [
            other
            for other in config.group
            if (theirs := configs.get(other)) is not None and theirs.group != config.group
        ]
        if gang_id not in config.group:
            different.append(gang_id)
        if different:
            yield Finding.warning(
                gang.title,
                f"its group is {', '.join(config.group)}, but {some_of(different)} names another group",
                why="gangs are placed together only if each names the same gangs, including itself",
                do=(_edit(gang), f"set on all of them the same {labels.GANG_GROUPS}"),
            )


# The network


def _network(snapshot: ClusterSnapshot, gang: Seen) -> Iterator[Finding]:
    """Layers of the network that do not exist."""
    spec = gang.config.topology if gang.config is not None else None
    if spec is None or not snapshot.knows(ClusterNetworkTopology):
        return
    topology = snapshot.find(ClusterNetworkTopology, OBJECT_NAME)
    if topology is None:
        yield Finding.warning(
            gang.title,
            f"it requires network topology, but there is no ClusterNetworkTopology {OBJECT_NAME}",
            why="the gang is placed anywhere or, by a scheduler that is aware of the network topology, not at all",
            do=("kubectl get clusternetworktopologies",),
        )
        return
    if odd := sorted({rule.strategy for rule in spec.gather_strategy} - set(GATHER_STRATEGIES)):
        yield Finding.warning(
            gang.title,
            f"its network topology has unknown strategies: {', '.join(odd)}",
            why=f"strategies are {' or '.join(GATHER_STRATEGIES)}; others are ignored",
            do=(_edit(gang),),
        )
    known = {CLUSTER_LAYER, *(each.topology_layer for each in topology.spec.network_topology_spec)}
    unknown = sorted({rule.layer for rule in spec.gather_strategy} - known)
    if unknown:
        yield Finding.error(
            gang.title,
            f"it requires network layers that do not exist: {', '.join(unknown)}",
            why=f"the layers are {', '.join(sorted(known))}; the gang cannot be placed by any other",
            do=(_edit(gang), edit(topology)),
        )
