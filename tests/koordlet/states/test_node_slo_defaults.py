"""What NodeSLO does not say is the default, and what it switches off is neutral."""

from koordinator.api import slo, slo_qos
from koordinator.api.slo import NodeSLOSpec, ResourceThresholdStrategy, SystemStrategy
from koordinator.api.slo_qos import CPUQOS, NO_QOS, MemoryQOS, ResourceQOS, ResourceQOSStrategy
from koordinator.koordlet.states.node import with_defaults


def test_an_empty_object_means_the_defaults() -> None:
    merged = with_defaults(NodeSLOSpec())

    assert merged.resource_used_threshold_with_be == slo.DEFAULT_THRESHOLD_STRATEGY
    assert merged.cpu_burst_strategy == slo.DEFAULT_CPU_BURST_STRATEGY
    assert merged.system_strategy == slo.DEFAULT_SYSTEM_STRATEGY
    assert with_defaults(merged) == merged


def test_what_is_said_wins_field_by_field() -> None:
    given = NodeSLOSpec(
        resource_used_threshold_with_be=ResourceThresholdStrategy(enable=True, cpu_suppress_min_percent=5),
        system_strategy=SystemStrategy(sched_features={"A": True}),
    )
    merged = with_defaults(given)

    threshold = merged.resource_used_threshold_with_be
    assert threshold is not None and merged.system_strategy is not None
    assert (threshold.enable, threshold.cpu_suppress_min_percent) == (True, 5)
    assert threshold.cpu_suppress_threshold_percent == 65
    assert merged.system_strategy.sched_features == {"A": True}
    assert merged.system_strategy.total_network_bandwidth == "0"


def test_a_class_that_is_on_takes_its_template_and_one_that_is_off_is_neutral() -> None:
    on = ResourceQOS(memory_qos=MemoryQOS(enable=True), cpu_qos=CPUQOS(enable=False, group_identity=2))
    merged = with_defaults(NodeSLOSpec(resource_qos_strategy=ResourceQOSStrategy(be_class=on)))

    strategy = merged.resource_qos_strategy
    assert strategy is not None and strategy.be_class is not None and strategy.ls_class is not None
    template = slo_qos.DEFAULT_BE_QOS.memory_qos
    assert template is not None and strategy.be_class.memory_qos is not None
    assert strategy.be_class.memory_qos.wmark_min_adj == template.wmark_min_adj
    assert strategy.be_class.cpu_qos == NO_QOS.cpu_qos
    assert strategy.ls_class.memory_qos == NO_QOS.memory_qos
