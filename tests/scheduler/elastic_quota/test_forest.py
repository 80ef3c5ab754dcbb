"""Several quota trees in one cluster."""

from koordinator.api import resource_list
from koordinator.api.resource_list import Amounts
from koordinator.scheduler.plugins.elastic_quota.forest import QuotaForest, QuotaRef, TreeRoot
from koordinator.scheduler.plugins.elastic_quota.quota import (
    DEFAULT,
    SYSTEM,
    QuotaPodRequest,
    QuotaSpec,
    nanos_of,
)
from koordinator.scheduler.plugins.elastic_quota.tree import GroupQuotaTree


def cpu(cores: int) -> Amounts:
    return resource_list.of({"cpu": cores})


def forest(cores: int = 100) -> QuotaForest:
    made = QuotaForest({SYSTEM: cpu(10**9), DEFAULT: cpu(10**9)})
    made.set_capacity(cpu(cores))
    return made


def tree(of: QuotaForest, tree_id: str) -> GroupQuotaTree:
    found = of.tree(tree_id)
    assert found is not None
    return found


def spec(name: str) -> QuotaSpec:
    return QuotaSpec(name=name, max=cpu(50), weight=cpu(50))


def test_what_a_tree_owns_is_taken_out_of_the_default_tree_and_comes_back() -> None:
    made = forest()

    made.set_quota(spec("pool"), "t", TreeRoot(cpu(30)))
    assert (tree(made, "t").total, tree(made, "").total) == (cpu(30), cpu(70))

    made.set_quota(spec("pool"), "t", TreeRoot(cpu(40)))
    assert (tree(made, "t").total, tree(made, "").total) == (cpu(40), cpu(60))

    made.remove_quota("pool")
    assert made.tree("t") is None
    assert tree(made, "").total == cpu(100)


def test_a_tree_beside_the_default_one_takes_nothing_from_it() -> None:
    made = forest()

    made.set_quota(spec("pool"), "t", TreeRoot(cpu(30), leaves_default_tree=False))

    assert tree(made, "").total == cpu(100)


def test_a_quota_stays_in_the_tree_where_it_was_first_seen() -> None:
    made = forest()
    made.set_quota(spec("a"), "t")

    made.set_quota(spec("a"), "other")

    assert made.tree_ids["a"] == "t"
    assert made.tree("other") is None


def test_reserved_quotas_cannot_be_removed() -> None:
    made = forest()

    made.remove_quota(DEFAULT)

    assert made.tree_ids[DEFAULT] == ""


def test_a_pod_that_changes_its_tree_counts_in_the_new_one_only() -> None:
    made = forest()
    made.set_quota(spec("a"))
    made.set_quota(spec("b"), "t")
    pod = QuotaPodRequest(key="d/p", request=cpu(2), is_on_node=True)
    tree(made, "").add_pod("a", pod)

    made.move_pod(pod, QuotaRef("a"), QuotaRef("b", "t"))

    before, after = tree(made, "").get("a"), tree(made, "t").get("b")
    assert before is not None
    assert after is not None
    assert (before.below.used, after.below.used) == (nanos_of(cpu(0)), nanos_of(cpu(2)))
