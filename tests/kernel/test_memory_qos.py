"""Memory QoS on this kernel: what it has is written to the groups of real processes, and put back."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from koordinator.host.cgroup_knobs import Knob
from koordinator.host.cgroups import Cgroups
from koordinator.koordlet.qos.memory_qos import MemoryQoS
from tests.kernel.conftest import Spawn, has
from tests.kernel.strategy_node import BE, LS, PODS, StrategyNode, pod_object

MIB = 1024 * 1024
CONTAINER = f"{LS}/podw/w-c0"
WEB = pod_object("w", "LS", requests={"memory": "64Mi"}, limits={"memory": "128Mi"})
BATCH = pod_object("b", "BE", "BestEffort")
WRITTEN = (
    Knob.MEMORY_MIN,
    Knob.MEMORY_LOW,
    Knob.MEMORY_HIGH,
    Knob.MEMORY_OOM_GROUP,
    Knob.MEMORY_PRIORITY,
    Knob.MEMORY_USE_PRIORITY_OOM,
    Knob.MEMORY_WMARK_RATIO,
    Knob.MEMORY_WMARK_SCALE,
    Knob.MEMORY_WMARK_MIN_ADJ,
)
ON = {
    "enable": True,
    "minLimitPercent": 50,
    "lowLimitPercent": 100,
    "throttlingPercent": 50,
    "oomKillGroup": 1,
    "priorityEnable": 1,
    "priority": 7,
    "wmarkRatio": 95,
    "wmarkScalePermill": 20,
    "wmarkMinAdj": -25,
}


@pytest.fixture
def node(real: Cgroups, group: str, tmp_path: Path) -> Iterator[StrategyNode]:
    made = StrategyNode(group, tmp_path / "restore.jsonl")
    made.make_classes()
    made.make_pod(WEB)
    made.make_pod(BATCH)
    made.know(WEB, BATCH)
    yield made
    made.host.close()


def there(node: StrategyNode) -> tuple[Knob, ...]:
    found = tuple(knob for knob in WRITTEN if has(node.host.cgroups, knob, PODS))
    if not found:
        pytest.skip("this kernel has none of the files of memory QoS")
    return found


def patch_slo(node: StrategyNode, **memory: object) -> None:
    node.patch_slo(resourceQOSStrategy={"lsClass": {"memoryQOS": memory}})


def test_every_file_that_there_is_is_written_and_put_back(node: StrategyNode, spawn: Spawn) -> None:
    knobs = there(node)
    before = node.values(*knobs)
    spawn(f"{node.group}/{CONTAINER}")
    memory = MemoryQoS(node.shared)
    patch_slo(node, **ON)

    memory.run()

    wanted = {
        Knob.MEMORY_MIN: 32 * MIB,
        Knob.MEMORY_LOW: 64 * MIB,
        Knob.MEMORY_HIGH: 96 * MIB,
        Knob.MEMORY_OOM_GROUP: 1,
        Knob.MEMORY_PRIORITY: 7,
        Knob.MEMORY_USE_PRIORITY_OOM: 1,
        Knob.MEMORY_WMARK_RATIO: 95,
        Knob.MEMORY_WMARK_SCALE: 20,
        Knob.MEMORY_WMARK_MIN_ADJ: -25,
    }
    for knob in knobs:
        assert node.host.cgroups.number(knob, CONTAINER) == wanted[knob], knob
    for each in (PODS, LS, f"{LS}/podw"):
        assert node.host.cgroups.number(Knob.MEMORY_MIN, each) == 32 * MIB
    assert node.host.cgroups.number(Knob.MEMORY_MIN, BE) == 0
    assert not memory._is_pending

    memory.disable()
    assert node.values(*knobs) == before


def test_switched_off_by_the_policy_files_are_neutral(node: StrategyNode, spawn: Spawn) -> None:
    knobs = there(node)
    spawn(f"{node.group}/{CONTAINER}")
    before = {key: text for key, text in node.values(*knobs).items() if "wmark" not in key[1]}
    memory = MemoryQoS(node.shared)
    patch_slo(node, **ON)
    memory.run()

    patch_slo(node, **{**ON, "enable": False})
    memory.run()

    assert {key: text for key, text in node.values(*knobs).items() if "wmark" not in key[1]} == before


def test_more_protection_than_memory_is_no_reason_to_fail(node: StrategyNode, spawn: Spawn) -> None:
    knobs = there(node)
    giant = pod_object("g", "LS", requests={"memory": "8Ti"}, limits={"memory": "16Ti"})
    spawn(f"{node.group}/{node.make_pod(giant)}")
    node.know(WEB, BATCH, giant)
    before = node.values(*knobs)
    memory = MemoryQoS(node.shared)
    patch_slo(node, **ON)

    memory.run()

    assert node.host.cgroups.number(Knob.MEMORY_MIN, f"{LS}/podg") == 4 * 2**40
    memory.disable()
    assert node.values(*knobs) == before
