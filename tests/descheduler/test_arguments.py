"""Arguments of plugins are taken up to their bounds and refused right beyond them, by the name of the field."""

import math
from typing import Any

import pytest

from koordinator.api.errors import ProtocolError
from koordinator.descheduler.plugins.built_in import BUILT_IN

LEVELS = [{"name": "a", "nodeSelector": {}}, {"name": "b", "nodeSelector": {}}]
CRITICAL = 2_000_000_000
BOUNDS = [
    ("LowNodeLoad", "numberOfNodes", 0, -1),
    ("LowNodeLoad", "nodeMetricExpirationSeconds", 1, 0),
    ("LowNodeLoad", "highThresholds.cpu", 0, -1),
    ("LowNodeLoad", "lowThresholds.cpu", 1e308, math.inf),
    ("LowNodeLoad", "anomalyCondition.consecutiveAbnormalities", 1, -1),
    ("LowNodeLoad", "anomalyCondition.consecutiveNormalities", 1, -1),
    ("LowNodeLoad", "anomalyCondition.timeout", "-1ns", "1 minute"),
    ("MigrationController", "maxConcurrentReconciles", 1, -1),
    ("MigrationController", "evictBurst", 1, -1),
    ("MigrationController", "evictQPS", "0.1", "-0.1"),
    ("MigrationController", "maxMigratingGlobally", 0, -1),
    ("MigrationController", "maxMigratingPerNode", 0, -1),
    ("MigrationController", "maxMigratingPerWorkload", "0%", "-1%"),
    ("MigrationController", "objectLimiters.workload.maxMigrating", "1%", "-1%"),
    ("MigrationController", "maxMigratingPerNamespace", 0, -1),
    ("MigrationController", "defaultJobTTL", "0s", "-1ns"),
    ("MigrationController", "arbitrationArgs.interval", "1ns", "0s"),
    ("MigrationController", "priorityThreshold.value", CRITICAL, CRITICAL + 1),
    ("MigrationController", "objectLimiters.workload.duration", "0s", "-1ns"),
    ("MigrationController", "objectLimiters.workload.burst", 0, -1),
    ("FragmentationAware", "imbalanceThreshold", 0, -0.01),
    ("FragmentationAware", "minImprovementThreshold", 0, -0.01),
    ("CustomPriority", "evictionOrder", LEVELS, LEVELS[:1]),
    ("ScaleDownBinPack", "maxPodsToEvict", 1, 0),
    ("ScaleDownBinPack", "resourceWeights.cpu", 0.01, 0),
]

BESIDE: dict[str, dict[str, Any]] = {"ScaleDownBinPack": {"strategy": "EvictDirectly", "maxPodsToEvict": 1}}
"""What the arguments need beside the field."""


def arguments(plugin: str, field: str, value: Any) -> dict[str, Any]:
    found = {key: other for key, other in BESIDE.get(plugin, {}).items() if key != field}
    *parents, name = field.split(".")
    inner = found
    for parent in parents:
        inner = inner.setdefault(parent, {})
    inner[name] = value
    return found


@pytest.mark.parametrize(
    ("plugin", "field", "last", "beyond"), BOUNDS, ids=[f"{plugin}.{field}" for plugin, field, _, _ in BOUNDS]
)
def test_a_bound_is_taken_and_what_lies_beyond_is_refused(
    plugin: str, field: str, last: Any, beyond: Any
) -> None:
    BUILT_IN[plugin].read(arguments(plugin, field, last))

    with pytest.raises(ProtocolError) as refused:
        BUILT_IN[plugin].read(arguments(plugin, field, beyond))
    assert field.split(".")[0] in str(refused.value)


@pytest.mark.parametrize("raw", [{}, {"mode": ""}])
def test_the_mode_of_custom_priority_is_told_where_none_is_given(raw: dict[str, Any]) -> None:
    assert BUILT_IN["CustomPriority"].completed(raw).mode == "BestEffort"
