"""Whether the end of a pod, or another quota, may help a pod that its quota refused."""

from types import SimpleNamespace
from typing import Any

import pytest

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.clock import FixedClock
from koordinator.scheduler.config.default_plugins import ElasticQuotaArgs
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugins.elastic_quota import hints
from koordinator.scheduler.plugins.elastic_quota.forest import QuotaRef
from koordinator.scheduler.plugins.elastic_quota.hints import QuotaQueueingHints, TreeSnapshot
from koordinator.scheduler.plugins.elastic_quota.quota import ROOT
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.elastic_quota.test_tree import spec
from tests.scheduler.world import pod

TREE = TreeSnapshot(
    parents={"leaf": "mid", "mid": "top", "top": ROOT, "other": ROOT, "a": "b", "b": "a"},
    idle={"ns/new"},
)
LEAF = QuotaRef("leaf", "")


@pytest.mark.parametrize(
    ("deleted", "key", "checks_ancestors", "helps"),
    [
        pytest.param(None, "ns/gone", True, True, id="unreadable"),
        pytest.param(QuotaRef("leaf", ""), "ns/gone", False, True, id="its own"),
        pytest.param(QuotaRef("leaf", ""), "ns/new", False, False, id="used nothing"),
        pytest.param(QuotaRef("gone", ""), "ns/gone", True, False, id="quota is gone, too"),
        pytest.param(QuotaRef("", ""), "ns/gone", True, False, id="without a quota"),
        pytest.param(QuotaRef("leaf", "t"), "ns/gone", True, False, id="of another tree"),
        pytest.param(QuotaRef("mid", ""), "ns/gone", True, True, id="a parent"),
        pytest.param(QuotaRef("top", ""), "ns/gone", True, True, id="a grandparent"),
        pytest.param(QuotaRef("top", ""), "ns/gone", False, False, id="not looked at"),
        pytest.param(QuotaRef("other", ""), "ns/gone", True, False, id="a sibling"),
    ],
)
def test_the_end_of_a_pod_helps_those_below_its_quota(
    deleted: QuotaRef | None, key: str, checks_ancestors: bool, helps: bool
) -> None:
    found = hints.on_pod_delete(LEAF, deleted, key, TREE, checks_ancestors=checks_ancestors)
    assert found is helps


def test_quotas_that_are_not_known_yet_or_not_at_all_make_a_pod_try() -> None:
    assert hints.on_pod_delete(LEAF, LEAF, "ns/gone", None)
    gone = QuotaRef("gone", "")
    assert hints.on_pod_delete(gone, gone, "ns/x", TREE)
    assert not hints.on_pod_delete(QuotaRef("", ""), LEAF, "ns/gone", TREE)


def test_parents_in_a_circle_end() -> None:
    assert not TREE.is_above("top", "a")
    assert TREE.is_above("b", "a")
    assert not TREE.is_above(ROOT, "leaf")


def test_another_quota_helps_when_something_that_counts_changed() -> None:
    old, new = spec("mid", high=10), spec("mid", high=11)

    def helps(waiting: QuotaRef = LEAF, tree_id: str = "", **more: bool) -> bool:
        options = {"checks_ancestors": True, **more}
        return hints.on_quota_update(waiting, old, new, tree_id, TREE, **options)

    assert helps()
    assert not helps(checks_ancestors=False)
    assert helps(QuotaRef("mid", ""))
    assert not helps(QuotaRef("", ""))
    assert not helps(tree_id="t")
    assert not helps(is_tree_known=False)
    for before, after in ((None, new), (old, None)):
        assert hints.on_quota_update(LEAF, before, after, "", TREE)
    assert not hints.on_quota_update(LEAF, old, spec("mid", high=10), "", TREE, checks_ancestors=True)
    assert hints.on_quota_update(LEAF, old, old, "", None, checks_ancestors=True, hooks_see_change=True)


def test_a_pod_frees_nothing_when_it_goes_that_the_snapshot_knows_without_a_place() -> None:
    registry = ResourceRegistry()

    def info(name: str) -> PodInfo:
        body = pod(name)
        body["metadata"]["labels"] = {labels.QUOTA_NAME: "team"}
        return PodInfo.of(from_builtins(body, Pod), registry)

    pods = {
        "default/idle": SimpleNamespace(is_assigned=False),
        "default/busy": SimpleNamespace(is_assigned=True),
    }
    team = SimpleNamespace(spec=spec("team", high=10), pods=pods)
    trees = {"": SimpleNamespace(quotas=lambda: [team])}
    book: Any = SimpleNamespace(
        forest=SimpleNamespace(tree=trees.get),
        quota_of=lambda pod: QuotaRef(pod.metadata.labels[labels.QUOTA_NAME], ""),
    )

    def helps(hints: QuotaQueueingHints, gone: object) -> bool:
        return hints.may_help(QueueingEvent(ClusterEvent.ASSIGNED_POD_DELETED, old=gone), info("waiting"))

    found = QuotaQueueingHints(ElasticQuotaArgs(), book, FixedClock(0.0))
    assert not helps(found, info("idle"))
    assert helps(found, info("busy"))
    assert helps(found, info("came-later"))
    assert helps(found, "what is no pod")
    trees.clear()
    without_a_tree = QuotaQueueingHints(ElasticQuotaArgs(), book, FixedClock(0.0))
    assert helps(without_a_tree, info("idle"))
