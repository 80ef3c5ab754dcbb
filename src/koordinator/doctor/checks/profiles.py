"""Are the four PriorityClasses there, with their numbers, and do ClusterColocationProfiles name what exists, match
anything, and agree with each other?"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from koordinator.api import label_selector, priority, qos
from koordinator.api.affinity import LabelSelector
from koordinator.api.core import Namespace, Pod
from koordinator.api.groups import ClusterColocationProfile, PriorityClass
from koordinator.api.labels import SKIP_UPDATE_RESOURCES
from koordinator.api.meta import wire_name
from koordinator.api.pod_resources import FORBIDDEN_PRIORITIES
from koordinator.api.priority import BANDS
from koordinator.doctor.checks import pods
from koordinator.doctor.finding import Finding, FindingSeverity, edit
from koordinator.doctor.snapshot import ClusterSnapshot
from koordinator.manager.profiles import profile_matching
from koordinator.manager.profiles.profile_matching import Profiles

PROFILES_COMPARED_MAX = 200
"""Pairs grow with the square: some 20,000 then."""


class _Reach(msgspec.Struct, frozen=True):
    """The existing namespaces and groups of pods (by position) that a profile matches."""

    profile: ClusterColocationProfile
    namespaces: frozenset[str]
    groups: set[int]


def check(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Profiles that refuse every pod, that do nothing, or that contradict each other."""
    sound = []
    running = pods.running(snapshot)
    for profile in snapshot.of(ClusterColocationProfile):
        broken = list(_broken(snapshot, profile, running))
        yield from broken
        if not any(each.severity is FindingSeverity.ERROR for each in broken):
            sound.append(profile)
    if not snapshot.knows(Namespace):
        return
    sizes, reaches = _reaches(snapshot, sound[:PROFILES_COMPARED_MAX])
    for reach in reaches:
        if not reach.namespaces:
            yield Finding.warning(
                reach.profile,
                "namespaceSelector matches no namespace that the webhooks cover",
                why="the profile has no effect",
                do=("kubectl get namespaces --show-labels", edit(reach.profile)),
            )
    yield from _contradictions(reaches, sizes)


def _broken(
    snapshot: ClusterSnapshot, profile: ClusterColocationProfile, running: set[str] | None
) -> Iterator[Finding]:
    spec = profile.spec
    compiled = profile_matching.compile_profile(profile)
    for defect, why in ((compiled.unusable, _REACHES_NOBODY), (compiled.broken, _REFUSES)):
        if defect is not None:
            yield Finding.error(profile, str(defect), why=why, do=(edit(profile),))
    yield from _priority(snapshot, profile)
    if spec.scheduler_name and running is not None and spec.scheduler_name not in running:
        yield Finding.error(
            profile,
            f"spec.schedulerName: no scheduler runs as {spec.scheduler_name} (running: "
            f"{', '.join(sorted(running))})",
            why="its pods stay Pending, without any event",
            do=(edit(profile),),
        )


_REFUSES = "every pod that the profile matches is refused"
_REACHES_NOBODY = "the selector is invalid, so the profile matches no pod"


def _priority(snapshot: ClusterSnapshot, profile: ClusterColocationProfile) -> Iterator[Finding]:
    spec = profile.spec
    if not spec.priority_class_name or not snapshot.knows(PriorityClass):
        return
    found = snapshot.find(PriorityClass, spec.priority_class_name)
    if found is None:
        yield Finding.error(
            profile,
            f"spec.priorityClassName: no PriorityClass {spec.priority_class_name} exists",
            why=_REFUSES,
            do=(f"kubectl create priorityclass {spec.priority_class_name} --value=NUMBER", edit(profile)),
        )
        return
    qos_class, means = qos.of_name(spec.qos_class), priority.of_number(found.value)
    if means in FORBIDDEN_PRIORITIES.get(qos_class, ()):
        yield Finding.error(
            profile,
            f"spec: qosClass {qos_class} and priorityClassName {spec.priority_class_name} "
            f"({means or 'no class'}) cannot be used in combination",
            why=_REFUSES,
            do=(edit(profile),),
        )
    elif (
        means in (priority.PriorityClass.BATCH, priority.PriorityClass.MID)
        and SKIP_UPDATE_RESOURCES in profile.metadata.annotations
    ):
        yield Finding.notice(
            profile,
            f"annotation {SKIP_UPDATE_RESOURCES}: its pods keep requesting cpu and memory",
            why=f"they use resources that services may request, not the {means} resources of nodes",
        )


def _reaches(
    snapshot: ClusterSnapshot, profiles: Sequence[ClusterColocationProfile]
) -> tuple[list[int], list[_Reach]]:
    """Sizes of the groups of pods (same namespace, same labels: mostly a workload each), and who matches what."""
    watched = {name: found for name, found in snapshot.namespace_labels.items() if snapshot.is_watched(name)}
    found = {}
    for profile in profiles:
        selector = profile.spec.namespace_selector
        names = (
            name
            for name, labels in watched.items()
            if selector is None or label_selector.matches(selector, labels)
        )
        found[profile.metadata.name] = _Reach(profile, frozenset(names), set())
    groups: Counter[tuple[str, frozenset[tuple[str, str]]]] = Counter(
        (pod.metadata.namespace, frozenset(pod.metadata.labels.items()))
        for pod in snapshot.of(Pod)
        if pod.metadata.namespace in watched
    )
    compiled = Profiles(profile_matching.compile_profile(profile) for profile in profiles)
    for index, (namespace, labels) in enumerate(groups):
        for match in compiled.matching(dict(labels), namespace, watched[namespace]):
            found[match.name].groups.add(index)
    return list(groups.values()), list(found.values())


def _contradictions(reaches: Sequence[_Reach], sizes: Sequence[int]) -> Iterator[Finding]:
    """Pairs that meet and want different things; the later name wins."""
    for one, other in itertools.combinations(sorted(reaches, key=lambda each: each.profile.metadata.name), 2):
        fields = _differences(one.profile, other.profile)
        if fields and (where := _meet(one, other, sizes)):
            # A profile for all pods of a namespace, and others for some of them, are mostly meant like that.
            severity = FindingSeverity.NOTICE if _is_open(one) != _is_open(other) else FindingSeverity.WARNING
            yield Finding.of(
                severity,
                other.profile,
                f"contradicts {one.profile.metadata.name} in {', '.join(fields)}, {where}",
                why=f"both are applied in the order of their names, so {other.profile.metadata.name} wins",
                do=("change the selector of one of them", edit(other.profile)),
            )


def _differences(one: ClusterColocationProfile, other: ClusterColocationProfile) -> list[str]:
    """Return members that both set, to different values."""
    fields = ("qos_class", "priority_class_name", "scheduler_name", "koordinator_priority")
    values = ((name, getattr(one.spec, name), getattr(other.spec, name)) for name in fields)
    return [f"{wire_name(name)} ({a} / {b})" for name, a, b in values if a and b and a != b]


def _meet(one: _Reach, other: _Reach, sizes: Sequence[int]) -> str:
    """Return where both apply, as far as one can know; empty when nothing shows that they do."""
    shared = sorted(one.namespaces & other.namespaces)
    if not shared:
        return ""
    if _is_open(one) and _is_open(other):
        return f"for all pods of namespace {shared[0]}"
    if one.profile.spec.selector == other.profile.spec.selector:
        return f"with the same selector, in namespace {shared[0]}"
    if _is_open(one) or _is_open(other):
        return f"for pods of namespace {shared[0]} that its selector matches"
    both = sum(sizes[index] for index in one.groups & other.groups)
    return f"for {both} of the pods that exist now" if both else ""


def _is_open(reach: _Reach) -> bool:
    """Return whether it takes every pod of its namespaces."""
    return reach.profile.spec.selector is None or reach.profile.spec.selector == LabelSelector()


def check_priority_classes(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Missing ones, ones outside of their band, and a default that makes ordinary pods batch pods."""
    for name, (lowest, highest) in BANDS.items():
        found = snapshot.find(PriorityClass, name.value)
        if found is None:
            yield Finding.error(
                f"PriorityClass {name.value}",
                "missing",
                why="pods and profiles that name it are refused",
                do=(_create(name.value, lowest),),
            )
        elif not lowest <= found.value <= highest:
            means = priority.of_number(found.value)
            yield Finding.error(
                found,
                f"value {found.value} is outside of {lowest} to {highest}",
                why=f"its pods count as {means.value or 'pods without a class'}, not as {name.value}: they are placed, "
                "suppressed and evicted as such",
                do=(
                    f"kubectl delete priorityclass {name.value}    # its value cannot be changed",
                    _create(name.value, lowest),
                ),
            )
    for each in snapshot.of(PriorityClass):
        means = priority.of_number(each.value)
        if each.global_default and means not in (priority.PriorityClass.NONE, priority.PriorityClass.PROD):
            yield Finding.warning(
                each,
                f"is the global default, with value {each.value} in the range of {means.value}",
                why=f"every pod without a priority class counts as {means.value}",
                do=(f"kubectl patch priorityclass {each.metadata.name} -p '{{\"globalDefault\": false}}'",),
            )


def _create(name: str, value: int) -> str:
    return f"kubectl create priorityclass {name} --value={value}"
