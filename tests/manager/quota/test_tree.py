"""The quota tree: what it knows after any changes is what the last objects say."""

from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import labels, resource_list
from koordinator.api.sigs import ElasticQuota
from koordinator.manager.quota.tree import QuotaTree, quota_info
from tests.manager.quota.builders import quota

NAMES = st.sampled_from("abcd")
CHANGES = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"), NAMES, NAMES, st.lists(st.sampled_from(["n1", "n2"]), max_size=2, unique=True)
        ),
        st.tuples(st.just("remove"), NAMES, st.just(""), st.just([])),
    ),
    max_size=12,
)


@given(changes=CHANGES)
def test_the_tree_is_what_its_quotas_say(changes: list[tuple[str, str, str, list[str]]]) -> None:
    tree, known = QuotaTree(), {}
    for action, name, parent, namespaces in changes:
        if action == "put":
            known[name] = quota_info(quota(name, parent, namespaces=namespaces))
            tree.put(known[name])
        else:
            known.pop(name, None)
            tree.remove(name)

    assert {info.name: info for info in tree} == known
    for name in "abcd":
        children = sorted(info.name for info in known.values() if info.parent == name)
        assert [child.name for child in tree.children(name)] == children
    for namespace in ("n1", "n2"):
        bound = tree.bound_to(namespace)
        assert bound is None or namespace in bound.namespaces


AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory"]), st.sampled_from(["0", "1500m", "7"]))
PUTS = st.builds(
    lambda name, parent, low, high, guaranteed, tree: quota(
        name, parent, low=low, high=high, guaranteed=guaranteed, tree=tree
    ),
    NAMES,
    NAMES,
    AMOUNTS,
    AMOUNTS,
    AMOUNTS,
    st.sampled_from(["", "t1"]),
)


@given(changes=st.lists(st.one_of(PUTS, NAMES), max_size=15), asked=PUTS)
def test_what_is_kept_about_children_is_what_a_look_at_each_says(
    changes: list[ElasticQuota | str], asked: ElasticQuota
) -> None:
    tree = QuotaTree()
    for change in changes:
        if isinstance(change, str):
            tree.remove(change)
        else:
            tree.put(quota_info(change))

    for name in "abcd":
        children = tree.children(name)
        assert tree.child_count(name) == len(children)
        assert tree.children_min(name) == resource_list.sum_of(child.min for child in children)
        assert set(tree.child_max_keys(name)) == {frozenset(child.max) for child in children}
        assert set(tree.child_min_keys(name)) == {frozenset(child.min) for child in children}
        assert set(tree.child_tree_ids(name)) == {child.tree_id for child in children}
    info = quota_info(asked)
    others = [child for child in tree.children(info.parent) if child.name != info.name]
    for kept, each in (
        (tree.siblings_min(info), (other.min for other in others)),
        (tree.siblings_guaranteed(info), (other.guaranteed for other in others)),
    ):
        assert resource_list.is_equal_ignoring_zeros(kept, resource_list.sum_of(each))


def test_a_namespace_is_bound_to_the_first_that_says_so_until_that_is_gone() -> None:
    tree = QuotaTree()
    for name in ("first", "second"):
        tree.put(quota_info(quota(name, namespaces=["shop"])))

    bound = tree.bound_to("shop")
    assert bound is not None and bound.name == "first"
    tree.remove("first")
    bound = tree.bound_to("shop")
    assert bound is not None and bound.name == "second"
    tree.remove("second")
    assert tree.bound_to("shop") is None


@given(changes=CHANGES)
def test_walking_up_ends_even_in_a_circle(changes: list[tuple[str, str, str, list[str]]]) -> None:
    tree = QuotaTree()
    for _, name, parent, _ in changes:
        tree.put(quota_info(quota(name, parent or "a")))

    for info in tree:
        above = [each.name for each in tree.ancestors(info)]
        assert len(above) == len(set(above))
        assert info.name not in above


def test_deprecated_resource_names_are_the_current_ones() -> None:
    info = quota_info(quota("a", high={"koordinator.sh/batch-cpu": "5"}))

    assert list(info.max) == ["kubernetes.io/batch-cpu"]


def test_a_malformed_guarantee_counts_as_none() -> None:
    body = quota("a", guaranteed={"cpu": "1"})
    body.metadata.annotations[labels.QUOTA_GUARANTEED] = "{"

    assert quota_info(body).guaranteed == {}


def test_the_debug_view_shows_facts_and_family() -> None:
    tree = QuotaTree()
    tree.put(quota_info(quota("team", is_parent=True, low={"cpu": "1"})))
    tree.put(quota_info(quota("web", "team", own={labels.QUOTA_ALLOW_LENT_RESOURCE: "false"})))

    view = tree.debug_view()

    assert view["quotaHierarchyInfo"] == {labels.ROOT_QUOTA_NAME: ["team"], "team": ["web"]}
    assert view["quotaInfoMap"]["web"] == {  # type: ignore[index]
        "name": "web",
        "parentName": "team",
        "isParent": False,
        "allowLentResource": False,
        "max": {"cpu": "100"},
        "min": {},
    }
