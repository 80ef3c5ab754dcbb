"""Decide which changes of ElasticQuotas are allowed (behaviour/manager 17.2 to 17.5; behaviour/elastic-quota 17).

Pure: nothing here changes the tree; who asks puts the quota into it when the verdict allows.
"""

import enum
from collections.abc import Sequence
from typing import Any, Protocol, Self

import msgspec

from koordinator.api import labels, quantity, quota_labels, resource_list
from koordinator.api.annotations.codec import Annotation
from koordinator.api.errors import ProtocolError
from koordinator.api.feature_gates import FeatureGates
from koordinator.api.resource_list import Amounts
from koordinator.api.sigs import ElasticQuota
from koordinator.manager.quota.tree import ROOT, Keys, QuotaInfo, QuotaTree, quota_info

_RESERVED = (labels.ROOT_QUOTA_NAME, labels.SYSTEM_QUOTA_NAME)
_UNDELETABLE = (*_RESERVED, labels.DEFAULT_QUOTA_NAME)
_SHOWN_PODS_MAX = 2
_MIN, _MAX = "spec.min", "spec.max"
_PARENT, _IS_PARENT, _TREE_ID = (
    f"label {key}" for key in (labels.QUOTA_PARENT, labels.QUOTA_IS_PARENT, labels.QUOTA_TREE_ID)
)
_WEIGHT, _NAMESPACES, _STRICT_KEYS = (
    f"annotation {key}"
    for key in (
        labels.QUOTA_SHARED_WEIGHT,
        labels.QUOTA_NAMESPACES,
        labels.QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS,
    )
)


_UNCHECKED: tuple[tuple[Annotation[Any], str], ...] = (
    (quota_labels.NAMESPACES, "no namespace is bound to the quota"),
    (quota_labels.ADMISSION, "with quota admission on, all pods of the quota are refused"),
)
"""Annotations whose texts no rule of the reference refuses."""


class QuotaRefusal(enum.StrEnum):
    """The rule that a change breaks; empty when it breaks none."""

    NONE = ""
    MAX_NEGATIVE = "max-negative"
    MIN_NEGATIVE = "min-negative"
    SHARED_WEIGHT = "shared-weight"
    SHARED_WEIGHT_NEGATIVE = "shared-weight-negative"
    MIN_KEY_NOT_IN_MAX = "min-key-not-in-max"
    MIN_ABOVE_MAX = "min-above-max"
    STRICT_KEYS = "strict-keys"
    STRICT_KEY_NOT_IN_MAX = "strict-key-not-in-max"
    MAX_BELOW_USED = "max-below-used"
    EXISTS = "exists"
    NOT_FOUND = "not-found"
    FORBIDDEN = "forbidden"
    NAMESPACE_BOUND = "namespace-bound"
    HAS_CHILDREN = "has-children"
    HAS_PODS = "has-pods"
    TREE_CHANGED = "tree-changed"
    TREE_PARENT = "tree-parent"
    PARENT_MISSING = "parent-missing"
    PARENT_NOT_PARENT = "parent-not-parent"
    CYCLE = "cycle"
    MAX_KEYS = "max-keys"
    MIN_KEYS = "min-keys"
    MIN_SUM_BROTHERS = "min-sum-brothers"
    MIN_SUM_CHILDREN = "min-sum-children"
    GUARANTEE = "guarantee"


class QuotaVerdict(msgspec.Struct, frozen=True):
    """The decision on a change; if it is refused, by which rule, in words for the user, and for which field.

    `field` is a path such as `spec.min` or the key of a label or annotation; empty when it is the whole quota.
    """

    refusal: QuotaRefusal = QuotaRefusal.NONE
    message: str = ""
    field: str = ""

    @property
    def allowed(self) -> bool:
        """No rule is broken."""
        return self.refusal is QuotaRefusal.NONE


ALLOWED = QuotaVerdict()


class QuotaRules(msgspec.Struct, frozen=True, kw_only=True):
    """Feature gates that change the rules."""

    child_keys_may_be_fewer: bool = False  # ElasticQuotaEnableUpdateResourceKey
    guarantees_usage: bool = False  # ElasticQuotaGuaranteeUsage

    @classmethod
    def of(cls, gates: FeatureGates) -> Self:
        """Return the rules of a manager's gates."""
        return cls(
            child_keys_may_be_fewer=gates.is_on("ElasticQuotaEnableUpdateResourceKey"),
            guarantees_usage=gates.is_on("ElasticQuotaGuaranteeUsage"),
        )


class QuotaPods(Protocol):
    """The pods of the cluster, as far as quotas care."""

    def labelled(self, quota: str) -> Sequence[str]:
        """Return names of the pods whose label names the quota."""

    def is_any_in(self, namespace: str) -> bool:
        """Return whether any pod lives in the namespace."""


def check_create(tree: QuotaTree, quota: ElasticQuota, rules: QuotaRules) -> QuotaVerdict:
    """Return whether a new quota (after mutation) may be. Raises: quantity.QuantityError."""
    info = quota_info(quota)
    if tree.get(info.name) is not None:
        return QuotaVerdict(
            QuotaRefusal.EXISTS, f"AddQuota quota already exists: {info.name}", "metadata.name"
        )
    for verdict in (_namespaces(tree, info, "AddQuota"), _own_fields(quota, info)):
        if not verdict.allowed:
            return verdict
    return _topology(tree, info, None, rules, None)


def check_update(
    tree: QuotaTree, old: ElasticQuota, new: ElasticQuota, rules: QuotaRules, pods: QuotaPods
) -> QuotaVerdict:
    """Return whether a quota may be changed. Raises: quantity.QuantityError."""
    if is_same(old, new):
        return ALLOWED
    info = quota_info(new)
    if info.name in _RESERVED:
        return QuotaVerdict(QuotaRefusal.FORBIDDEN, f"invalid quota {info.name}: it cannot be changed")
    if not (verdict := _namespaces(tree, info, "UpdateQuota")).allowed:
        return verdict
    known = tree.get(info.name)
    if known is None:
        message = f"UpdateQuota quota not exist in quotaInfoMap: {info.name}"
        return QuotaVerdict(QuotaRefusal.NOT_FOUND, message, "metadata.name")
    if not (verdict := _own_fields(new, info)).allowed:
        return verdict
    return _topology(tree, info, known, rules, pods)


def check_weight_change(old: ElasticQuota, new: ElasticQuota) -> QuotaVerdict:
    """Return whether an update leaves a shared weight that can be read.

    `check_update` looks at annotations only when something else changes too, as the reference does. An
    unreadable weight would silently count as `spec.max`, so admission asks for this one besides.
    """
    key = labels.QUOTA_SHARED_WEIGHT
    if old.metadata.annotations.get(key) == new.metadata.annotations.get(key):
        return ALLOWED
    return _shared_weight(new)


def is_exempted_no_more(old: ElasticQuota, new: ElasticQuota) -> bool:
    """Return whether labels go that had switched rules off: `allow-force-update` or `is-root`."""
    before, after = old.metadata.labels, new.metadata.labels
    return any(
        is_exempt(before) and not is_exempt(after)
        for is_exempt in (quota_labels.allows_forced_update, quota_labels.is_tree_root)
    )


def check_standing(tree: QuotaTree, info: QuotaInfo, rules: QuotaRules) -> QuotaVerdict:
    """Return whether a quota that exists keeps the rules between quotas as the tree is now.

    Two instances that admit requests at the same moment do not know of each other's.
    """
    verdict = _namespaces(tree, info, "UpdateQuota")
    return _topology(tree, info, None, rules, None) if verdict.allowed else verdict


def warnings(tree: QuotaTree, info: QuotaInfo) -> list[str]:
    """Return warnings about what is allowed but hardly meant."""
    found = []
    if (count := tree.child_count(info.name)) and not info.is_parent:
        found.append(
            f"{info.name} has {count} child quotas and is not labelled {labels.QUOTA_IS_PARENT}=true"
        )
    parent = tree.get(info.parent) if info.parent != ROOT else None
    for key, amount in sorted(info.max.items()):
        if parent is not None and key in parent.max and amount > parent.max[key]:
            found.append(
                f"{_MAX}.{key} of {info.name} ({amount}) is above that of its parent {parent.name} "
                f"({parent.max[key]}), which limits it"
            )
    return found


def annotation_warnings(quota: ElasticQuota) -> list[str]:
    """Annotations that nobody will be able to read, and what comes of it."""
    annotations = quota.metadata.annotations
    found = []
    for payload, consequence in _UNCHECKED:
        try:
            payload.read(annotations)
        except ProtocolError as error:
            found.append(f"annotation {error.field}: {error.reason}: {consequence}")
    return found


def check_delete(tree: QuotaTree, name: str, pods: QuotaPods) -> QuotaVerdict:
    """Return whether a quota may be deleted; pods that are bound by their namespace only do not hinder it."""
    if name in _UNDELETABLE:
        return QuotaVerdict(QuotaRefusal.FORBIDDEN, f"invalid quota {name}: it cannot be deleted")
    if tree.get(name) is None:
        return QuotaVerdict(QuotaRefusal.NOT_FOUND, f"delete quota failed, quota {name} not found")
    if count := tree.child_count(name):
        message = f"delete quota failed, quota {name} has {count} child quotas"
        return QuotaVerdict(QuotaRefusal.HAS_CHILDREN, message)
    if names := pods.labelled(name):
        shown = ", ".join([*names[:_SHOWN_PODS_MAX], "..."])
        message = f"delete quota failed, quota {name} has {len(names)} child pods: {shown}"
        return QuotaVerdict(QuotaRefusal.HAS_PODS, message)
    return ALLOWED


def is_same(old: ElasticQuota, new: ElasticQuota) -> bool:
    """Return whether nothing that the rules are about has changed."""
    keys = (labels.QUOTA_PARENT, labels.QUOTA_IS_PARENT, labels.QUOTA_TREE_ID)
    before, after = old.metadata, new.metadata
    return (
        all(before.labels.get(key, "") == after.labels.get(key, "") for key in keys)
        and before.annotations.get(labels.QUOTA_NAMESPACES) == after.annotations.get(labels.QUOTA_NAMESPACES)
        and old.spec == new.spec
    )


def _namespaces(tree: QuotaTree, info: QuotaInfo, action: str) -> QuotaVerdict:
    for namespace in info.namespaces:
        bound = tree.bound_to(namespace)
        if bound is not None and bound.name != info.name:
            message = (
                f"{action} quota {info.name}'s annotation namespace {namespace} "
                f"is already bound to quota {bound.name}"
            )
            return QuotaVerdict(QuotaRefusal.NAMESPACE_BOUND, message, _NAMESPACES)
    return ALLOWED


def _own_fields(quota: ElasticQuota, info: QuotaInfo) -> QuotaVerdict:
    name = info.name
    if key := _negative(info.max):
        message = f"{name} quota.Spec.Max's value < 0, in dimension {key}"
        return QuotaVerdict(QuotaRefusal.MAX_NEGATIVE, message, f"{_MAX}.{key}")
    if key := _negative(info.min):
        message = f"{name} quota.Spec.Min's value < 0, in dimension {key}"
        return QuotaVerdict(QuotaRefusal.MIN_NEGATIVE, message, f"{_MIN}.{key}")
    if not (verdict := _shared_weight(quota)).allowed:
        return verdict
    for key, amount in sorted(info.min.items()):
        if key not in info.max:
            message = f"{name} min has {key}, which max has not: every resource of min must be in max"
            return QuotaVerdict(QuotaRefusal.MIN_KEY_NOT_IN_MAX, message, f"{_MIN}.{key}")
        if amount > info.max[key]:
            message = f"{name} min > max, {key}: {amount} > {info.max[key]}"
            return QuotaVerdict(QuotaRefusal.MIN_ABOVE_MAX, message, f"{_MIN}.{key}")
    return _strict_keys(quota, info)


def _shared_weight(quota: ElasticQuota) -> QuotaVerdict:
    metadata = quota.metadata
    try:
        weight = quota_labels.SHARED_WEIGHT.read(metadata.annotations, f"ElasticQuota {quota.key}")
        key = _negative(resource_list.of(weight or {}))
    except (ProtocolError, quantity.QuantityError) as error:
        return QuotaVerdict(QuotaRefusal.SHARED_WEIGHT, str(error), _WEIGHT)
    if key:
        message = (
            f"{metadata.name} quota.Annotation[{labels.QUOTA_SHARED_WEIGHT}]'s value < 0, in dimension {key}"
        )
        return QuotaVerdict(QuotaRefusal.SHARED_WEIGHT_NEGATIVE, message, _WEIGHT)
    return ALLOWED


def _negative(amounts: Amounts) -> str:
    """Return the first resource whose amount is negative, empty for none."""
    return min((key for key, amount in amounts.items() if amount < quantity.ZERO), default="")


def _strict_keys(quota: ElasticQuota, info: QuotaInfo) -> QuotaVerdict:
    annotations = quota.metadata.annotations
    try:
        keys = quota_labels.MAX_STRICT_CHECK_RESOURCE_KEYS.read(annotations, f"ElasticQuota {info.key}")
    except ProtocolError as error:
        return QuotaVerdict(QuotaRefusal.STRICT_KEYS, str(error), _STRICT_KEYS)
    used = resource_list.of(quota.status.used)
    for key in keys or ():
        if key not in used:
            continue
        if key not in info.max:
            message = f"{info.name} max lacks {key}, which is checked strictly and in use"
            return QuotaVerdict(QuotaRefusal.STRICT_KEY_NOT_IN_MAX, message, f"{_MAX}.{key}")
        if info.max[key] < used[key]:
            message = f"{info.name} max of {key} ({info.max[key]}) is below what is used ({used[key]})"
            return QuotaVerdict(QuotaRefusal.MAX_BELOW_USED, message, f"{_MAX}.{key}")
    return ALLOWED


def _topology(
    tree: QuotaTree, info: QuotaInfo, old: QuotaInfo | None, rules: QuotaRules, pods: QuotaPods | None
) -> QuotaVerdict:
    """Return the rules between a quota and its family, in the order of the reference."""
    if info.name == ROOT:
        return ALLOWED
    if old is not None and pods is not None:
        verdict = _is_parent_change(tree, info, old, pods)
        if not verdict.allowed:
            return verdict
    if not (verdict := _tree_id(tree, info, old)).allowed:
        return verdict
    if info.parent == ROOT and not info.is_parent:
        return ALLOWED
    for check in (_parent, _keys, _min_sums):
        if not (verdict := check(tree, info, rules)).allowed:
            return verdict
    return _guarantee(tree, info) if rules.guarantees_usage else ALLOWED


def _is_parent_change(tree: QuotaTree, info: QuotaInfo, old: QuotaInfo, pods: QuotaPods) -> QuotaVerdict:
    name = info.name
    if old.is_parent and not info.is_parent and tree.child_count(name):
        message = f"quota has children, isParent is forbidden to modify as false, quotaName:{name}"
        return QuotaVerdict(QuotaRefusal.HAS_CHILDREN, message, _IS_PARENT)
    if info.is_parent and not old.is_parent:
        bound = pods.labelled(name) or any(pods.is_any_in(each) for each in (name, *old.namespaces))
        if bound:
            message = f"quota has bound pods, isParent is forbidden to modify as true, quotaName: {name}"
            return QuotaVerdict(QuotaRefusal.HAS_PODS, message, _IS_PARENT)
    return ALLOWED


def _tree_id(tree: QuotaTree, info: QuotaInfo, old: QuotaInfo | None) -> QuotaVerdict:
    if old is not None and old.tree_id != info.tree_id:
        message = f"{info.name} tree id changed [{old.tree_id}] vs [{info.tree_id}]"
        return QuotaVerdict(QuotaRefusal.TREE_CHANGED, message, _TREE_ID)
    parent = tree.get(info.parent) if info.parent != ROOT else None
    others = [parent] if parent is not None else []
    if any(found != info.tree_id for found in tree.child_tree_ids(info.name)):
        others += tree.children(info.name)
    for other in others:
        if other.tree_id != info.tree_id:
            message = f"{info.name} tree id [{info.tree_id}] differs from [{other.tree_id}] of {other.name}"
            return QuotaVerdict(QuotaRefusal.TREE_PARENT, message, _TREE_ID)
    return ALLOWED


def _parent(tree: QuotaTree, info: QuotaInfo, _: QuotaRules) -> QuotaVerdict:
    if info.parent == ROOT:
        return ALLOWED
    parent = tree.get(info.parent)
    if parent is None:
        message = f"{info.name} has parentName {info.parent} but not find parentInfo in quotaInfoMap"
        return QuotaVerdict(QuotaRefusal.PARENT_MISSING, message, _PARENT)
    if not parent.is_parent:
        message = f"{info.name}'s parent {parent.name} is not a parent quota: label it {labels.QUOTA_IS_PARENT}=true"
        return QuotaVerdict(QuotaRefusal.PARENT_NOT_PARENT, message, _PARENT)
    # The reference lets circles through, and nothing in them would ever get a share again.
    if info.name == parent.name or any(above.name == info.name for above in tree.ancestors(parent)):
        message = f"{info.name} cannot be below {parent.name}, which is itself or below it"
        return QuotaVerdict(QuotaRefusal.CYCLE, message, _PARENT)
    return ALLOWED


def _keys(tree: QuotaTree, info: QuotaInfo, rules: QuotaRules) -> QuotaVerdict:
    parent = tree.get(info.parent) if info.parent != ROOT else None
    pairs = [(parent, info)] if parent is not None else []
    max_keys, min_keys = frozenset(info.max), frozenset(info.min)
    fits_all = all(_max_keys_fit(max_keys, below, rules) for below in tree.child_max_keys(info.name)) and all(
        below <= min_keys for below in tree.child_min_keys(info.name)
    )
    if not fits_all:
        pairs += [(info, child) for child in tree.children(info.name)]
    for above, below in pairs:
        if not _max_keys_fit(frozenset(above.max), frozenset(below.max), rules):
            differing = below.max.keys() - above.max.keys()
            if not rules.child_keys_may_be_fewer:
                differing |= above.max.keys() - below.max.keys()
            message = f"max of {below.name} and of its parent {above.name} differ in {sorted(differing)}"
            return QuotaVerdict(QuotaRefusal.MAX_KEYS, message, _MAX)
        if extra := below.min.keys() - above.min.keys():
            message = f"min of {below.name} has {sorted(extra)}, which min of its parent {above.name} has not"
            return QuotaVerdict(QuotaRefusal.MIN_KEYS, message, _MIN)
    return ALLOWED


def _max_keys_fit(above: Keys, below: Keys, rules: QuotaRules) -> bool:
    return below <= above if rules.child_keys_may_be_fewer else below == above


def _min_sums(tree: QuotaTree, info: QuotaInfo, _: QuotaRules) -> QuotaVerdict:
    if info.allows_forced_update or info.is_tree_root:
        return ALLOWED
    parent = tree.get(info.parent) if info.parent != ROOT else None
    if parent is not None:
        total = resource_list.add(tree.siblings_min(info), info.min)
        if not resource_list.fits_completely(total, parent.min):
            message = (
                f"checkMinQuotaSum all brothers' MinQuota > parent MinQuota, parent: {parent.name}: "
                f"{_above(total, parent.min)}"
            )
            return QuotaVerdict(QuotaRefusal.MIN_SUM_BROTHERS, message, _MIN)
    total = tree.children_min(info.name)
    if not resource_list.fits_completely(total, info.min):
        message = (
            f"checkMinQuotaSum all children's MinQuota > MinQuota, quota: {info.name}: "
            f"{_above(total, info.min)}"
        )
        return QuotaVerdict(QuotaRefusal.MIN_SUM_CHILDREN, message, _MIN)
    return ALLOWED


def _guarantee(tree: QuotaTree, info: QuotaInfo) -> QuotaVerdict:
    """Return whether some quota above guarantees enough for what this one would be guaranteed from now on."""
    if info.allows_forced_update or info.is_tree_root or not info.tree_id:
        return ALLOWED
    if resource_list.fits_completely(info.min, info.guaranteed):
        return ALLOWED
    need, below = resource_list.maximum(info.min, info.guaranteed), info
    for above in tree.ancestors(info):
        siblings = tree.siblings_guaranteed(below)
        need = resource_list.maximum(above.min, resource_list.add(need, siblings))
        if resource_list.fits_completely(need, above.guaranteed):
            return ALLOWED
        below = above
    message = f"tree root quota {below.name} can't guarantee for min of {info.name}"
    return QuotaVerdict(QuotaRefusal.GUARANTEE, message, _MIN)


def _above(total: Amounts, limit: Amounts) -> str:
    """Return the resources in which `total` is above `limit`, with both figures."""
    zero = quantity.ZERO
    return ", ".join(
        f"{key} {amount} > {limit.get(key, zero)}"
        for key, amount in sorted(total.items())
        if amount > limit.get(key, zero)
    )
