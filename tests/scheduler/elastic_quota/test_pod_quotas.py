"""Places are remembered; they are those that looking again would find, whatever happens to quotas."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api import decode, labels
from koordinator.api.core import Pod
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.sigs import ElasticQuota
from koordinator.clock import FixedClock
from koordinator.scheduler.config.default_plugins import ElasticQuotaArgs
from koordinator.scheduler.plugins.elastic_quota import checks
from koordinator.scheduler.plugins.elastic_quota.book import QuotaBook
from koordinator.scheduler.plugins.elastic_quota.checks import PodQuota, PodQuotaCache

NAMES = ("one", "two", "three", labels.ROOT_QUOTA_NAME)
PREFIX = "quota.scheduling.koordinator.sh"


def book_with(gates: str = "") -> QuotaBook:
    return QuotaBook(ElasticQuotaArgs(), FeatureGates.of(Component.SCHEDULER, gates), FixedClock())


def quota(name: str, namespace: str, parent: str, bound: tuple[str, ...], tree: str = "") -> ElasticQuota:
    own = {f"{PREFIX}/parent": parent} if parent != name else {}
    if tree:
        own[f"{PREFIX}/tree-id"] = tree
    notes = {f"{PREFIX}/namespaces": json.dumps(bound)} if bound else {}
    body = {
        "metadata": {"name": name, "namespace": namespace, "labels": own, "annotations": notes},
        "spec": {"min": {"cpu": "1"}, "max": {"cpu": "4"}},
    }
    return decode.from_builtins(body, ElasticQuota)


def pod(label: str, namespace: str) -> Pod:
    own = {labels.QUOTA_NAME: label} if label else {}
    return decode.from_builtins({"metadata": {"name": "pod", "namespace": namespace, "labels": own}}, Pod)


def look_of(place: object) -> object:
    if not isinstance(place, PodQuota):
        return place
    return place.ref, place.path, [id(each) for each in place.known], id(place.tree)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(("", "DisableDefaultQuota=true", "MultiQuotaTree=true")))
def test_what_is_remembered_of_a_pod_is_where_it_belongs(seed: int, gates: str) -> None:
    rng, book = random.Random(seed), book_with(gates)
    remembered = PodQuotaCache(book, has_runtime=True, asks_ancestors=True)
    pods = [pod(label, namespace) for label in ("", "unknown", *NAMES) for namespace in (*NAMES, "other")]
    for _ in range(12):
        name = rng.choice(NAMES)
        if rng.random() < 0.3 and name in book.objects:
            book.remove_quota(book.objects[name])
        else:
            bound = tuple(rng.sample((*NAMES, "other"), rng.randrange(3)))
            tree = rng.choice(("", "blue"))
            book.set_quota(quota(name, rng.choice((name, "quotas")), rng.choice(NAMES), bound, tree))
        anew = PodQuotaCache(book, has_runtime=True, asks_ancestors=True)
        for each in rng.sample(pods, len(pods)):
            assert look_of(remembered.of(each)) == look_of(anew.of(each)), each.metadata


def test_no_more_labels_are_remembered_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "REMEMBERED_MAX", 10)
    book = book_with()
    remembered = PodQuotaCache(book, has_runtime=True, asks_ancestors=False)
    for number in range(35):
        remembered.of(pod(f"unknown-{number}", "other"))
        assert len(remembered._places) <= 10
