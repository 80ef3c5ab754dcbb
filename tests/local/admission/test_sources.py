"""What webhooks learn about the cluster that calls them."""

from koordinator.clock import FixedClock
from koordinator.local import registry
from koordinator.local.admission import BackendSource


def test_a_rule_for_one_version_meets_requests_in_the_others() -> None:
    backend = registry.in_memory(FixedClock(1_700_000_000.0), seed=0)
    source = BackendSource(backend)

    first = backend.resolve("autoscaling", "v1", "horizontalpodautoscalers")
    second = backend.resolve("autoscaling", "v2", "horizontalpodautoscalers")

    assert list(source.equivalents(first)) == [second]
    assert list(source.equivalents(second)) == [first]
    assert list(source.equivalents(backend.resolve("", "v1", "configmaps"))) == []
