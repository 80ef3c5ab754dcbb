"""Which news about nodes and their objects put a node into the queue."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from koordinator.api.core import Node
from koordinator.api.decode import from_builtins
from koordinator.api.slo import NodeSLO
from koordinator.clock import FixedClock
from koordinator.manager.config.slo_configs import ConfigSection
from koordinator.manager.metrics import ManagerMetrics
from koordinator.manager.per_node.node_objects import NodeObjects


class News:
    """Informers that tell what a test says."""

    def __init__(self) -> None:
        self.updated: dict[type[Any], Callable[[Any, Any], None]] = {}

    def informer(self, view: type[Any]) -> Any:
        def add_handler(added: object, updated: Callable[[Any, Any], None], deleted: object) -> None:
            self.updated[view] = updated

        return SimpleNamespace(add_handler=add_handler)


def objects_of(news: News) -> NodeObjects[NodeSLO]:
    metrics = ManagerMetrics(FixedClock(0.0))
    configs = SimpleNamespace(on_change=lambda section, listener: None)
    shared: Any = SimpleNamespace(cluster=None, factory=news, metrics=metrics, configs=configs)
    rules: Any = SimpleNamespace(matters=lambda old, new: old.metadata.labels != new.metadata.labels)
    section, reconciles = ConfigSection.NODE_SLO, metrics.nodeslo_reconciles
    return NodeObjects(shared, NodeSLO, rules, section, name="x", reconciles=reconciles)


def slo(generation: int, **marks: str) -> NodeSLO:
    meta = {"name": "n1", "generation": generation, "labels": marks}
    return from_builtins({"metadata": meta, "spec": {}}, NodeSLO)


@pytest.mark.parametrize(
    ("old", "new", "is_queued"),
    [
        pytest.param(slo(1), slo(2), True, id="another spec"),
        pytest.param(slo(2), slo(2, a="b"), False, id="only labels or a report"),
        pytest.param(slo(0), slo(0), True, id="an API that does not count specs"),
    ],
)
async def test_an_object_is_looked_at_again_when_its_spec_may_have_changed(
    old: NodeSLO, new: NodeSLO, is_queued: bool
) -> None:
    news = News()
    objects = objects_of(news)

    news.updated[NodeSLO](old, new)

    assert len(objects.queue) == is_queued


async def test_a_node_is_looked_at_again_when_what_counts_has_changed_and_on_every_resync() -> None:
    news = News()
    objects = objects_of(news)

    def node(name: str, **marks: str) -> Node:
        return from_builtins({"metadata": {"name": name, "labels": marks}}, Node)

    same = node("resynced")
    news.updated[Node](node("quiet"), node("quiet"))
    assert len(objects.queue) == 0
    news.updated[Node](same, same)
    news.updated[Node](node("marked"), node("marked", a="b"))
    assert [await objects.queue.get() for _ in range(2)] == ["resynced", "marked"]
