"""What may be done with ElasticQuotas (spec 02 §17.2 to §17.5; spec 06 §17).

Pure: nothing here changes the tree; who asks puts the quota into it when the verdict allows.
"""

import enum
from collections.abc import Iterable, Sequence
from typing import Protocol, Self

import msgspec

from koordinator.api import labels, quantity, resource_list
from koordinator.api.annotations import quota as quota_annotations
from koordinator.api.errors import ProtocolError
from koordinator.api.feature_gates import FeatureGates
from koordinator.api.resource_list import Amounts
from koordinator.api.sigs import ElasticQuota
from koordinator.manager.quota.tree import ROOT, QuotaInfo, QuotaTree, quota_info

_RESERVED = (labels.ROOT_QUOTA_NAME, labels.SYSTEM_QUOTA_NAME)
_UNDELETABLE = (*_RESERVED, labels.DEFAULT_QUOTA_NAME)
_SHOWN_PODS_MAX = 2


class Refusal(enum.StrEnum):
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
    """Whether a change is allowed; if not, by which rule, and in words for the user."""

    refusal: Refusal = Refusal.NONE
    message: str = ""

    @property
    def allowed(self) -> bool:
        """No rule is broken."""
        return self.refusal is Refusal.NONE


ALLOWED = QuotaVerdict()


class QuotaRules(msgspec.Struct, frozen=True, kw_only=True):
    """Feature gates that change the rules."""

    child_keys_may_be_fewer: bool = False  # ElasticQuotaEnableUpdateResourceKey
    guarantees_usage: bool = False  # ElasticQuotaGuaranteeUsage

    @classmethod
    def of(cls, gates: FeatureGates) -> Self:
        """The rules of a manager's gates."""
        return cls(
            child_keys_may_be_fewer=gates.is_on("ElasticQuotaEnableUpdateResourceKey"),
            guarantees_usage=gates.is_on("ElasticQuotaGuaranteeUsage"),
        )


class QuotaPods(Protocol):
    """The pods of the cluster, as far as quotas care."""

    def labelled(self, quota: str) -> Sequence[str]:
        """Names of the pods whose label names the quota."""

    def is_any_in(self, namespace: str) -> bool:
        """Whether any pod lives in the namespace."""


def check_create(tree: QuotaTree, quota: ElasticQuota, rules: QuotaRules) -> QuotaVerdict:
    """Whether a new quota (after mutation) may be. Raises: quantity.QuantityError."""
    info = quota_info(quota)
    if tree.get(info.name) is not None:
        return QuotaVerdict(Refusal.EXISTS, f"AddQuota quota already exists: {info.name}")
    for verdict in (_namespaces(tree, info), _own_fields(quota, info)):
        if not verdict.allowed:
            return verdict
    return _topology(tree, info, None, rules, None)


def check_update(
    tree: QuotaTree, old: ElasticQuota, new: ElasticQuota, rules: QuotaRules, pods: QuotaPods
) -> QuotaVerdict:
    """Whether a quota may be changed. Raises: quantity.QuantityError."""
    if _is_same(old, new):
        return ALLOWED
    info = quota_info(new)
    if info.name in _RESERVED:
        return QuotaVerdict(Refusal.FORBIDDEN, f"invalid quota {info.name}: it cannot be changed")
    if not (verdict := _namespaces(tree, info)).allowed:
        return verdict
    known = tree.get(info.name)
    if known is None:
        return QuotaVerdict(Refusal.NOT_FOUND, f"UpdateQuota quota not exist in quotaInfoMap: {info.name}")
    if not (verdict := _own_fields(new, info)).allowed:
        return verdict
    return _topology(tree, info, known, rules, pods)


def check_delete(tree: QuotaTree, name: str, pods: QuotaPods) -> QuotaVerdict:
    """Whether a quota may be deleted; pods that are bound by their namespace only do not hinder it."""
    if name in _UNDELETABLE:
        return QuotaVerdict(Refusal.FORBIDDEN, f"invalid quota {name}: it cannot be deleted")
    if tree.get(name) is None:
        return QuotaVerdict(Refusal.NOT_FOUND, f"delete quota failed, quota {name} not found")
    if children := tree.children(name):
        message = f"delete quota failed, quota {name} has {len(children)} child quotas"
        return QuotaVerdict(Refusal.HAS_CHILDREN, message)
    if names := pods.labelled(name):
        shown = ", ".join([*names[:_SHOWN_PODS_MAX], "..."])
        message = f"delete quota failed, quota {name} has {len(names)} child pods: {shown}"
        return QuotaVerdict(Refusal.HAS_PODS, message)
    return ALLOWED


def _is_same(old: ElasticQuota, new: ElasticQuota) -> bool:
    """Whether nothing that the rules are about has changed."""
    keys = (labels.QUOTA_PARENT, labels.QUOTA_IS_PARENT, labels.QUOTA_TREE_ID)
    before, after = old.metadata, new.metadata
    return (
        all(before.labels.get(key, "") == after.labels.get(key, "") for key in keys)
        and before.annotations.get(labels.QUOTA_NAMESPACES) == after.annotations.get(labels.QUOTA_NAMESPACES)
        and old.spec == new.spec
    )


def _namespaces(tree: QuotaTree, info: QuotaInfo) -> QuotaVerdict:
    for namespace in info.namespaces:
        bound = tree.bound_to(namespace)
        if bound is not None and bound.name != info.name:
            message = (
                f"quota {info.name}'s annotation namespace {namespace} is already bound to quota {bound.name}"
            )
            return QuotaVerdict(Refusal.NAMESPACE_BOUND, message)
    return ALLOWED


def _own_fields(quota: ElasticQuota, info: QuotaInfo) -> QuotaVerdict:
    name = info.name
    if key := _negative(info.max):
        return QuotaVerdict(Refusal.MAX_NEGATIVE, f"{name} quota.Spec.Max's value < 0, in dimension {key}")
    if key := _negative(info.min):
        return QuotaVerdict(Refusal.MIN_NEGATIVE, f"{name} quota.Spec.Min's value < 0, in dimension {key}")
    try:
        weight = quota_annotations.SHARED_WEIGHT.read(quota.metadata.annotations, f"ElasticQuota {info.key}")
    except ProtocolError as error:
        return QuotaVerdict(Refusal.SHARED_WEIGHT, str(error))
    if key := _negative(resource_list.of(weight or {})):
        message = f"{name} quota.Annotation[{labels.QUOTA_SHARED_WEIGHT}]'s value < 0, in dimension {key}"
        return QuotaVerdict(Refusal.SHARED_WEIGHT_NEGATIVE, message)
    for key, amount in sorted(info.min.items()):
        if key not in info.max:
            message = f"{name} min has {key}, which max has not: every resource of min must be in max"
            return QuotaVerdict(Refusal.MIN_KEY_NOT_IN_MAX, message)
        if amount > info.max[key]:
            message = f"{name} min > max, {key}: {amount} > {info.max[key]}"
            return QuotaVerdict(Refusal.MIN_ABOVE_MAX, message)
    return _strict_keys(quota, info)


def _negative(amounts: Amounts) -> str:
    """The first resource whose amount is negative, empty for none."""
    return min((key for key, amount in amounts.items() if amount < quantity.ZERO), default="")


def _strict_keys(quota: ElasticQuota, info: QuotaInfo) -> QuotaVerdict:
    annotations = quota.metadata.annotations
    try:
        keys = quota_annotations.MAX_STRICT_CHECK_RESOURCE_KEYS.read(annotations, f"ElasticQuota {info.key}")
    except ProtocolError as error:
        return QuotaVerdict(Refusal.STRICT_KEYS, str(error))
    used = resource_list.of(quota.status.used)
    for key in keys or ():
        if key not in used:
            continue
        if key not in info.max:
            message = f"{info.name} max lacks {key}, which is checked strictly and in use"
            return QuotaVerdict(Refusal.STRICT_KEY_NOT_IN_MAX, message)
        if info.max[key] < used[key]:
            message = f"{info.name} max of {key} ({info.max[key]}) is below what is used ({used[key]})"
            return QuotaVerdict(Refusal.MAX_BELOW_USED, message)
    return ALLOWED


def _topology(
    tree: QuotaTree, info: QuotaInfo, old: QuotaInfo | None, rules: QuotaRules, pods: QuotaPods | None
) -> QuotaVerdict:
    """The rules between a quota and its family, in the order of the reference."""
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
    if old.is_parent and not info.is_parent and tree.children(name):
        message = f"quota has children, isParent is forbidden to modify as false, quotaName:{name}"
        return QuotaVerdict(Refusal.HAS_CHILDREN, message)
    if info.is_parent and not old.is_parent:
        bound = pods.labelled(name) or any(pods.is_any_in(each) for each in (name, *old.namespaces))
        if bound:
            message = f"quota has bound pods, isParent is forbidden to modify as true, quotaName: {name}"
            return QuotaVerdict(Refusal.HAS_PODS, message)
    return ALLOWED


def _tree_id(tree: QuotaTree, info: QuotaInfo, old: QuotaInfo | None) -> QuotaVerdict:
    if old is not None and old.tree_id != info.tree_id:
        message = f"{info.name} tree id changed [{old.tree_id}] vs [{info.tree_id}]"
        return QuotaVerdict(Refusal.TREE_CHANGED, message)
    parent = tree.get(info.parent) if info.parent != ROOT else None
    family = ([parent] if parent is not None else []) + tree.children(info.name)
    for other in family:
        if other.tree_id != info.tree_id:
            message = f"{info.name} tree id [{info.tree_id}] differs from [{other.tree_id}] of {other.name}"
            return QuotaVerdict(Refusal.TREE_PARENT, message)
    return ALLOWED


def _parent(tree: QuotaTree, info: QuotaInfo, _: QuotaRules) -> QuotaVerdict:
    if info.parent == ROOT:
        return ALLOWED
    parent = tree.get(info.parent)
    if parent is None:
        message = f"{info.name} has parentName {info.parent} but not find parentInfo in quotaInfoMap"
        return QuotaVerdict(Refusal.PARENT_MISSING, message)
    if not parent.is_parent:
        message = f"{info.name}'s parent {parent.name} is not a parent quota: label it {labels.QUOTA_IS_PARENT}=true"
        return QuotaVerdict(Refusal.PARENT_NOT_PARENT, message)
    # The reference lets circles through, and nothing in them would ever get a share again.
    if info.name == parent.name or any(above.name == info.name for above in tree.ancestors(parent)):
        message = f"{info.name} cannot be below {parent.name}, which is itself or below it"
        return QuotaVerdict(Refusal.CYCLE, message)
    return ALLOWED


def _keys(tree: QuotaTree, info: QuotaInfo, rules: QuotaRules) -> QuotaVerdict:
    parent = tree.get(info.parent) if info.parent != ROOT else None
    pairs = [(parent, info)] if parent is not None else []
    pairs += [(info, child) for child in tree.children(info.name)]
    for above, below in pairs:
        extra = below.max.keys() - above.max.keys()
        missing = set() if rules.child_keys_may_be_fewer else above.max.keys() - below.max.keys()
        if extra or missing:
            message = (
                f"max of {below.name} and of its parent {above.name} differ in {sorted(extra | missing)}"
            )
            return QuotaVerdict(Refusal.MAX_KEYS, message)
        if extra := below.min.keys() - above.min.keys():
            message = f"min of {below.name} has {sorted(extra)}, which min of its parent {above.name} has not"
            return QuotaVerdict(Refusal.MIN_KEYS, message)
    return ALLOWED


def _min_sums(tree: QuotaTree, info: QuotaInfo, _: QuotaRules) -> QuotaVerdict:
    if info.allows_forced_update or info.is_tree_root:
        return ALLOWED
    parent = tree.get(info.parent) if info.parent != ROOT else None
    if parent is not None:
        total = _sum_min([*tree.siblings(info), info])
        if not resource_list.fits_completely(total, parent.min):
            message = (
                f"checkMinQuotaSum all brothers' MinQuota > parent MinQuota, parent: {parent.name}: "
                f"{_above(total, parent.min)}"
            )
            return QuotaVerdict(Refusal.MIN_SUM_BROTHERS, message)
    total = _sum_min(tree.children(info.name))
    if not resource_list.fits_completely(total, info.min):
        message = (
            f"checkMinQuotaSum all children's MinQuota > MinQuota, quota: {info.name}: "
            f"{_above(total, info.min)}"
        )
        return QuotaVerdict(Refusal.MIN_SUM_CHILDREN, message)
    return ALLOWED


def _guarantee(tree: QuotaTree, info: QuotaInfo) -> QuotaVerdict:
    """Whether some quota above guarantees enough for what this one would be guaranteed from now on."""
    if info.allows_forced_update or info.is_tree_root or not info.tree_id:
        return ALLOWED
    if resource_list.fits_completely(info.min, info.guaranteed):
        return ALLOWED
    need, below = resource_list.maximum(info.min, info.guaranteed), info
    for above in tree.ancestors(info):
        siblings = resource_list.sum_of(sibling.guaranteed for sibling in tree.siblings(below))
        need = resource_list.maximum(above.min, resource_list.add(need, siblings))
        if resource_list.fits_completely(need, above.guaranteed):
            return ALLOWED
        below = above
    return QuotaVerdict(
        Refusal.GUARANTEE, f"tree root quota {below.name} can't guarantee for min of {info.name}"
    )


def _sum_min(infos: Iterable[QuotaInfo]) -> Amounts:
    return resource_list.sum_of(info.min for info in infos)


def _above(total: Amounts, limit: Amounts) -> str:
    """The resources in which `total` is above `limit`, with both figures."""
    zero = quantity.ZERO
    return ", ".join(
        f"{key} {amount} > {limit.get(key, zero)}"
        for key, amount in sorted(total.items())
        if amount > limit.get(key, zero)
    )
