"""What follows from the arguments of LoadAwareScheduling, and which of them are refused."""

from typing import Any

import msgspec
import pytest

from koordinator.scheduler.plugins.load_aware.args import (
    LoadAwareArgs,
    LoadAwarePolicy,
    UsageAggregation,
)


def policy(**args: Any) -> LoadAwarePolicy:
    return LoadAwarePolicy.of(msgspec.convert(args, LoadAwareArgs))


def test_without_arguments_cpu_and_memory_count() -> None:
    found = policy()
    assert found.names == ("cpu", "memory")
    assert (found.usage_thresholds, found.prod_thresholds) == ((65, 95), (0, 0))
    assert found.weights.tolist() == [1, 1]
    assert found.factors == {"cpu": 85, "memory": 70}
    assert (found.aggregated_thresholds, found.filter_aggregation, found.score_aggregation) == (None,) * 3


def test_the_dominant_resource_stands_in_for_weights_that_nobody_gave() -> None:
    assert policy(dominantResourceWeight=1).weights.tolist() == [0, 0]
    assert policy(dominantResourceWeight=1, resourceWeights={"cpu": 3}).weights.tolist() == [3, 0]
    assert policy(resourceWeights={"memory": 2}).weights.tolist() == [0, 2]


def test_all_resources_that_any_argument_names_are_tracked() -> None:
    found = policy(
        usageThresholds={"b": 10},
        prodUsageThresholds={"c": 20},
        estimatedScalingFactors={"d": 120, "cpu": 50},
        supportedResources=["a"],
        aggregated={"usageThresholds": {"e": 30}},
    )
    assert found.names == ("a", "b", "c", "cpu", "d", "e", "memory")
    assert found.usage_thresholds == (0, 10, 0, 0, 0, 0, 0), "thresholds of one's own replace the usual ones"
    assert found.prod_thresholds == (0, 0, 20, 0, 0, 0, 0)
    assert found.factors == {"cpu": 50, "memory": 70, "d": 120}


@pytest.mark.parametrize(
    ("aggregated", "filters", "scores"),
    [
        ({"usageThresholds": {"cpu": 30}}, None, None),
        ({"usageAggregationType": "p95"}, None, None),
        (
            {"usageThresholds": {"cpu": 30}, "usageAggregationType": "p95", "usageAggregatedDuration": "5m"},
            UsageAggregation("p95", 300.0),
            None,
        ),
        ({"scoreAggregationType": "avg"}, None, UsageAggregation("avg", 0.0)),
        ({"scoreAggregatedDuration": "5m"}, None, None),
    ],
)
def test_percentiles_need_a_type_and_in_the_filter_thresholds(
    aggregated: dict[str, Any], filters: UsageAggregation | None, scores: UsageAggregation | None
) -> None:
    found = policy(aggregated=aggregated)
    assert (found.filter_aggregation, found.score_aggregation) == (filters, scores)
    assert found.aggregated_thresholds == ((30, 0) if filters else None)


@pytest.mark.parametrize(
    "args",
    [
        {"aggregated": {"usageAggregationType": "p42"}},
        {"aggregated": {"scoreAggregationType": "p42"}},
        {"aggregated": {"usageAggregatedDuration": "-1s"}},
        {"aggregated": {"scoreAggregatedDuration": "-1s"}},
        {"resourceWeights": {"x.io/y": 1}},
        {"resourceWeights": {"cpu": 0}},
        {"resourceWeights": {"cpu": 101}},
        {"dominantResourceWeight": 101},
        {"usageThresholds": {"cpu": 101}},
        {"usageThresholds": {"cpu": -1}},
        {"estimatedScalingFactors": {"cpu": 0}},
        {"nodeMetricExpirationSeconds": 0},
        {"estimatedSecondsAfterInitialized": -1},
    ],
)
def test_arguments_out_of_their_range_are_refused(args: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        policy(**args)


@pytest.mark.parametrize(
    "args",
    [
        {"resourceWeights": {"cpu": 1, "memory": 100}, "dominantResourceWeight": 100},
        {"usageThresholds": {"cpu": 0, "memory": 100}, "estimatedScalingFactors": {"cpu": 1}},
        {"nodeMetricExpirationSeconds": 1, "estimatedSecondsAfterInitialized": 0},
        {"resourceWeights": {"x.io/y": 1}, "estimatedScalingFactors": {"x.io/y": 100}},
    ],
)
def test_the_ends_of_the_ranges_are_allowed(args: dict[str, Any]) -> None:
    assert policy(**args).args == msgspec.convert(args, LoadAwareArgs)
