"""The rules of quotas: whatever is asked for in whatever order, what is allowed never contradicts itself."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import labels, quantity, resource_list
from koordinator.api.sigs import ElasticQuota
from koordinator.manager.quota import validation
from koordinator.manager.quota.evaluation import PodRefusal
from koordinator.manager.quota.tree import ROOT, QuotaTree, quota_info
from koordinator.manager.quota.validation import QuotaRefusal, QuotaRules
from tests.manager.quota.builders import quota

RULES = QuotaRules()


class Pods:
    """Pods by the quota that they name, and the namespaces where any live."""

    def __init__(self, labelled: dict[str, list[str]] | None = None, namespaces: Sequence[str] = ()) -> None:
        self._labelled, self._namespaces = labelled or {}, namespaces

    def labelled(self, name: str) -> Sequence[str]:
        return self._labelled.get(name, [])

    def is_any_in(self, namespace: str) -> bool:
        return namespace in self._namespaces


def tree_of(*quotas: ElasticQuota) -> QuotaTree:
    tree = QuotaTree()
    for each in quotas:
        tree.put(quota_info(each))
    return tree


def update(
    tree: QuotaTree,
    new: ElasticQuota,
    old: ElasticQuota,
    *,
    rules: QuotaRules = RULES,
    pods: Pods | None = None,
) -> QuotaRefusal:
    return validation.check_update(tree, old, new, rules, pods or Pods()).refusal


QUOTAS = st.builds(
    lambda name, parent, low, is_parent: quota(name, parent, low={"cpu": str(low)}, is_parent=is_parent),
    name=st.sampled_from("abcd"),
    parent=st.sampled_from(["", "a", "b", "c", "d"]),
    low=st.integers(0, 6),
    is_parent=st.booleans(),
)


@given(requests=st.lists(st.tuples(st.sampled_from(["apply", "delete"]), QUOTAS), max_size=25))
def test_allowed_changes_keep_the_tree_sound(requests: list[tuple[str, ElasticQuota]]) -> None:
    tree = QuotaTree()
    objects: dict[str, ElasticQuota] = {}
    for action, new in requests:
        name = new.metadata.name
        if action == "delete":
            if validation.check_delete(tree, name, Pods()).allowed:
                tree.remove(name)
                del objects[name]
            continue
        if name in objects:
            verdict = validation.check_update(tree, objects[name], new, RULES, Pods())
        else:
            verdict = validation.check_create(tree, new, RULES)
        if verdict.allowed:
            tree.put(quota_info(new))
            objects[name] = new

    for info in tree:
        children = tree.children(info.name)
        promised = resource_list.sum_of(child.min for child in children)
        assert resource_list.fits_completely(promised, info.min), (
            "more is promised than the parent is sure of"
        )
        assert info.is_parent or not children
        line = [info, *tree.ancestors(info)]
        assert line[-1].parent == ROOT, "a line of ancestors does not end at the root: a circle, or a gap"


def test_a_quota_cannot_be_moved_below_itself() -> None:
    top = quota("top", is_parent=True)
    tree = tree_of(top, quota("mid", "top", is_parent=True), quota("low", "mid", is_parent=True))

    assert update(tree, quota("top", "low", is_parent=True), top) is QuotaRefusal.CYCLE
    assert update(tree, quota("top", "top", is_parent=True), top) is QuotaRefusal.CYCLE


def test_a_quota_with_pods_in_its_old_namespaces_cannot_become_a_parent() -> None:
    old = quota("web", namespaces=["shop"])
    new = quota("web", is_parent=True)

    assert update(tree_of(old), new, old, pods=Pods(namespaces=["shop"])) is QuotaRefusal.HAS_PODS
    assert update(tree_of(old), new, old, pods=Pods(namespaces=["web"])) is QuotaRefusal.HAS_PODS
    assert update(tree_of(old), new, old, pods=Pods({"web": ["p"]})) is QuotaRefusal.HAS_PODS
    assert update(tree_of(old), new, old, pods=Pods(namespaces=["other"])) is QuotaRefusal.NONE


def test_an_update_of_other_things_is_not_checked() -> None:
    stranger = quota("nobody-knows")

    assert update(QuotaTree(), stranger, stranger) is QuotaRefusal.NONE


@pytest.mark.parametrize(
    ("annotation", "text", "refusal"),
    [
        pytest.param(
            labels.QUOTA_SHARED_WEIGHT, "{", QuotaRefusal.SHARED_WEIGHT, id="a weight that is no JSON"
        ),
        pytest.param(
            labels.QUOTA_SHARED_WEIGHT,
            '{"cpu": "-1"}',
            QuotaRefusal.SHARED_WEIGHT_NEGATIVE,
            id="a negative weight",
        ),
        pytest.param(
            labels.QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS,
            "cpu",
            QuotaRefusal.STRICT_KEYS,
            id="keys that are no list",
        ),
    ],
)
def test_a_malformed_annotation_of_a_new_quota_is_named(
    annotation: str, text: str, refusal: QuotaRefusal
) -> None:
    new = quota("web")
    new.metadata.annotations[annotation] = text

    verdict = validation.check_create(QuotaTree(), new, RULES)

    assert verdict.refusal is refusal
    assert "web" in verdict.message and annotation in verdict.message


@pytest.mark.parametrize(
    ("neighbour", "refusal"),
    [
        pytest.param(
            "11", QuotaRefusal.NONE, id="9 for team and 11 for its neighbour are what root guarantees"
        ),
        pytest.param("12", QuotaRefusal.GUARANTEE, id="one more is not"),
    ],
)
def test_a_guarantee_is_searched_up_the_tree(neighbour: str, refusal: QuotaRefusal) -> None:
    rules = QuotaRules(guarantees_usage=True)
    tree = tree_of(
        quota("root", is_parent=True, tree="t", low={"cpu": "20"}, guaranteed={"cpu": "20"}),
        quota("team", "root", is_parent=True, tree="t", low={"cpu": "9"}, guaranteed={"cpu": "5"}),
        quota("other", "root", tree="t", guaranteed={"cpu": neighbour}),
    )
    web = quota("web", "team", tree="t", low={"cpu": "8"})
    own = {labels.QUOTA_ALLOW_FORCE_UPDATE: "true"}
    forced = quota("web", "team", tree="t", low={"cpu": "8"}, own=own)

    assert validation.check_create(tree, web, rules).refusal is refusal
    assert validation.check_create(tree, web, RULES).refusal is QuotaRefusal.NONE
    assert validation.check_create(tree, forced, rules).refusal is QuotaRefusal.NONE


def test_deleting_names_at_most_two_of_the_pods_that_are_left() -> None:
    verdict = validation.check_delete(tree_of(quota("web")), "web", Pods({"web": ["p1", "p2", "p3"]}))

    assert verdict.message == "delete quota failed, quota web has 3 child pods: p1, p2, ..."


@pytest.mark.parametrize("name", [ROOT, labels.SYSTEM_QUOTA_NAME, labels.DEFAULT_QUOTA_NAME])
def test_built_in_quotas_stay(name: str) -> None:
    assert validation.check_delete(tree_of(quota(name)), name, Pods()).refusal is QuotaRefusal.FORBIDDEN


def test_an_amount_that_is_none_is_an_error_of_the_request() -> None:
    with pytest.raises(quantity.QuantityError):
        validation.check_create(QuotaTree(), quota("web", high={"cpu": "many"}), RULES)


def test_the_documentation_tells_what_to_do_about_each_rule() -> None:
    page = (Path(__file__).parents[3] / "docs" / "quotas.md").read_text()

    rules = {refusal.value for refusal in QuotaRefusal} | {refusal.value for refusal in PodRefusal}
    assert [rule for rule in sorted(rules - {""}) if f"`{rule}`" not in page] == []


@pytest.mark.parametrize(
    ("above", "below", "same", "fewer"),
    [
        ({"cpu", "memory"}, {"cpu", "memory"}, True, True),
        ({"cpu", "memory"}, {"cpu"}, False, True),
        ({"cpu"}, {"cpu", "memory"}, False, False),
        ({"cpu"}, {"memory"}, False, False),
    ],
)
def test_a_child_names_the_resources_of_its_parent_or_where_the_gate_allows_fewer(
    above: set[str], below: set[str], same: bool, fewer: bool
) -> None:
    parent = quota("top", is_parent=True, high=dict.fromkeys(above, "4"), low={})
    child = quota("low", "top", high=dict.fromkeys(below, "2"), low={})
    for rules, fits in ((QuotaRules(), same), (QuotaRules(child_keys_may_be_fewer=True), fewer)):
        found = validation.check_create(tree_of(parent), child, rules).refusal
        assert found is (QuotaRefusal.NONE if fits else QuotaRefusal.MAX_KEYS)
