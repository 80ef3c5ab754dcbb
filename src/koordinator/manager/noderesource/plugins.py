"""The values that the manager keeps on nodes, one plugin per subject, by the names that `--noderesource-plugins`
knows.

A plugin looks at many nodes at once and writes into each node's target what the node should say of the
plugin's own keys. It knows no API and no clock. A plugin that is not chosen does nothing: its keys stay.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from koordinator.api import labels, node_labels, resources
from koordinator.api.annotations.node import CPUBasicInfo
from koordinator.api.core import Node
from koordinator.api.errors import ProtocolError
from koordinator.api.slo_config import CPUNormalizationConfig, ResourceAmplificationConfig
from koordinator.cluster.controller import is_controller_enabled
from koordinator.manager.config import amplification, cpu_normalization
from koordinator.manager.noderesource import account, decide, hours, lent_gpus
from koordinator.manager.noderesource.batch import MILLI
from koordinator.manager.noderesource.decide import Withdrawal, ZoneInputs
from koordinator.manager.noderesource.rows import DeviceTarget, NodeRow, withdrawn_zones
from koordinator.manager.noderesource.target import BATCH, NOT_LENT, NodeTarget, Note, lend, whole_amount
from koordinator.manager.options import NODE_RESOURCE_PLUGINS

AMPLIFICATION_FAILED = "ResourceAmplificationFailed"

_AMPLIFICATION_KEY = labels.NODE_RESOURCE_AMPLIFICATION_RATIO
_NORMALIZATION_KEY = labels.NODE_CPU_NORMALIZATION_RATIO


class ResourceAmplification:
    """A node without co-location, or whose ratios cannot be told, must not have the annotation, nor what it did."""

    name = "ResourceAmplification"

    def __init__(self, config: Callable[[], ResourceAmplificationConfig]) -> None:
        self._config = config

    def calculate(self, rows: Sequence[NodeRow], targets: Sequence[NodeTarget]) -> int:
        """See `Plugin`."""
        config = self._config()
        failures = 0
        for row, target in zip(rows, targets, strict=True):
            assert row.node is not None
            text = None
            if row.is_enabled:
                annotations = _annotations(row.node.metadata.annotations, target)
                try:
                    own = row.node.metadata.labels
                    text = amplification.annotation_text(
                        amplification.node_ratios(config, row.name, own, annotations)
                    )
                except ProtocolError as error:
                    failures += 1
                    target.notes.append(Note(AMPLIFICATION_FAILED, str(error)))
            if amplification.needs_sync(row.node.metadata.annotations.get(_AMPLIFICATION_KEY), text):
                target.annotations[_AMPLIFICATION_KEY] = text
                if text is None:
                    _put_back(row.node, target)
        return failures


def _put_back(node: Node, target: NodeTarget) -> None:
    """A node that is no longer amplified has at once what its kubelet reports, not from its next report on."""
    annotations = node.metadata.annotations
    if labels.NODE_RAW_ALLOCATABLE not in annotations:
        return
    target.annotations[labels.NODE_RAW_ALLOCATABLE] = None
    target.native.update(amplification.raw_allocatable(node))


def _annotations(own: Mapping[str, str], target: NodeTarget) -> Mapping[str, str]:
    """Return the annotations that the node will have, so that a new normalization ratio counts in the same round."""
    written = target.annotations.get(_NORMALIZATION_KEY)
    return own if written is None else {**own, _NORMALIZATION_KEY: written}


NORMALIZATION_FAILED = "CPUNormalizationFailed"


class CPUNormalization:
    """Nodes without co-location, and those whose ratio cannot be told, keep what they have."""

    name = "CPUNormalization"

    def __init__(self, config: Callable[[], CPUNormalizationConfig]) -> None:
        self._config = config

    def calculate(self, rows: Sequence[NodeRow], targets: Sequence[NodeTarget]) -> int:
        """See `Plugin`."""
        config = self._config()
        failures = 0
        for row, target in zip(rows, targets, strict=True):
            if not row.is_enabled:
                continue
            assert row.node is not None
            try:
                own = row.node.metadata.labels
                ratio = cpu_normalization.node_ratio(config, row.name, own, partial(_cpu, row))
            except ProtocolError as error:
                failures += 1
                # A new node's agent takes its time to tell about CPUs.
                target.notes.append(Note(NORMALIZATION_FAILED, str(error), is_patient=row.cpu is None))
                continue
            text = node_labels.cpu_normalization_ratio_text(ratio)
            target.normalization = float(text)  # as everybody else will read it
            old = row.node.metadata.annotations.get(_NORMALIZATION_KEY)
            if old != text and cpu_normalization.needs_sync(old, text):
                target.annotations[_NORMALIZATION_KEY] = text
        return failures


def _cpu(row: NodeRow) -> CPUBasicInfo:
    """Return what the node agent tells. Raises: ProtocolError when it does not (yet), or nobody can read it."""
    if row.cpu is None:
        reason = (
            "the node agent has not reported it (yet)" if row.topology else "the object does not exist (yet)"
        )
        raise ProtocolError(f"NodeResourceTopology {row.name}", labels.NODE_CPU_BASIC_INFO, reason)
    if isinstance(row.cpu, ProtocolError):
        raise row.cpu
    return row.cpu


UNREADABLE = "DeviceUnreadable"
GPU_DEVICES, RDMA_DEVICES = "GPUDeviceResource", "RDMADeviceResource"


class DeviceResource:
    """Sums over healthy GPUs and labels that tell what they are, or 100 for each healthy NIC."""

    def __init__(self, name: str, part: Callable[[NodeRow], DeviceTarget]) -> None:
        self.name = name
        self._part = part

    def calculate(self, rows: Sequence[NodeRow], targets: Sequence[NodeTarget]) -> int:
        """See `Plugin`."""
        failures = 0
        for row, target in zip(rows, targets, strict=True):
            if row.device_problem:
                failures += 1
                note = Note(UNREADABLE, row.device_problem)
                if note not in target.notes:
                    target.notes.append(note)
                continue
            wanted = self._part(row)
            for name, amount in wanted.amounts.items():
                target.amounts[name] = None if amount is None else account.whole(amount)
            target.labels.update(wanted.labels)
        return failures


_Lenders = list[tuple[NodeRow, NodeTarget]]


class BatchResource:
    """Nodes without a report to go by must not have Batch resources, nor must their zones."""

    name = "BatchResource"

    def calculate(self, rows: Sequence[NodeRow], targets: Sequence[NodeTarget]) -> int:
        """See `Plugin`."""
        lenders: _Lenders = []
        for row, target in zip(rows, targets, strict=True):
            if row.withdrawal is Withdrawal.NONE:
                lenders.append((row, target))
            else:
                _withdraw(row, target)
        if lenders:
            _lend(lenders)
        with_zones = [(row, target) for row, target in lenders if row.zone_capacities]
        if with_zones:
            _lend_zones(with_zones)
        return 0


def _lend(lenders: _Lenders) -> None:
    inputs, policies = [], []
    for row, _ in lenders:
        assert row.strategy is not None
        inputs.append(row.inputs(row.yielded_ahead()))
        policies.append(row.strategy.reclaim)
    for (row, target), terms in zip(
        lenders, decide.by_row(decide.batch_terms(inputs, policies)), strict=True
    ):
        cpu_milli, memory = terms[-1]
        target.batch_terms = terms
        lent = lend(_calculated(cpu_milli, memory), target.normalization, row.taken)
        target.amounts.update(lent.left)
        target.origin = lent.origin


def _lend_zones(lenders: _Lenders) -> None:
    inputs, policies = [], []
    for row, _ in lenders:
        assert row.facts is not None and row.strategy is not None
        facts, report = row.facts, row.reading.report
        inputs.append(ZoneInputs(facts, report, row.zone_capacities, row.zone_demands(), row.yielded_ahead()))
        policies.append(row.strategy.reclaim)
    for (row, target), amounts in zip(lenders, decide.zone_batch_amounts(inputs, policies), strict=True):
        assert row.topology is not None
        ratio = target.normalization
        for zone, (cpu_milli, memory) in zip(row.topology.zones, amounts, strict=True):
            target.zones[zone.name] = {
                resources.BATCH_CPU: whole_amount(resources.BATCH_CPU, cpu_milli * MILLI, ratio),
                resources.BATCH_MEMORY: account.whole(memory),
            }


def _calculated(cpu_milli: int, memory: int) -> dict[str, int]:
    """Thousandths by resource: batch-cpu counts milli-cores."""
    return {resources.BATCH_CPU: cpu_milli * MILLI, resources.BATCH_MEMORY: memory}


def _withdraw(row: NodeRow, target: NodeTarget) -> None:
    assert row.node is not None
    target.amounts.update(NOT_LENT)
    # A node that never had co-location is not told that it lends nothing.
    if row.is_enabled or labels.NODE_ORIGIN_EXTENDED_ALLOCATABLE in row.node.metadata.annotations:
        target.origin = dict.fromkeys(BATCH, 0)
    if row.topology is not None:
        target.zones.update(withdrawn_zones(row.topology.zones))


class BatchDuration:
    """Says how long Batch resources will last, where the agent predicts hours and the strategy looks ahead."""

    name = "BatchDuration"

    def calculate(self, rows: Sequence[NodeRow], targets: Sequence[NodeTarget]) -> int:
        """See `Plugin`."""
        inputs, policies, times, lenders = [], [], [], []
        for row, target in zip(rows, targets, strict=True):
            target.annotations[labels.NODE_BATCH_DURATIONS] = None
            if row.looks_ahead:
                assert row.strategy is not None and row.reported_s is not None
                inputs.append(row.inputs())
                policies.append(row.strategy.reclaim)
                times.append(row.reported_s)
                lenders.append((row, target))
        if lenders:
            found = hours.lasting(inputs, policies, times).tolist()
            for known, (row, target), lasting in zip(inputs, lenders, found, strict=True):
                every = [
                    lend(_calculated(cpu, memory), target.normalization, row.taken).left
                    for cpu, memory in lasting
                ]
                left = [(each[resources.BATCH_CPU] or 0, each[resources.BATCH_MEMORY] or 0) for each in every]
                text = hours.annotation_text(known.node.capacity, left)
                target.annotations[labels.NODE_BATCH_DURATIONS] = text
        return 0


class MidResource:
    """Nodes without a report to go by must not have Mid resources."""

    name = "MidResource"

    def calculate(self, rows: Sequence[NodeRow], targets: Sequence[NodeTarget]) -> int:
        """See `Plugin`."""
        inputs, policies, lenders = [], [], []
        for row, target in zip(rows, targets, strict=True):
            if row.withdrawal is not Withdrawal.NONE:
                target.amounts.update(dict.fromkeys(resources.MID_RESOURCES))
                continue
            assert row.strategy is not None
            inputs.append(row.inputs())
            policies.append(row.strategy.mid)
            lenders.append(target)
        if lenders:
            found = decide.by_row(decide.mid_terms(inputs, policies))
            for target, terms in zip(lenders, found, strict=True):
                cpu_milli, memory = terms[-1]
                target.mid_terms = terms
                target.amounts[resources.MID_CPU] = cpu_milli
                target.amounts[resources.MID_MEMORY] = account.whole(memory)
        return 0


class BatchGPUResource:
    """Lends, card by card, what services leave of GPUs; nodes without a report to go by must not lend any."""

    name = "BatchGPUResource"

    def calculate(self, rows: Sequence[NodeRow], targets: Sequence[NodeTarget]) -> int:
        """See `Plugin`."""
        for row, target in zip(rows, targets, strict=True):
            lent = lent_gpus.NO_CARDS
            if row.withdrawal is Withdrawal.NONE:
                assert row.strategy is not None
                reported = row.reading.report.reclaimable_gpus
                lent = lent_gpus.lent(reported, row.gpus, row.strategy.gpu_percent)
            target.amounts.update(lent_gpus.sums(lent))
            target.annotations[labels.NODE_BATCH_GPUS] = lent_gpus.text_of(lent)
        return 0


class NodeResourcePlugin(Protocol):
    """One subject. Plugins run in a fixed order, so that later ones may read the targets of earlier ones."""

    name: str

    def calculate(self, rows: Sequence[NodeRow], targets: Sequence[NodeTarget]) -> int:
        """Add to `targets` (one per row) what these nodes should say; for how many nodes it could not tell.

        Every row has a node with facts, and a withdrawal; being switched off is a target like any other.
        """
        ...


def chosen(
    entries: tuple[str, ...],
    *,
    normalization: Callable[[], CPUNormalizationConfig],
    amplified: Callable[[], ResourceAmplificationConfig],
) -> list[NodeResourcePlugin]:
    """Return the plugins that a list of `*`, `name` and `-name` chooses, in the order in which they run.

    The configurations in force are asked for in each round.
    """
    makers: Mapping[str, Callable[[], NodeResourcePlugin]] = {
        CPUNormalization.name: lambda: CPUNormalization(normalization),
        ResourceAmplification.name: lambda: ResourceAmplification(amplified),
        MidResource.name: MidResource,
        BatchResource.name: BatchResource,
        BatchDuration.name: BatchDuration,
        GPU_DEVICES: lambda: DeviceResource(GPU_DEVICES, lambda row: row.gpu),
        RDMA_DEVICES: lambda: DeviceResource(RDMA_DEVICES, lambda row: row.rdma),
        BatchGPUResource.name: BatchGPUResource,
    }
    return [makers[name]() for name in NODE_RESOURCE_PLUGINS if is_controller_enabled(name, entries)]
