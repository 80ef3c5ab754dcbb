"""Apply ClusterColocationProfiles to a pod at creation (behaviour/manager 14.2, 14.3), or to one that exists already
and waits for a node (15): pure, JSON in, JSON out.

Pods stay JSON here, since the answer to admission must keep every field that we do not know. Unchanged parts are shared
with the input, so that finding out what changed costs what changed, not what there is.

A pod that waits is looked at again and again, so whatever is decided for it is decided alike each time: the draw
follows from who the profile and the pod are, and a suffix that a label has already is not appended again.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from koordinator.api import decode, labels, priority, qos
from koordinator.api.core import Pod
from koordinator.api.errors import KoordinatorError
from koordinator.api.groups import ClusterColocationProfile, PriorityClass
from koordinator.api.qos import QoSClass
from koordinator.cluster import strategic_merge
from koordinator.cluster.errors import ApiError
from koordinator.manager.profiles import extended_resources, profile_matching
from koordinator.manager.profiles.profile_matching import PROBABILITY_ALWAYS, CompiledProfile

Draw = Callable[[], int]
"""A random whole number in [0, 100)."""

FindPriorityClass = Callable[[str], PriorityClass | None]


class ProfileError(KoordinatorError):
    """A profile cannot be applied, so the pod is refused: which profile, which field, why."""

    def __init__(self, profile: str, field: str, reason: str) -> None:
        super().__init__(f"ClusterColocationProfile {profile}: {field}: {reason}")
        self.profile, self.field, self.reason = profile, field, reason


class ProfileOutcome(msgspec.Struct, frozen=True):
    """The pod after all profiles, the names of those really applied, in order, and what users should know."""

    pod: dict[str, Any]
    applied: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def mutate(
    pod: dict[str, Any],
    matching: Iterable[CompiledProfile],
    *,
    priority_class: FindPriorityClass,
    draw: Draw,
    skip_resources: bool = False,
) -> ProfileOutcome:
    """Return the pod as the profiles that it matches want it, in their order; `pod` itself stays as it was.

    `skip_resources` is the feature gate ColocationProfileSkipMutatingResources.

    Raises: ProfileError when a profile is broken or names an unknown PriorityClass; QuantityError for an
    amount that is none; msgspec.ValidationError when the result is no pod.
    """
    draft: _Draft | None = None
    applied = []
    skips = skip_resources
    matched = False
    for profile in matching:
        matched = True
        skips = skips or profile.skips_resources
        if not is_drawn(profile, draw):
            continue
        draft = draft or _Draft(pod, profile_matching.POD)
        draft.apply(profile, priority_class)
        applied.append(profile.name)
    if draft is not None:
        pod = draft.result()
    if not matched or skips:
        return ProfileOutcome(pod, tuple(applied))
    pod, warnings = extended_resources.translate_pod(pod, priority_class_of(pod))
    return ProfileOutcome(pod, tuple(applied), warnings)


def priority_class_of(pod: dict[str, Any]) -> priority.PriorityClass:
    """`priority.default` of a pod in JSON, which is decoded only when labels and number do not tell.

    Raises: msgspec.ValidationError when it is no pod.
    """
    own = (pod.get("metadata") or {}).get("labels") or {}
    label = own.get(labels.PRIORITY_CLASS)
    number = (pod.get("spec") or {}).get("priority")
    known = priority.of_name(label) if label is not None else priority.of_number(number)
    if known:
        return known
    if qos_class := qos.of_labels(own):
        return priority.PriorityClass.BATCH if qos_class is QoSClass.BE else priority.PriorityClass.PROD
    return priority.default(decode.from_builtins(pod, Pod))


def is_drawn(profile: CompiledProfile, draw: Draw) -> bool:
    """Return whether the profile applies this time, by its probability. Raises: ProfileError when it does and is
    broken."""
    percent = profile.percent
    drawn = percent == PROBABILITY_ALWAYS or (percent != 0 and draw() < percent)
    if drawn and profile.broken is not None:
        raise ProfileError(profile.name, profile.broken.field, profile.broken.reason)
    return drawn


def without_patch(profile: CompiledProfile) -> CompiledProfile:
    """Return the profile as if it had no `patch`."""
    spec = msgspec.structs.replace(profile.source.spec, patch=None)
    return msgspec.structs.replace(profile, source=msgspec.structs.replace(profile.source, spec=spec))


def apply_profile(
    obj: dict[str, Any],
    profile: CompiledProfile,
    priority_class: FindPriorityClass | None,
    shape: profile_matching.MergeShape = profile_matching.POD,
) -> dict[str, Any]:
    """Return the object with one profile applied, resources excepted; it itself stays as it was.

    `priority_class` None leaves scheduler and priority alone: those of a pod that exists already, and those
    of an object that is no pod.

    Raises: ProfileError.
    """
    draft = _Draft(obj, shape)
    draft.apply(profile, priority_class)
    return draft.result()


class _Draft:
    """An object while profiles are applied to it: what they change is copied once, all else is shared."""

    __slots__ = ("_annotations", "_labels", "_obj", "_shape", "_spec")

    def __init__(self, obj: dict[str, Any], shape: profile_matching.MergeShape) -> None:
        self._shape = shape
        self._take(obj)

    def _take(self, obj: dict[str, Any]) -> None:
        metadata = obj.get("metadata") or {}
        self._obj = obj
        self._labels: dict[str, str] = dict(metadata.get("labels") or {})
        self._annotations: dict[str, str] = dict(metadata.get("annotations") or {})
        self._spec: dict[str, Any] | None = None  # copied when it is first changed

    def apply(self, profile: CompiledProfile, priority_class: FindPriorityClass | None) -> None:
        """Raises: ProfileError."""
        spec = profile.source.spec
        own = self._labels
        own.update(spec.labels)
        self._annotations.update(spec.annotations)
        _map_keys(own, profile.label_keys)
        _map_keys(self._annotations, profile.annotation_keys)
        for key, suffix in spec.label_suffixes.items():
            if key in own:
                own[key] = (own[key] or "") + suffix
        if spec.qos_class:
            own[labels.QOS_CLASS] = spec.qos_class
        if spec.koordinator_priority is not None:
            own[labels.PRIORITY] = str(spec.koordinator_priority)
        if priority_class is not None:
            if spec.scheduler_name:
                self._own_spec()["schedulerName"] = spec.scheduler_name
            if spec.priority_class_name:
                _set_priority(self._own_spec(), profile, priority_class)
        if spec.patch:
            self._patch(profile)

    def _patch(self, profile: CompiledProfile) -> None:
        patch = profile.source.spec.patch
        if profile.has_plain_patch:
            self._take(profile_matching.merge_plain(self.result(), patch))
            return
        try:
            self._take(strategic_merge.merge(self.result(), patch, self._shape))
        except ApiError as error:
            raise ProfileError(profile.name, "spec.patch", str(error)) from error

    def _own_spec(self) -> dict[str, Any]:
        if self._spec is None:
            self._spec = dict(self._obj.get("spec") or {})
        return self._spec

    def result(self) -> dict[str, Any]:
        """Return the object as it is now; the draft is not used after it but for a patch."""
        metadata = dict(self._obj.get("metadata") or {})
        if self._labels:
            metadata["labels"] = self._labels
        if self._annotations:
            metadata["annotations"] = self._annotations
        result = {**self._obj, "metadata": metadata}
        if self._spec is not None:
            result["spec"] = self._spec
        return result


def _map_keys(values: dict[str, str], pairs: tuple[tuple[str, str], ...]) -> None:
    for source, target in pairs:
        values[target] = values.get(source) or ""


def _set_priority(
    pod_spec: dict[str, Any], profile: CompiledProfile, priority_class: FindPriorityClass
) -> None:
    name = profile.source.spec.priority_class_name
    found = priority_class(name)
    if found is None:
        reason = f'no PriorityClass "{name}" exists; create it first'
        raise ProfileError(profile.name, "spec.priorityClassName", reason)
    pod_spec["priorityClassName"] = name
    pod_spec["priority"] = found.value
    pod_spec.pop("preemptionPolicy", None)
    if found.preemption_policy:
        pod_spec["preemptionPolicy"] = found.preemption_policy


PENDING = "Pending"


def is_managed(profile: ClusterColocationProfile, *, by_default: bool) -> bool:
    """Return whether the profile is for pods that exist already, too."""
    return by_default or profile.metadata.labels.get(labels.CONTROLLER_MANAGED) == "true"


def waits(pod: Pod) -> bool:
    """Return whether a profile may still change the pod: it has no node, has not started and is not about to go."""
    return not pod.spec.node_name and pod.status.phase == PENDING and not pod.metadata.deletion_timestamp


def version(profile: ClusterColocationProfile) -> str:
    """Return which content a draw is for; labels and annotations of the profile do not change it."""
    metadata = profile.metadata
    return str(metadata.generation) if metadata.generation else metadata.resource_version


def steady_draw(seed: int, profile: ClusterColocationProfile, pod_uid: str) -> int:
    """Return a number in [0, 100), the same whenever it is asked for one pod and one version of a profile."""
    text = f"{seed}/{profile.metadata.uid}/{version(profile)}/{pod_uid}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % 100


def matches(
    profile: CompiledProfile, pod_labels: Mapping[str, str], namespace_labels: Mapping[str, str] | None
) -> bool:
    """Return whether both selectors hold. Unlike at creation a pod selector must be there, empty for all pods:
    nobody should change every pod of a cluster by leaving something out.

    `namespace_labels` None: the namespace is not known, which matches only profiles that do not ask for it.
    """
    if profile.unusable is not None or profile.source.spec.selector is None:
        return False
    if profile.selects_namespace is not None and (
        namespace_labels is None or not profile.selects_namespace(namespace_labels)
    ):
        return False
    return profile.selects is None or profile.selects(pod_labels)


def applied(obj: dict[str, Any], profile: CompiledProfile) -> dict[str, Any]:
    """Return the object as the profile wants it, except scheduler, priority class and resources.

    Applying it twice is applying it once: a label that contains a suffix counts as having it, mappings read
    what was there before it, and a chain of mappings (b to a, c to b) is followed to its end at once.
    Raises: ProfileError.
    """
    for _ in range(1 + len(profile.label_keys) + len(profile.annotation_keys)):
        result = _applied_once(obj, profile)
        if result == obj:
            break
        obj = result
    return obj


def _applied_once(obj: dict[str, Any], profile: CompiledProfile) -> dict[str, Any]:
    metadata = obj.get("metadata") or {}
    own: dict[str, str] = metadata.get("labels") or {}
    bare, tails = dict(own), {}
    for key, suffix in profile.source.spec.label_suffixes.items():
        before, found, after = (own.get(key) or "").rpartition(suffix) if suffix else ("", "", "")
        if found:
            bare[key], tails[key] = before, after
    stripped = {**obj, "metadata": {**metadata, "labels": bare}}
    result = apply_profile(stripped, profile, None)
    finished = (result.get("metadata") or {}).get("labels") or {}
    for key, after in tails.items():
        if after and finished.get(key) == own[key].removesuffix(after):
            finished[key] = own[key]  # another profile appended something behind our suffix
    return result


def metadata_patch(pod: Pod, profile: CompiledProfile) -> dict[str, Any]:
    """Return the merge patch for labels and annotations, {} when the pod has them; `patch` of the profile left out.

    Raises: ProfileError.
    """
    before = {"metadata": {"labels": pod.metadata.labels, "annotations": pod.metadata.annotations}}
    return difference(before, applied(before, without_patch(profile)))


def whole_patch(obj: dict[str, Any], profile: CompiledProfile) -> dict[str, Any]:
    """Return the merge patch for the whole pod, `patch` of the profile included. Raises: ProfileError."""
    return difference(obj, applied(obj, profile))


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON merge patch (RFC 7386) from one object to another; lists are replaced as a whole."""
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        have = old.get(key)
        if isinstance(have, Mapping) and isinstance(value, Mapping):
            if inner := difference(have, value):
                patch[key] = inner
        elif key not in old or have != value:
            patch[key] = value
    return patch
