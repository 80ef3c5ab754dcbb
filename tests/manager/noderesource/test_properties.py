"""What must hold for any node, whatever its pods, reports, cards and settings are."""

import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api import labels, resources, slo_config
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.device import Device
from koordinator.api.node_metric import NodeMetricStatus
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.manager.config import amplification, colocation_config, cpu_normalization
from koordinator.manager.noderesource import account, decide, plugins
from koordinator.manager.noderesource import target as targets
from koordinator.manager.noderesource.decide import Withdrawal
from koordinator.manager.noderesource.ledger import ledgers
from koordinator.manager.noderesource.rows import NodeRow, reading_of, zones_need_write, zones_target
from koordinator.manager.noderesource.target import NodeTarget
from tests.manager.noderesource.world import topology_body

NOW_S = 1_700_000_000.0
BATCH_CPU, BATCH_MEMORY = resources.BATCH_RESOURCES
DATA = {
    "cpu-normalization-config": (
        '{"enable": true, "ratioModel": {"Xeon A": {"hyperThreadTurboEnabledRatio": 1.5}}}'
    ),
    "resource-amplification-config": '{"enable": true, "resourceAmplificationRatio": {"cpu": 1.3, "memory": 1}}',
}
NORMALIZATION = cpu_normalization.sync(cpu_normalization.DEFAULT_CONFIG, DATA).config
AMPLIFICATION = amplification.sync(amplification.DEFAULT_CONFIG, DATA).config
PLUGINS = plugins.chosen(("*",), normalization=lambda: NORMALIZATION, amplified=lambda: AMPLIFICATION)

cpu = st.integers(0, 150_000).map(lambda milli: f"{milli}m")
memory = st.integers(0, 200 * 10**9).map(str)
usage = st.fixed_dictionaries({"cpu": cpu, "memory": memory})
pods = st.lists(
    st.tuples(
        usage, st.none() | usage, st.sampled_from(["LSE", "LSR", "LS", "BE", ""]), st.sampled_from([0, 1, 7])
    ),
    max_size=4,
)
strategy = st.fixed_dictionaries(
    {
        "enable": st.just(True) | st.booleans(),
        "cpuReclaimThresholdPercent": st.integers(0, 120),
        "memoryReclaimThresholdPercent": st.integers(0, 120),
        "cpuCalculatePolicy": st.sampled_from(["usage", "maxUsageRequest"]),
        "memoryCalculatePolicy": st.sampled_from(["usage", "request", "maxUsageRequest"]),
        "midUnallocatedPercent": st.integers(0, 100),
    }
)
nodes = st.fixed_dictionaries(
    {
        "capacity": st.fixed_dictionaries(
            {"cpu": st.integers(0, 128).map(str), "memory": st.integers(0, 512).map(lambda gib: f"{gib}Gi")}
        ),
        "system": usage,
        "pods": pods,
        "gone": st.lists(usage, max_size=2),
        "age_s": st.sampled_from([0, 0, 0, 900, 901]),
        "model": st.sampled_from(["Xeon A", "Xeon B", ""]),
        "cards": st.integers(0, 2),
        "taken": st.none() | st.integers(0, 100_000),
        "strategy": strategy,
    }
)
Body = dict[str, Any]


def row_of(body: Body, name: str = "n1") -> NodeRow:
    """A row as the fleet makes it."""
    row = NodeRow(name)
    amounts = body["capacity"]
    annotations = {}
    if body["taken"] is not None:
        taken = {"name": "yarn", "priority": "koord-batch", "resources": {BATCH_CPU: str(body["taken"])}}
        annotations[labels.NODE_THIRD_PARTY_ALLOCATIONS] = json.dumps({"allocations": [taken]})
    row.see_node(
        from_builtins(
            {
                "metadata": {"name": name, "annotations": annotations},
                "status": {"capacity": amounts, "allocatable": dict(amounts)},
            },
            Node,
        )
    )
    reported = []
    for number, (request, used, qos, zone) in enumerate(body["pods"]):
        pod = from_builtins(_pod(number, request, qos, zone), Pod)
        facts = account.pod_facts(pod)
        assert facts is not None
        row.pods[pod.key] = facts
        if used is not None:
            reported.append({"name": f"p{number}", "namespace": "d", "podUsage": {"resources": used}})
    reported += [
        {"name": f"gone{number}", "namespace": "d", "podUsage": {"resources": used}}
        for number, used in enumerate(body["gone"])
    ]
    status = {
        "updateTime": "2023-11-14T22:13:20Z",
        "nodeMetric": {
            "systemUsage": {"resources": body["system"]},
            "nodeUsage": {"resources": body["system"]},
        },
        "podsMetric": reported,
        "prodReclaimableMetric": {"resource": {"resources": {"cpu": "9", "memory": "9G"}}},
    }
    row.see_reading(reading_of(from_builtins(status, NodeMetricStatus)), NOW_S)
    if body["model"]:
        row.see_topology(from_builtins(topology_body(name, body["model"]), NodeResourceTopology))
    card = {"type": "gpu", "health": True, "resources": {"koordinator.sh/gpu-core": "100"}}
    device = {"metadata": {"name": name}, "spec": {"devices": [card] * body["cards"]}}
    row.see_device(from_builtins(device, Device), publishes_shared=True)
    config = slo_config.COLOCATION.decode(json.dumps({**body["strategy"], "enable": True}))
    own = slo_config.NODE_COLOCATION_STRATEGY.decode(json.dumps(body["strategy"]))
    row.strategy = colocation_config.resource_strategy(config, own)
    row.withdrawal = decide.withdrawal(
        is_enabled=row.strategy.enabled,
        degrade_s=row.strategy.degrade_s,
        reported_s=row.reported_s,
        now_s=NOW_S + body["age_s"],
        has_node=row.reading.report.has_node,
    )
    return row


def _pod(number: int, request: Body, qos: str, zone: int) -> Body:
    bound = {"numaNodeResources": [{"node": zone, "resources": {}}]}
    return {
        "metadata": {
            "name": f"p{number}",
            "namespace": "d",
            "labels": {labels.QOS_CLASS: qos} if qos else {},
            "annotations": {"scheduling.koordinator.sh/resource-status": json.dumps(bound)} if zone else {},
        },
        "spec": {"containers": [{"name": "c", "resources": {"requests": request}}]},
        "status": {"phase": "Running"},
    }


def decided(rows: list[NodeRow]) -> list[NodeTarget]:
    found = [NodeTarget() for _ in rows]
    for plugin in PLUGINS:
        plugin.calculate(rows, found)
    return found


@settings(max_examples=50, deadline=None)
@given(st.lists(nodes, min_size=1, max_size=5))
def test_many_nodes_at_once_are_told_what_each_alone_is_reported(bodies: list[Body]) -> None:
    names = [f"n{number}" for number in range(len(bodies))]

    together = decided([row_of(body, name) for body, name in zip(bodies, names, strict=True)])

    alone = [decided([row_of(body, name)])[0] for body, name in zip(bodies, names, strict=True)]
    assert together == alone


@settings(max_examples=100, deadline=None)
@given(nodes)
def test_the_terms_of_what_is_lent_sum_to_it_exactly(body: Body) -> None:
    row = row_of(body)
    (target,) = decided([row])

    found = ledgers(row, target)

    assert bool(found) == (row.withdrawal is Withdrawal.NONE)
    for ledger, names in zip(found, (resources.BATCH_RESOURCES, resources.MID_RESOURCES), strict=False):
        sums = [sum(term.cpu_milli for term in ledger.terms), sum(term.memory_bytes for term in ledger.terms)]
        assert sums == [target.amounts[name] for name in names] == [ledger.cpu_milli, ledger.memory_bytes]
        assert all(
            abs(term.memory_bytes) <= len(ledger.terms) for term in ledger.terms if term.name == "rounding"
        )
        signs = {term.name: (term.cpu_milli, term.memory_bytes) for term in ledger.terms}
        for name in ("services", "reserved", "system", "cap", "third parties"):
            assert max(signs.get(name, (0, 0))) <= 0, name


@settings(max_examples=50, deadline=None)
@given(nodes)
def test_a_second_round_writes_nothing(body: Body) -> None:
    row = row_of(body)
    (first,) = decided([row])
    assert row.node is not None
    _apply(row, first)

    (second,) = decided([row])

    assert targets.node_patch(row.node, second, with_status=True) == {}
    assert not targets.needs_status(row.have, second, 0.0) and not targets.needs_metadata(row.node, second)
    if row.topology is not None:
        assert not zones_need_write(row.topology.zones, second.zones, 0.0)


def _apply(row: NodeRow, target: NodeTarget) -> None:
    """What the API server makes of our writes."""
    assert row.node is not None
    patch = targets.node_patch(row.node, target, with_status=True)
    status, meta = patch.get("status", {}), patch.get("metadata", {})
    body: Body = {
        "metadata": {
            "name": row.name,
            "annotations": _merged(row.node.metadata.annotations, meta.get("annotations", {})),
            "labels": _merged(row.node.metadata.labels, meta.get("labels", {})),
        },
        "status": {
            field: _merged(getattr(row.node.status, field), status.get(field, {}))
            for field in ("capacity", "allocatable")
        },
    }
    # Round by round what somebody else might do in between: nothing.
    strategy, withdrawal = row.strategy, row.withdrawal
    row.see_node(from_builtins(body, Node))
    row.strategy, row.withdrawal = strategy, withdrawal
    if row.topology is not None:
        updated, _ = zones_target(row.topology.zones, target.zones, 0.0)
        row.see_topology(
            NodeResourceTopology(metadata=row.topology.metadata, topology_policies=[], zones=updated)
        )


def _merged(have: Body, changes: Body) -> Body:
    return {key: value for key, value in {**have, **changes}.items() if value is not None}


@settings(max_examples=50, deadline=None)
@given(nodes)
def test_what_is_lent_fits_into_what_the_node_has(body: Body) -> None:
    row = row_of(body)

    (found,) = decided([row])

    if row.withdrawal is not decide.Withdrawal.NONE:
        assert found.amounts[BATCH_CPU] is None and found.amounts[resources.MID_CPU] is None
        assert not any(amount for zone in found.zones.values() for amount in zone.values())
        return
    assert row.facts is not None and row.strategy is not None and found.origin is not None
    capacity = row.facts.capacity
    overhead = max(row.reading.report.system_usage[0] / account.NANO_PER_MILLI, row.facts.reserved[0])
    lendable = capacity[0] * row.strategy.reclaim.cpu_percent / 100 - overhead
    ratio = max(found.normalization, 1.0)
    assert found.origin[BATCH_CPU] <= max(lendable, 0) * ratio + 2
    left, taken = found.amounts[BATCH_CPU], body["taken"] or 0
    assert left is not None and left == max(found.origin[BATCH_CPU] - taken, 0)
    mid_cpu = found.amounts[resources.MID_CPU]
    assert mid_cpu is not None and 0 <= mid_cpu <= capacity[0]
    for amounts in found.zones.values():
        zone_cpu = amounts[BATCH_CPU]
        assert zone_cpu is not None and 0 <= zone_cpu <= 50_000 * 1.2 * ratio + 1


@settings(max_examples=50, deadline=None)
@given(nodes, usage)
def test_more_usage_never_lends_more(body: Body, more: Body) -> None:
    busier = copy.deepcopy(body)
    busier["gone"] = [*body["gone"], more]  # a service that nobody has seen ending yet

    (calm,), (busy,) = decided([row_of(body)]), decided([row_of(busier)])

    for name in (BATCH_CPU, BATCH_MEMORY):
        assert (busy.amounts[name] or 0) <= (calm.amounts[name] or 0)
        for zone, amounts in calm.zones.items():
            assert (busy.zones[zone][name] or 0) <= (amounts[name] or 0)
