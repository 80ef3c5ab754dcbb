"""Do ElasticQuotas fit each other: parents, circles, sums, trees?

Admission checks changes one by one; what was created before it ran, or by force, is only found here.
"""

from collections.abc import Iterator

from koordinator.api import labels, pod_labels
from koordinator.api.core import Pod
from koordinator.api.quantity import QuantityError
from koordinator.api.sigs import ElasticQuota
from koordinator.doctor.finding import Finding, edit
from koordinator.doctor.snapshot import ClusterSnapshot
from koordinator.manager.quota import validation
from koordinator.manager.quota.tree import ROOT, QuotaInfo, QuotaTree, quota_info
from koordinator.manager.quota.validation import QuotaRules

BUILT_IN = (labels.ROOT_QUOTA_NAME, labels.SYSTEM_QUOTA_NAME, labels.DEFAULT_QUOTA_NAME)
_CIRCLE = "quotas in a cycle never get a share, and their pods stay Pending"
_UNFIT = "the scheduler computes wrong shares for other quotas, and admission refuses changes"


def check(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield names that are used twice, circles, and what admission would refuse if it were created today."""
    quotas: dict[str, ElasticQuota] = {}
    tree = QuotaTree()
    for quota in sorted(snapshot.of(ElasticQuota), key=lambda each: each.key):
        name = quota.metadata.name
        if name in quotas:
            yield Finding.error(
                quota,
                f"{quotas[name].key} has the same name",
                why="quota names must be unique across namespaces: one quota replaces the other",
                do=(
                    f"kubectl -n {quota.metadata.namespace} delete elasticquota {name}",
                    "create it with another name",
                ),
            )
            continue
        try:
            tree.put(quota_info(quota))
        except QuantityError as error:
            yield Finding.error(quota, str(error), why=_UNFIT, do=(edit(quota),))
            continue
        quotas[name] = quota
    yield from _circles(tree, quotas)
    yield from _rules(snapshot, tree, quotas)
    yield from _pods(snapshot, quotas)


def circle_of(tree: QuotaTree, info: QuotaInfo) -> list[str]:
    """Return names from a quota up and back to it, empty when its parents lead out."""
    names = [info.name]
    parent = tree.get(info.parent)
    while parent is not None and parent.name not in names:
        names.append(parent.name)
        parent = tree.get(parent.parent)
    return (
        [*names, info.name] if parent is not None and parent.name == info.name and info.name != ROOT else []
    )


def _circles(tree: QuotaTree, quotas: dict[str, ElasticQuota]) -> Iterator[Finding]:
    reported: set[str] = set()
    for name, quota in quotas.items():
        info = tree.get(name)
        assert info is not None, name
        circle = circle_of(tree, info)
        if circle and name not in reported:
            reported.update(circle)
            yield Finding.error(
                quota,
                f"its parents form a cycle: {' → '.join(circle)}",
                why=_CIRCLE,
                do=(
                    f"kubectl -n {quota.metadata.namespace} label elasticquota {name} --overwrite "
                    f"{labels.QUOTA_PARENT}={ROOT}",
                ),
            )


def _rules(snapshot: ClusterSnapshot, tree: QuotaTree, quotas: dict[str, ElasticQuota]) -> Iterator[Finding]:
    """Yield what admission says of each quota as if all others were there first; the same objection is told once."""
    rules = QuotaRules(
        child_keys_may_be_fewer=bool(
            snapshot.installation.manager_gate("ElasticQuotaEnableUpdateResourceKey")
        ),
        guarantees_usage=False,  # guarantees depend on what runs now, and are the scheduler's to keep
    )
    objections: dict[str, list[ElasticQuota]] = {}
    for name, quota in quotas.items():
        if name in BUILT_IN:
            continue
        info = tree.get(name)
        assert info is not None, name
        tree.remove(name)
        try:
            verdict = validation.check_create(tree, quota, rules)
        except QuantityError as error:
            objections.setdefault(str(error), []).append(quota)
        else:
            if not verdict.allowed:
                objections.setdefault(verdict.message, []).append(quota)
        tree.put(info)
    for message, found in sorted(objections.items()):
        yield Finding.error(
            ("ElasticQuota", [each.key for each in found]), message, why=_UNFIT, do=(edit(found[0]),)
        )


def _pods(snapshot: ClusterSnapshot, quotas: dict[str, ElasticQuota]) -> Iterator[Finding]:
    """Yield pods whose label names a quota that does not exist."""
    lost: dict[str, list[str]] = {}
    for pod in snapshot.of(Pod):
        name = pod.metadata.labels.get(labels.QUOTA_NAME, "")
        if name and name not in quotas and name not in BUILT_IN and not pod_labels.is_terminated(pod):
            lost.setdefault(name, []).append(pod.key)
    for name, pods in sorted(lost.items()):
        yield Finding.warning(
            ("Pod", pods),
            f"its label {labels.QUOTA_NAME} names quota {name}, which does not exist",
            why=f"it counts in {labels.DEFAULT_QUOTA_NAME}, like pods that name no quota",
            do=("kubectl get elasticquotas -A", f"create quota {name}, or correct the label in the template"),
        )
