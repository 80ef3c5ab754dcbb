"""What is kept of a NodeMetric says the same as the report."""

from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import quantity
from koordinator.api.decode import from_builtins
from koordinator.api.node_metric import NodeMetric
from koordinator.descheduler.measurements import PodAmounts, measured

AMOUNTS = st.one_of(
    st.integers(0, 1 << 62).map(str),  # bytes: more billionths than 64 bits have
    st.integers(0, 10**6).map(lambda milli: f"{milli}m"),
    st.integers(0, 10**12).map(lambda nano: f"{nano}n"),
    st.integers(-5, 0).map(str),
)
PODS = st.dictionaries(
    st.sampled_from([f"pod-{number}" for number in range(5)]),
    st.dictionaries(st.sampled_from(["cpu", "memory", "kubernetes.io/batch-cpu"]), AMOUNTS),
)


def amounts_of(used: dict[str, dict[str, str]]) -> PodAmounts:
    entries = [
        {"namespace": "shop", "name": name, "podUsage": {"resources": own}} for name, own in used.items()
    ]
    return measured(from_builtins({"status": {"podsMetric": entries}}, NodeMetric)).pods


@given(PODS)
def test_each_pod_uses_what_was_reported_of_it(used: dict[str, dict[str, str]]) -> None:
    expected = {
        f"shop/{name}": {resource: quantity.of(raw).nanos for resource, raw in own.items()}
        for name, own in used.items()
    }

    assert dict(amounts_of(used)) == expected


@given(PODS, st.sets(st.sampled_from(["shop/pod-0", "shop/pod-1", "shop/gone"])))
def test_sums_are_exact(used: dict[str, dict[str, str]], some: set[str]) -> None:
    found = amounts_of(used)

    for name in ("cpu", "memory", "pods"):
        assert found.total(name) == sum(own.get(name, 0) for own in found.values())
        assert found.total(name, found.rows(some)) == sum(
            own.get(name, 0) for key, own in found.items() if key in some
        )


def test_a_pod_that_is_reported_twice_counts_twice_and_its_last_report_is_its_usage() -> None:
    entries = [
        {"namespace": "shop", "name": name, "podUsage": {"resources": {"cpu": f"{milli}m"}}}
        for name, milli in (("db-0", 100), ("web", 7), ("db-0", 20))
    ]
    found = measured(from_builtins({"status": {"podsMetric": entries}}, NodeMetric)).pods

    assert found["shop/db-0"] == {"cpu": 20 * 10**6}
    assert found.total("cpu") == 127 * 10**6
    assert found.total("cpu", found.rows(["shop/db-0"])) == 120 * 10**6
    assert found.total("cpu", found.rows(["shop/web", "shop/db-0"])) == 127 * 10**6


def test_a_report_that_cannot_be_read_says_why() -> None:
    found = measured(
        from_builtins({"status": {"podsMetric": [{"podUsage": {"resources": {"cpu": "much"}}}]}}, NodeMetric)
    )

    assert "much" in found.problem and not found.pods
