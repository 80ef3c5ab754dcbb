"""Remember of pods that ask alike for devices what they ask for, and what nodes said about it so far."""

from collections.abc import Mapping

import numpy as np

from koordinator.api import label_selector, labels
from koordinator.api.annotations import device as annotation
from koordinator.api.annotations import placement
from koordinator.api.annotations.device import DeviceAllocations, DeviceHint, DeviceType
from koordinator.api.errors import ProtocolError
from koordinator.scheduler.plugin.framework import ReasonCodes
from koordinator.scheduler.plugin.status import SUCCESS, RefusalCodes, Status, unresolvable
from koordinator.scheduler.plugins.device_share import request
from koordinator.scheduler.plugins.device_share.allocate import PodDevices
from koordinator.scheduler.plugins.device_share.bulk import DeviceDemand, KindVerdicts, LayoutFacts
from koordinator.scheduler.plugins.device_share.columns import DeviceColumns
from koordinator.scheduler.plugins.device_share.pick import DeviceScoringStrategy
from koordinator.scheduler.plugins.device_share.templates import NO_TEMPLATE, TemplateSource
from koordinator.scheduler.table.columns import Recent
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import PodInfo

_ANNOTATIONS = (labels.DEVICE_ALLOCATE_HINT, labels.DEVICE_JOINT_ALLOCATE, labels.GPU_PARTITION_SPEC)
_HINTS = (labels.SCHEDULING_HINT, labels.DEPRECATED_SCHEDULING_HINT)
_NO_ANNOTATIONS = (None,) * (len(_ANNOTATIONS) + len(_HINTS) + 1)

PLUGIN = "DeviceShare"
"""The name by which scheduling hints name the plugin."""
STATES_MAX = 512
"""Demands on devices whose answers are remembered."""
ANSWERS_MAX = 16_384
"""Answers that are remembered for pods that ask alike: some for each node of a large cluster."""


class DeviceState(RefusalCodes):
    """A demand on devices, and the answers of nodes so far; nodes that are alike (`bulk.situations`,
    `NodeDeviceRecord.signature`) answer alike."""

    def __init__(
        self,
        own_labels: Mapping[str, str],
        asked: PodDevices,
        demand: DeviceDemand,
        kinds: KindVerdicts,
        status: Status,
        chosen: DeviceAllocations | None,
    ) -> None:
        super().__init__()
        self.labels = own_labels
        """Labels of the pod that matter."""
        self.asked = asked
        self.demand = demand
        self.kinds = kinds
        self.status = status
        self.chosen = chosen
        """Devices that were chosen beforehand, by whoever plans for the scheduler."""
        self.kind_codes: ReasonCodes = np.zeros(0, np.uint16)
        """(kinds,): refusals by what a node says beside its devices."""
        self.facts = LayoutFacts(asked)
        self.codes: Recent[int] = Recent(ANSWERS_MAX)
        self.points: Recent[int] = Recent(ANSWERS_MAX)
        self._versions = 0, 0

    def follow(self, columns: DeviceColumns) -> None:
        """Take in kinds and layouts of nodes that are new."""
        versions = columns.kinds.version, columns.layouts.version
        if versions != self._versions:
            self._versions = versions
            self.codes.clear()
        self.facts.follow(columns.layouts)
        if self.kinds.follow(columns.kinds):
            codes = [self.code_of(status) for status in self.kinds.refusals]
            self.kind_codes = np.array(codes, np.uint16)


class DeviceStates:
    """The states of pods; those that ask for the same devices, whatever else they ask for, share one."""

    def __init__(
        self,
        table: NodeTable,
        strategy: DeviceScoringStrategy,
        unsupported: Mapping[str, frozenset[str]],
        templates: TemplateSource,
    ) -> None:
        self._table, self._strategy, self._unsupported = table, strategy, unsupported
        self._templates = templates
        self._recent: Recent[DeviceState] = Recent(STATES_MAX)
        self._columns: frozenset[int] = frozenset()
        self._names_seen = 0

    def asks(self, pod: PodInfo) -> bool:
        """Return whether a pod asks for devices."""
        names = self._table.registry.names
        if len(names) != self._names_seen:
            self._columns = frozenset(column for column, name in enumerate(names) if name in request.NAMES)
            self._names_seen = len(names)
        columns = self._columns
        return bool(columns) and any(column in columns for column, _ in pod.requests)

    def of(self, pod: PodInfo) -> DeviceState | None:
        """Return the state of a pod; None when it asks for no devices."""
        if not self.asks(pod):
            return None
        names = self._table.registry.names
        parsed = request.parse({names[column]: amount for column, amount in pod.requests})
        if not parsed.status.is_success:
            return self._new(pod, PodDevices({}), parsed.status, None)
        amounts = tuple((device_type, *found.items()) for device_type, found in parsed.by_type.items())
        key = (amounts, self._templates.version, *beside_amounts(pod))
        try:
            return self._recent.get(key, lambda: self._read(pod, parsed.by_type))
        except ProtocolError as problem:
            return self._new(pod, PodDevices({}), unresolvable(str(problem)), None)

    def _read(self, pod: PodInfo, by_type: Mapping[str, request.Amounts]) -> DeviceState:
        """Read the annotations. Raises: ProtocolError."""
        annotations, name = pod.pod.metadata.annotations, f"Pod {pod.key}"
        hints = annotation.DEVICE_ALLOCATE_HINT.read(annotations, name) or {}
        _check_selectors(hints, name)
        asked = PodDevices(
            by_type,
            hints,
            annotation.DEVICE_JOINT_ALLOCATE.read(annotations, name),
            annotation.GPU_PARTITION_SPEC.read(annotations, name),
        )
        hint = placement.scheduling_hint(annotations, name)
        is_chosen = hint is not None and PLUGIN in hint.extensions
        chosen = annotation.DEVICE_ALLOCATED.read(annotations, name) if is_chosen else None
        gpus = by_type.get(DeviceType.GPU)
        is_refused = gpus and self._templates.templates.refuse(request.per_gpu(gpus))
        return self._new(pod, asked, NO_TEMPLATE if is_refused else SUCCESS, chosen)

    def _new(
        self, pod: PodInfo, asked: PodDevices, status: Status, chosen: DeviceAllocations | None
    ) -> DeviceState:
        templates = self._templates.templates
        demand = DeviceDemand.of(asked, self._strategy, templates, is_chosen=chosen is not None)
        provider = pod.pod.metadata.labels.get(labels.GPU_ISOLATION_PROVIDER)
        own = {labels.GPU_ISOLATION_PROVIDER: provider} if provider is not None else {}
        kinds = KindVerdicts(asked, own, self._unsupported)
        return DeviceState(own, asked, demand, kinds, status, chosen)


def _check_selectors(hints: Mapping[str, DeviceHint], obj: str) -> None:
    """Check that devices can be selected as the hints of `obj` say. Raises: ProtocolError."""
    for device_type, hint in hints.items():
        for field, selector in (("selector", hint.selector), ("vfSelector", hint.vf_selector)):
            if selector is None:
                continue
            try:
                label_selector.compile_selector(selector)
            except ProtocolError as problem:
                place = f"{device_type}.{field}"
                raise ProtocolError(
                    obj, labels.DEVICE_ALLOCATE_HINT, f"{place}: {problem.reason}"
                ) from problem


def beside_amounts(pod: PodInfo) -> tuple[str | None, ...]:
    """Return what counts of a pod beside the amounts that it asks for."""
    annotations = pod.pod.metadata.annotations
    provider = pod.pod.metadata.labels.get(labels.GPU_ISOLATION_PROVIDER)
    if not annotations:
        return provider, *_NO_ANNOTATIONS
    hints = [annotations.get(key) for key in _HINTS]
    has_hint = any(each is not None for each in hints)
    chosen = annotations.get(labels.DEVICE_ALLOCATED) if has_hint else None
    return provider, *[annotations.get(key) for key in _ANNOTATIONS], *hints, chosen
