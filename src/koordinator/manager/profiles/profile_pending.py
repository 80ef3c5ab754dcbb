"""Apply a ClusterColocationProfile to a pod that exists already and waits for a node (behaviour/manager 15): pure.

The same pod is looked at again and again, so whatever is decided here is decided alike each time: the draw
follows from who the profile and the pod are, and a suffix that a label has already is not appended again.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from koordinator.api import labels
from koordinator.api.config_group import ClusterColocationProfile
from koordinator.api.core import Pod
from koordinator.manager.profiles import colocation_profile
from koordinator.manager.profiles.profile_matching import CompiledProfile

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


def draw(seed: int, profile: ClusterColocationProfile, pod_uid: str) -> int:
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
    result = colocation_profile.apply_profile(stripped, profile, None)
    finished = (result.get("metadata") or {}).get("labels") or {}
    for key, after in tails.items():
        if after and finished.get(key) == own[key].removesuffix(after):
            finished[key] = own[key]  # another profile appended something behind our suffix
    return result


def metadata_patch(pod: Pod, profile: CompiledProfile) -> dict[str, Any]:
    """Return the merge patch for labels and annotations, {} when the pod has them; `patch` of the profile left out.

    Raises: ProfileError.
    """
    plain = msgspec.structs.replace(
        profile,
        source=msgspec.structs.replace(
            profile.source, spec=msgspec.structs.replace(profile.source.spec, patch=None)
        ),
    )
    before = {"metadata": {"labels": pod.metadata.labels, "annotations": pod.metadata.annotations}}
    return difference(before, applied(before, plain))


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
