"""What ClusterColocationProfiles make of a pod at creation (spec 02 §14.2, §14.3): pure, JSON in, JSON out.

Pods stay JSON here, since the answer to admission must keep every field that we do not know.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from koordinator.api import decode, label_selector, labels, priority
from koordinator.api.config_group import ClusterColocationProfile
from koordinator.api.core import Pod
from koordinator.api.errors import KoordinatorError, ProtocolError
from koordinator.api.scheduling import PriorityClass
from koordinator.cluster.errors import ApiError
from koordinator.manager import extended_resources, pod_patch

PROBABILITY_ALWAYS = 100

Draw = Callable[[], int]
"""A random whole number in [0, 100)."""


class ProfileError(KoordinatorError):
    """A profile cannot be applied, so the pod is refused: which profile, which field, why."""

    def __init__(self, profile: str, field: str, reason: str) -> None:
        super().__init__(f"ClusterColocationProfile {profile}: {field}: {reason}")
        self.profile, self.field, self.reason = profile, field, reason


class ProfileOutcome(msgspec.Struct, frozen=True):
    """The pod after all profiles, and their names, in order of application: matched and really applied."""

    pod: dict[str, Any]
    matched: tuple[str, ...]
    applied: tuple[str, ...]


def mutate(
    pod: dict[str, Any],
    profiles: Sequence[ClusterColocationProfile],
    *,
    namespace_labels: Mapping[str, str] | None,
    priority_classes: Mapping[str, PriorityClass],
    draw: Draw,
    skip_resources: bool = False,
) -> ProfileOutcome:
    """The pod as the matching profiles want it; `pod` itself stays as it was.

    `namespace_labels` is None when the namespace could not be looked up. `skip_resources` is the feature gate
    ColocationProfileSkipMutatingResources.

    Raises: ProfileError when a profile names an unknown PriorityClass or a malformed probability;
    msgspec.ValidationError when the result is no pod.
    """
    pod_labels = (pod.get("metadata") or {}).get("labels") or {}
    matching = [
        profile
        for profile in sorted(profiles, key=lambda p: p.metadata.name)
        if profile_matches(profile, pod_labels, namespace_labels)
    ]
    applied = []
    for profile in matching:
        if is_drawn(profile, draw):
            pod = apply_profile(pod, profile, priority_classes)
            applied.append(profile.metadata.name)
    skips = skip_resources or any(
        labels.SKIP_UPDATE_RESOURCES in profile.metadata.annotations for profile in matching
    )
    if matching and not skips:
        pod = extended_resources.translate_pod(pod, priority.default(decode.from_builtins(pod, Pod)))
    return ProfileOutcome(pod, tuple(p.metadata.name for p in matching), tuple(applied))


def profile_matches(
    profile: ClusterColocationProfile,
    pod_labels: Mapping[str, str],
    namespace_labels: Mapping[str, str] | None,
) -> bool:
    """Whether both selectors hold; an absent one always does.

    As in the reference, an invalid selector or a namespace that could not be looked up counts as a match: a
    pod that should be co-located must not silently become an ordinary one.
    """
    spec = profile.spec
    try:
        in_namespace = (
            spec.namespace_selector is None
            or namespace_labels is None
            or label_selector.matches(spec.namespace_selector, namespace_labels)
        )
        return in_namespace and (spec.selector is None or label_selector.matches(spec.selector, pod_labels))
    except ProtocolError:
        return True


def is_drawn(profile: ClusterColocationProfile, draw: Draw) -> bool:
    """Whether the profile applies to this pod by its probability.

    The comparison is the reference's: P applies to P+1 of 100 draws. Raises: ProfileError.
    """
    percent = _probability(profile)
    if percent == 0:
        return False
    return percent == PROBABILITY_ALWAYS or draw() <= percent


def _probability(profile: ClusterColocationProfile) -> int:
    value = profile.spec.probability
    if value is None:
        return PROBABILITY_ALWAYS
    if isinstance(value, int):
        return value
    digits = value.removesuffix("%")
    if digits == value or not digits.lstrip("+-").isdecimal():
        raise ProfileError(profile.metadata.name, "spec.probability", f"{value!r} is neither a number nor N%")
    return int(digits)


def apply_profile(
    pod: dict[str, Any],
    profile: ClusterColocationProfile,
    priority_classes: Mapping[str, PriorityClass] | None,
) -> dict[str, Any]:
    """The pod with one profile applied, resources excepted.

    `priority_classes` None means a pod that exists already: its scheduler and priority stay.

    Raises: ProfileError.
    """
    spec = profile.spec
    result = {**pod, "metadata": _metadata(pod.get("metadata") or {}, profile)}
    if priority_classes is not None:
        pod_spec = dict(pod.get("spec") or {})
        if spec.scheduler_name:
            pod_spec["schedulerName"] = spec.scheduler_name
        if spec.priority_class_name:
            _set_priority(pod_spec, profile, priority_classes)
        result["spec"] = pod_spec
    if spec.patch:
        try:
            result = pod_patch.merge(result, spec.patch)
        except ApiError as error:
            raise ProfileError(profile.metadata.name, "spec.patch", str(error)) from error
    return result


def _metadata(metadata: Mapping[str, Any], profile: ClusterColocationProfile) -> dict[str, Any]:
    spec = profile.spec
    pod_labels = dict(metadata.get("labels") or {})
    annotations = dict(metadata.get("annotations") or {})
    pod_labels.update(spec.labels)
    annotations.update(spec.annotations)
    # Sorted, so that chained mappings (a to b, b to c) have one outcome.
    for source, target in sorted(spec.label_keys_mapping.items()):
        pod_labels[target] = pod_labels.get(source, "")
    for source, target in sorted(spec.annotation_keys_mapping.items()):
        annotations[target] = annotations.get(source, "")
    for key, suffix in spec.label_suffixes.items():
        if key in pod_labels:
            pod_labels[key] += suffix
    if spec.qos_class:
        pod_labels[labels.QOS_CLASS] = spec.qos_class
    if spec.koordinator_priority is not None:
        pod_labels[labels.PRIORITY] = str(spec.koordinator_priority)
    changed = {"labels": pod_labels, "annotations": annotations}
    return {**metadata, **{key: value for key, value in changed.items() if value}}


def _set_priority(
    pod_spec: dict[str, Any],
    profile: ClusterColocationProfile,
    priority_classes: Mapping[str, PriorityClass],
) -> None:
    name = profile.spec.priority_class_name
    found = priority_classes.get(name)
    if found is None:
        raise ProfileError(
            profile.metadata.name,
            "spec.priorityClassName",
            f'no PriorityClass "{name}" exists; create it first',
        )
    pod_spec["priorityClassName"] = name
    pod_spec["priority"] = found.value
    pod_spec.pop("preemptionPolicy", None)
    if found.preemption_policy:
        pod_spec["preemptionPolicy"] = found.preemption_policy


def reconcile_pending(
    pod: dict[str, Any], profile: ClusterColocationProfile, *, draw: Draw
) -> dict[str, Any]:
    """A listed pod after the profile controller: without scheduler, priority and resources.

    Pods that have a node or have started stay as they are. Source: spec 02 §15. Raises: ProfileError.
    """
    waits = (pod.get("status") or {}).get("phase") == "Pending" and not (pod.get("spec") or {}).get(
        "nodeName"
    )
    pod_labels = (pod.get("metadata") or {}).get("labels") or {}
    if not waits or not profile_matches(profile, pod_labels, None) or not is_drawn(profile, draw):
        return pod
    return apply_profile(pod, profile, None)
