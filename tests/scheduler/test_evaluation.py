"""Shared evaluations: whatever happens to the cluster, they answer what a fresh evaluation answers."""

from typing import Any

import numpy as np
import pytest

from koordinator.scheduler.engine import evaluation_cache
from koordinator.scheduler.engine.answers import EVALUATION_BYTES
from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.evaluation_cache import EvaluationCache
from koordinator.scheduler.engine.results import Placed
from koordinator.scheduler.plugins.node_filters import TaintToleration
from koordinator.scheduler.plugins.node_resources_fit import NodeResourcesFit
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.drama import HARD, Drama, spread_over


@pytest.mark.parametrize("seed", range(6))
def test_shared_evaluations_place_every_pod_as_fresh_ones_do(seed: int) -> None:
    shared, fresh = Drama(seed, classes_max=64), Drama(seed, classes_max=0)

    for _ in range(250):
        shared.step()
        fresh.step()

    assert shared.history == fresh.history
    assert shared.engine.cache.hit_count > 100
    assert fresh.engine.cache.hit_count == 0


@pytest.mark.parametrize("seed", range(4))
def test_an_evaluation_brought_up_to_date_equals_a_new_one(seed: int) -> None:
    drama = Drama(seed, classes_max=64)
    pods = [drama.pod_of(f"probe-{index}", shape) for index, shape in enumerate(drama.classes())]
    kept: dict[Any, Evaluation] = {}

    for _ in range(120):
        drama.step()
        for plugin in drama.profile.plugins:
            plugin.refresh(drama.clock.now_s)
        for info in pods:
            key = (info.key, drama.profile.live_key(info))
            if key not in kept:
                kept[key] = Evaluation(drama.profile, drama.table, info)
            evaluation = kept[key]
            evaluation.update(info)
            new = Evaluation(drama.profile, drama.table, info)
            assert evaluation.feasible.tolist() == new.feasible.tolist()
            assert np.array_equal(evaluation.totals_of(evaluation.feasible), new.totals_of(new.feasible))
            assert evaluation.fit_error() == new.fit_error()
            assert evaluation.rejected_by() == new.rejected_by()


def test_the_table_conserves_what_pods_request() -> None:
    drama = Drama(11, classes_max=64)

    for _ in range(400):
        drama.step()

    table = drama.table
    for row in table.rows.tolist():
        pods = table.pods_at(row).values()
        expected = np.zeros(len(table.registry), np.int64)
        for info in pods:
            for column, amount in info.requests:
                expected[column] += amount
        assert table.requested[:, row].tolist() == expected.tolist()
        assert table.pod_count[row] == len(pods)
    for info in drama.placed:
        drama.table.unassign(info.uid)
    assert not table.requested.any() and not table.nonzero_requested.any() and not table.pod_count.any()


def _pods_like(drama: Drama, prefix: str, shape: dict[str, Any], count: int) -> list[PodInfo]:
    return [drama.pod_of(f"{prefix}-{number}", shape) for number in range(count)]


def test_a_placement_makes_only_plugins_look_again_that_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    drama = Drama(3, classes_max=64)
    spread = {
        "cpu": "1m",
        "labels": {"app": "spread"},
        "topologySpreadConstraints": [spread_over("zone", HARD)],
    }
    fit, taints = NodeResourcesFit.filter, TaintToleration.filter
    asked: list[tuple[str, int]] = []

    def spy(name: str, original: Any) -> Any:
        def filter(self: Any, state: Any, rows: Any) -> Any:
            asked.append((name, rows.size))
            return original(self, state, rows)

        return filter

    monkeypatch.setattr(NodeResourcesFit, "filter", spy("fit", fit))
    monkeypatch.setattr(TaintToleration, "filter", spy("taints", taints))
    first, second, third = _pods_like(drama, "s", spread, 3)
    for info in (first, second):
        result = drama.engine.cycle.run(drama.profile, info, drama.profile.class_key(info), 1, 0.0)
        assert isinstance(result, Placed)
    asked.clear()

    drama.engine.cache.evaluate(drama.profile, third, drama.profile.class_key(third))

    assert asked == [("fit", 1)]


def _asked(cache: EvaluationCache, drama: Drama, names: str) -> list[str]:
    """Ask for pods of a class per name, in turn; those that were evaluated anew."""
    infos = {name: drama.pod_of(name, {"cpu": f"{ord(name)}m"}) for name in set(names)}
    missed = []
    for name in names:
        before = cache.miss_count
        cache.evaluate(drama.profile, infos[name], drama.profile.class_key(infos[name]))
        missed += [name] * (cache.miss_count - before)
    return missed


def _cache_of(drama: Drama, classes: int) -> EvaluationCache:
    size_bytes = Evaluation(drama.profile, drama.table, drama.pod_of("x", {"cpu": "1m"})).size_bytes
    return EvaluationCache(drama.table, bytes_max=classes * size_bytes)


def test_a_cache_that_is_full_forgets_the_class_not_asked_for_longest() -> None:
    drama = Drama(3, classes_max=64)
    cache = _cache_of(drama, 3)

    assert _asked(cache, drama, "aabbccaddabcd") == ["a", "b", "c", "d", "b", "c", "d"]
    assert len(cache) == 3


def test_classes_that_are_asked_for_once_do_not_push_others_out() -> None:
    drama = Drama(3, classes_max=64)
    cache = _cache_of(drama, 16)

    assert _asked(cache, drama, "abcdeabcde") == list("abcdeabc"), "more than an eighth is room for twice"
    assert _asked(cache, drama, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == list("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    assert len(cache) == 7
    assert _asked(cache, drama, "abcde") == []


def test_a_class_that_comes_again_is_kept_though_it_was_gone() -> None:
    drama = Drama(3, classes_max=64)
    cache = _cache_of(drama, 16)

    assert _asked(cache, drama, "abcdefabcdef") == list("abcdefabcd"), "e and f were still there"
    assert _asked(cache, drama, "abcdefabcdef") == []


def test_a_few_nodes_are_no_reason_to_keep_many_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation_cache, "BYTES_LEAST", 0)
    monkeypatch.setattr(evaluation_cache, "BYTES_PER_NODE", EVALUATION_BYTES)
    drama = Drama(3, classes_max=64)
    cache = EvaluationCache(drama.table)
    letters = "abcdefghijklmnopqrstuvwxyz"
    nodes = drama.table.node_count

    _asked(cache, drama, letters * 2)
    assert nodes // 2 < len(cache) < nodes < len(letters)
