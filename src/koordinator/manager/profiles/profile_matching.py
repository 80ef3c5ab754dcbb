"""Find the ClusterColocationProfiles that an object matches (behaviour/manager 14.2): pure.

Profiles are compiled when they change and not when a pod comes. Of many profiles only those are asked that want a label
which the pod has, so that a profile for others costs a pod nothing.

Strategic merge patches on pods and Reservations (profiles' `patch`) are for clients without a schema.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from koordinator.api import decode, label_selector, labels
from koordinator.api.affinity import LabelSelector
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.groups import ClusterColocationProfile
from koordinator.api.label_selector import Predicate
from koordinator.cluster import strategic_merge
from koordinator.cluster.errors import ApiError

_MERGE = ("merge",)
_MERGE_AND_RETAIN = ("merge", "retainKeys")


class MergeShape(msgspec.Struct, frozen=True):
    """The merge rules below one object of a pod; a list has the shape of its elements in `element`."""

    members: Mapping[str, "PodMember"] = {}
    element: "MergeShape | None" = None

    def member(self, key: str) -> "PodMember":
        """Members that the table does not have are replaced (lists) or merged (objects)."""
        return self.members.get(key, _UNKNOWN)


class PodMember(msgspec.Struct, frozen=True):
    """The merge rules of one member."""

    type: MergeShape = MergeShape(element=MergeShape())
    strategies: tuple[str, ...] = ()
    merge_key: str = ""


_UNKNOWN = PodMember()


def _keyed(key: str, element: MergeShape | None = None, *, retain: bool = False) -> PodMember:
    """Return a list of objects that merge by `key`."""
    strategies = _MERGE_AND_RETAIN if retain else _MERGE
    return PodMember(MergeShape(element=element or MergeShape()), strategies, key)


# Lists that merge by a key, as Kubernetes' API reference states them (patchMergeKey).
_CONTAINER = MergeShape(
    {
        "env": _keyed("name"),
        "ports": _keyed("containerPort"),
        "volumeDevices": _keyed("devicePath"),
        "volumeMounts": _keyed("mountPath"),
    }
)
_METADATA = MergeShape(
    {
        "finalizers": PodMember(strategies=_MERGE),
        "ownerReferences": _keyed("uid"),
    }
)
_SPEC = MergeShape(
    {
        "containers": _keyed("name", _CONTAINER),
        "ephemeralContainers": _keyed("name", _CONTAINER),
        "hostAliases": _keyed("ip"),
        "imagePullSecrets": _keyed("name"),
        "initContainers": _keyed("name", _CONTAINER),
        "resourceClaims": _keyed("name", retain=True),
        "schedulingGates": _keyed("name"),
        "topologySpreadConstraints": _keyed("topologyKey"),
        "volumes": _keyed("name", retain=True),
    }
)
POD = MergeShape({"metadata": PodMember(_METADATA), "spec": PodMember(_SPEC)})
RESERVATION = MergeShape(
    {"metadata": PodMember(_METADATA), "spec": PodMember(MergeShape({"template": PodMember(POD)}))}
)


def is_plain(patch: Any) -> bool:
    """Return whether a patch has members and values only: no lists, no nulls, no directives."""
    if isinstance(patch, dict):
        return all(not key.startswith("$") and is_plain(value) for key, value in patch.items())
    return patch is not None and not isinstance(patch, list)


def merge_plain(obj: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Return what `strategic_merge` makes with a plain patch, whatever the shape, in a fifth of the time.

    Most patches are plain.
    """
    result = dict(obj)
    for key, value in patch.items():
        if isinstance(value, dict):
            old = result.get(key)
            result[key] = merge_plain(old if isinstance(old, dict) else {}, value)
        else:
            result[key] = value
    return result


PROBABILITY_ALWAYS = 100

# Namespaces that are remembered with the profiles that select them; when there are more, all are asked anew.
NAMESPACES_MAX = 10_000

_PERCENT = re.compile(r"([+-]?[0-9]{1,9})%")

_Pair = tuple[str, str]


class ProfileProblem(msgspec.Struct, frozen=True):
    """The flaw of a profile: the field, and why."""

    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


class CompiledProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A profile, ready to be asked and applied.

    One that is `unusable` has a selector that says nothing, and matches nobody. One that is `broken` refuses
    the pods that it matches, since it promises something that it cannot keep.
    """

    source: ClusterColocationProfile
    name: str
    selects: Predicate | None
    """None for everything."""
    selects_namespace: Predicate | None
    alternatives: tuple[tuple[_Pair, ...], ...]
    """An object that is selected has one of the labels of each of these."""
    percent: int
    label_keys: tuple[_Pair, ...]
    """Pairs of old and new key, in order, so that chained mappings (a to b, b to c) have one outcome."""
    annotation_keys: tuple[_Pair, ...]
    skips_resources: bool
    has_plain_patch: bool
    """It sets members and nothing else (`is_plain`)."""
    unusable: ProfileProblem | None
    broken: ProfileProblem | None


def compile_profile(profile: ClusterColocationProfile) -> CompiledProfile:
    """Return the profile compiled, with what is wrong with it."""
    spec = profile.spec
    selects, unusable = _compile_selector("spec.selector", spec.selector)
    selects_namespace, problem = _compile_selector("spec.namespaceSelector", spec.namespace_selector)
    percent, broken = _percent(spec.probability)
    return CompiledProfile(
        source=profile,
        name=profile.metadata.name,
        selects=selects,
        selects_namespace=selects_namespace,
        alternatives=_alternatives(spec.selector) if unusable is None else (),
        percent=percent,
        label_keys=tuple(sorted(spec.label_keys_mapping.items())),
        annotation_keys=tuple(sorted(spec.annotation_keys_mapping.items())),
        skips_resources=labels.SKIP_UPDATE_RESOURCES in profile.metadata.annotations,
        has_plain_patch=isinstance(spec.patch, dict) and is_plain(spec.patch),
        unusable=unusable or problem,
        broken=broken or _patch_defect(spec.patch),
    )


def _compile_selector(
    field: str, selector: LabelSelector | None
) -> tuple[Predicate | None, ProfileProblem | None]:
    if selector is None or not (selector.match_labels or selector.match_expressions):
        return None, None
    try:
        return label_selector.compile_selector(selector), None
    except ProtocolError as error:
        return None, ProfileProblem(field, error.reason)


def _alternatives(selector: LabelSelector | None) -> tuple[tuple[_Pair, ...], ...]:
    if selector is None:
        return ()
    found = [(pair,) for pair in selector.match_labels.items()]
    for expression in selector.match_expressions:
        if expression.operator == "In":
            found.append(tuple((expression.key, value) for value in expression.values))  # type: ignore[arg-type]
    return tuple(found)


def _percent(probability: int | str | None) -> tuple[int, ProfileProblem | None]:
    if probability is None:
        return PROBABILITY_ALWAYS, None
    if isinstance(probability, int):
        return probability, None
    found = _PERCENT.fullmatch(probability)
    if found is None:
        return PROBABILITY_ALWAYS, ProfileProblem(
            "spec.probability", f"{probability!r} is neither a number nor N%"
        )
    return int(found[1]), None


def _patch_defect(patch: Any) -> ProfileProblem | None:
    """Return what makes a patch one that no pod survives. The lists that it meets show only when it is applied."""
    if not patch:
        return None
    try:
        bare = strategic_merge.merge({"metadata": {}, "spec": {}}, patch, POD)
        decode.from_builtins(strategic_merge.merge(bare, patch, POD), Pod)
    except (ApiError, msgspec.ValidationError) as error:
        return ProfileProblem("spec.patch", str(error))
    return None


class Profiles:
    """All profiles in the order in which they are applied: that of their names."""

    def __init__(self, compiled: Iterable[CompiledProfile]) -> None:
        self.ordered = tuple(sorted(compiled, key=lambda profile: profile.name))
        self.of_namespaces = sum(profile.selects_namespace is not None for profile in self.ordered)
        """Number of profiles that look at the namespace's labels."""
        self._indexes: dict[int, _Index] = {}
        self._namespaces: dict[str, tuple[Mapping[str, str], _Index]] = {}

    def matching(
        self, own: Mapping[str, str], namespace: str, namespace_labels: Mapping[str, str] | None
    ) -> list[CompiledProfile]:
        """Return the profiles whose selectors both hold, in order; an absent selector always does.

        `namespace_labels` is None when the namespace could not be looked up: profiles that ask for labels of
        namespaces then match nobody.
        """
        if namespace_labels is None:
            return self._index(self._selecting(None)).matching(own)
        known = self._namespaces.get(namespace)
        if known is None or known[0] is not namespace_labels:
            if len(self._namespaces) >= NAMESPACES_MAX:
                self._namespaces.clear()
            known = namespace_labels, self._index(self._selecting(namespace_labels))
            self._namespaces[namespace] = known
        return known[1].matching(own)

    def matching_anywhere(self, own: Mapping[str, str]) -> list[CompiledProfile]:
        """Return the profiles whose `selector` holds, whatever they say of namespaces."""
        usable = sum(1 << at for at, profile in enumerate(self.ordered) if profile.unusable is None)
        return self._index(usable).matching(own)

    def _selecting(self, namespace_labels: Mapping[str, str] | None) -> int:
        """Return the profiles that select a namespace, as bits of a number."""
        selecting = 0
        for at, profile in enumerate(self.ordered):
            selects = profile.selects_namespace
            if profile.unusable is not None:
                continue
            if selects is None or (namespace_labels is not None and selects(namespace_labels)):
                selecting |= 1 << at
        return selecting

    def _index(self, selecting: int) -> "_Index":
        """Return one for all namespaces that the same profiles select: there are few such sets."""
        found = self._indexes.get(selecting)
        if found is None:
            if len(self._indexes) >= NAMESPACES_MAX:
                self._indexes.clear()
            chosen = [profile for at, profile in enumerate(self.ordered) if selecting >> at & 1]
            found = self._indexes[selecting] = _Index(chosen)
        return found


class _Index:
    """Profiles, findable by one label that each of them wants: the one that the fewest others want."""

    def __init__(self, profiles: Sequence[CompiledProfile]) -> None:
        wanted = Counter(pair for each in profiles for pairs in each.alternatives for pair in pairs)
        self._others: list[tuple[int, CompiledProfile]] = []
        self._by_label: dict[_Pair, list[tuple[int, CompiledProfile]]] = {}
        for entry in enumerate(profiles):
            alternatives = entry[1].alternatives
            if not alternatives:
                self._others.append(entry)
                continue
            for pair in set(min(alternatives, key=lambda pairs: sum(wanted[pair] for pair in pairs))):
                self._by_label.setdefault(pair, []).append(entry)

    def matching(self, own: Mapping[str, str]) -> list[CompiledProfile]:
        """In order. An object has one value per key, so no profile is found twice."""
        found = [entry for entry in self._others if _selects(entry[1], own)]
        for pair in own.items():
            found += [entry for entry in self._by_label.get(pair, ()) if _selects(entry[1], own)]
        found.sort(key=_position)
        return [profile for _, profile in found]


def _selects(profile: CompiledProfile, own: Mapping[str, str]) -> bool:
    return profile.selects is None or profile.selects(own)


def _position(entry: tuple[int, CompiledProfile]) -> int:
    return entry[0]
