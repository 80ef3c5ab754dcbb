"""What can be lent of GPUs: never more than is predicted free, and nothing of owners nobody knows yet."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.clock import FixedClock
from koordinator.cluster.memory import MemoryCluster
from koordinator.koordlet import agent
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.predict import gpus
from koordinator.koordlet.predict.gpu_trainer import GPUTrainer
from koordinator.koordlet.predict.reclaimable import ProdPod, ProdPods, ReclaimableAmount
from koordinator.koordlet.predict.trainer import Trainer
from koordinator.koordlet.qos.batch_gpu_evict import BatchGPUEvict
from koordinator.koordlet.qos.shadow import ShadowMode
from koordinator.koordlet.report.node_metric_reporter import NodeMetricReporter
from koordinator.local import registry
from tests.koordlet.report.agent_node import DAY_S, GIB, NOW_S, AgentNode, cards, node_object, pod_object

CARD_BYTES = 80 * GIB
CLUSTER = MemoryCluster(registry.in_memory(FixedClock(NOW_S)))
"""Never asked."""

AMOUNTS = st.builds(ReclaimableAmount, st.integers(0, 1500), st.integers(0, 100 * GIB))
OWNERS = st.lists(
    st.tuples(
        st.builds(
            ProdPod, AMOUNTS, st.floats(0, 5 * DAY_S), st.none() | AMOUNTS, st.booleans(), st.booleans()
        ),
        st.integers(0, 1),
    ),
    max_size=6,
)


@given(owners=OWNERS, peaks=st.tuples(AMOUNTS, AMOUNTS), margin=st.integers(0, 50))
def test_no_card_lends_more_than_its_owners_leave_at_their_peak(
    owners: list[tuple[ProdPod, int]], peaks: tuple[ReclaimableAmount, ReclaimableAmount], margin: int
) -> None:
    total = np.array([(1000, CARD_BYTES)] * 2, np.int64)
    pods = ProdPods.on_nodes([pod for pod, _ in owners], [card for _, card in owners])
    peak = np.array([(each.cpu_milli, each.memory_bytes) for each in peaks], np.int64)

    found = gpus.reclaimable_of(total, pods, peak, margin, DAY_S).reclaimable

    for card in (0, 1):
        for column in (0, 1):
            lent = int(found[card, column])
            assert lent >= 0
            if not lent:
                continue
            there = [pod for pod, on in owners if on == card and not pod.is_finished]
            kept = sum(_kept(pod, column, margin) for pod in there)
            promised = sum(_of(pod.request, column) for pod in there)
            most = int(total[card, column]) * 9 // 10
            assert lent <= promised
            assert lent + kept <= most
            assert lent + int(int(peak[card, column]) * (100 + margin) / 100) <= most


def _of(amount: ReclaimableAmount, column: int) -> int:
    return (amount.cpu_milli, amount.memory_bytes)[column]


def _kept(pod: ProdPod, column: int, margin: int) -> int:
    """The peak of an old pod, all that a young one asked for; an old one that terminates gives back everything."""
    if pod.age_s > DAY_S and pod.is_terminating:
        return 0
    if pod.age_s > DAY_S and pod.peak is not None:
        return int(_of(pod.peak, column) * ((100 + margin) / 100))
    return _of(pod.request, column)


class GPUNode:
    """Two cards of 80 GiB, whose pods are measured."""

    def __init__(self, root: Path) -> None:
        self.node = AgentNode(root, CLUSTER, gpus=cards(), gates="BatchGPU=true")
        self.trainer = GPUTrainer(self.node.shared)

    def minutes(self, count: int, used: Mapping[str, tuple[float, float]], card: int = 0) -> None:
        """Rounds of training; percent and GiB that each pod uses of a card."""
        for _ in range(count):
            self.node.fixed.now_s += 60
            at = {"gpu_minor": str(card), "gpu_device_uuid": f"GPU-{card}"}
            for uid, (core, memory_gib) in used.items():
                self.node.sample(kinds.POD_GPU_CORE, core, pod_uid=uid, **at)
                self.node.sample(kinds.POD_GPU_MEMORY, memory_gib * GIB, pod_uid=uid, **at)
            whole = [sum(each[i] for each in used.values()) for i in (0, 1)]
            self.node.sample(kinds.NODE_GPU_CORE, whole[0], **at)
            self.node.sample(kinds.NODE_GPU_MEMORY, whole[1] * GIB, **at)
            self.trainer.run()

    def free(self, card: int = 0) -> tuple[float, float]:
        """Percent and GiB that can be lent of a card."""
        found = self.trainer.predictions()[card].reclaimable
        return found.cpu_milli / 10, found.memory_bytes / GIB


def holder(name: str, core: int, memory_gib: int, *, minor: int = 0, prefix: str = "", **parts: Any) -> Any:
    """A pod with a part of a card."""
    amounts = {
        f"koordinator.sh/{prefix}gpu-core": str(core),
        f"koordinator.sh/{prefix}gpu-memory": f"{memory_gib}Gi",
    }
    given_ = {"gpu": [{"minor": minor, "id": f"GPU-{minor}", "resources": amounts}]}
    text = json.dumps(given_)
    return pod_object(name, annotations={"scheduling.koordinator.sh/device-allocated": text}, **parts)


def test_a_service_leaves_what_it_asked_for_and_does_not_use(tmp_path: Path) -> None:
    node = GPUNode(tmp_path)
    node.node.pods(holder("web", 100, 80))
    node.minutes(5, {"web": (20, 10)})

    core, memory = node.free()

    # 90 less 20, less a margin of a tenth; histograms round up by a twentieth.
    assert core == pytest.approx(90 - 22, abs=1.5)
    assert memory == pytest.approx(72 - 11, abs=1)
    assert node.free(1) == (0, 0)


def test_memory_counts_with_its_highest_use_even_if_that_was_short(tmp_path: Path) -> None:
    node = GPUNode(tmp_path)
    node.node.pods(holder("web", 100, 80))
    node.minutes(1, {"web": (20, 50)})
    node.minutes(60, {"web": (20, 10)})

    assert node.free()[1] == pytest.approx(72 - 55, abs=3)


def test_an_owner_that_grew_keeps_what_it_took_for_ten_minutes(tmp_path: Path) -> None:
    node = GPUNode(tmp_path)
    node.node.pods(holder("web", 100, 80))
    node.minutes(120, {"web": (20, 10)})

    node.minutes(2, {"web": (85, 10)})
    assert node.free()[0] == 0

    node.minutes(9, {"web": (20, 10)})
    assert node.free()[0] == 0
    node.minutes(1, {"web": (20, 10)})
    assert node.free()[0] == pytest.approx(90 - 22, abs=1.5)


def test_what_batch_pods_use_is_nobodys_peak(tmp_path: Path) -> None:
    node = GPUNode(tmp_path)
    node.node.pods(holder("web", 100, 80), holder("job", 60, 40, prefix="batch-", qos="BE"))
    node.minutes(5, {"web": (20, 10), "job": (60, 40)})

    assert node.free()[0] == pytest.approx(90 - 22, abs=1.5)


def test_young_pods_and_pods_that_are_no_services_lend_nothing(tmp_path: Path) -> None:
    node = GPUNode(tmp_path)
    for pod in (
        holder("new", 100, 80, age_s=3_600),
        holder("job", 100, 80, qos="BE", priority=5500, priorityClassName="koord-batch"),
    ):
        node.node.pods(pod)
        node.minutes(5, {pod.metadata.name: (5, 5)})
        assert node.free() == (0, 0)


def test_a_service_that_uses_more_than_it_asked_for_costs_what_its_neighbour_would_lend(
    tmp_path: Path,
) -> None:
    node = GPUNode(tmp_path)
    node.node.pods(holder("small", 50, 40), holder("greedy", 50, 40))
    node.minutes(5, {"small": (5, 5), "greedy": (90, 40)})

    assert node.free()[0] == 0


def test_what_was_learnt_outlives_the_agent(tmp_path: Path) -> None:
    node = GPUNode(tmp_path)
    node.node.pods(holder("web", 100, 80))
    node.minutes(5, {"web": (20, 10)})
    before = node.free()

    again = GPUNode(tmp_path)
    again.node.fixed.now_s = node.node.fixed.now_s + 10
    again.node.pods(holder("web", 100, 80))
    again.trainer.run()

    assert again.free() == pytest.approx(before, abs=0.5)


def test_the_node_metric_tells_what_each_card_leaves_and_what_its_owners_keep(tmp_path: Path) -> None:
    node = GPUNode(tmp_path)
    node.node.view.node = node_object()
    node.node.pods(holder("web", 100, 80))
    trainer = Trainer(node.node.shared)
    for _ in range(5):
        node.node.use(1.0, GIB)
        node.node.pod_uses("web", 0.5, GIB)
        node.minutes(1, {"web": (20, 10)})
        node.node.use(1.0, GIB)
        node.node.pod_uses("web", 0.5, GIB)
        trainer.run()

    status = NodeMetricReporter(
        node.node.shared, ShadowMode(node.node.shared), trainer, node.trainer
    ).status()

    assert status.prod_reclaimable_metric is not None and status.prod_peak_metric is not None
    assert status.prod_reclaimable_metric.resource.resources  # CPU and memory are told as before
    [free] = status.prod_reclaimable_metric.resource.devices
    [peak] = status.prod_peak_metric.resource.devices
    assert (free.type, free.id, free.minor) == ("gpu", "GPU-0", 0)
    core = [int(str(each.resources["koordinator.sh/gpu-core"])) for each in (free, peak)]
    assert core == [pytest.approx(68, abs=2), pytest.approx(22, abs=2)]
    assert sum(core) <= 90


@pytest.mark.parametrize("gates", ["", "BatchGPU=true"])
def test_an_agent_predicts_gpus_with_its_gate_only(tmp_path: Path, gates: str) -> None:
    node = AgentNode(tmp_path, CLUSTER, gpus=cards(), gates=gates)

    parts = agent.Parts(node.shared, ShadowMode(node.shared))

    assert any(isinstance(each, GPUTrainer) for each in parts.reporters) == bool(gates)
    [eviction] = [each for each in parts.strategies if each.name == BatchGPUEvict.name]
    assert agent.is_on(eviction, node.shared.gates) == bool(gates)
