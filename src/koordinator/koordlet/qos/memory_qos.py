"""Protecting the memory of important pods and reclaiming that of others early (cgroup reconcile).

Source: behaviour/koordlet-act 9. Values are texts of knobs; a setting that is not set writes nothing.
"""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from koordinator.api import pod_labels, pod_resources, qos, quantity, resources, slo_qos
from koordinator.api.annotations.koordlet import MEMORY_QOS
from koordinator.api.core import Container, Pod, ResourceRequirements
from koordinator.api.errors import ProtocolError
from koordinator.api.qos import KubeQoS, QoSClass
from koordinator.api.quantity import ZERO
from koordinator.api.slo_qos import MemoryQOS, ResourceQOS, ResourceQOSStrategy
from koordinator.host import cgroup_layout
from koordinator.host.cgroup_knobs import COUNT_MAX, UNLIMITED, V1, Knob
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.writing import update_plan
from koordinator.koordlet.writing.update_plan import Update

PAGE_BYTES = 4096
_PERCENT = 100
_POLICY_NONE, _POLICY_AUTO = "none", "auto"
_NOT_OVERLAID = frozenset(("enable", "policy"))

Texts = dict[Knob, str]

_TEMPLATES = {
    QoSClass.LSE: slo_qos.DEFAULT_LSR_QOS,
    QoSClass.LSR: slo_qos.DEFAULT_LSR_QOS,
    QoSClass.LS: slo_qos.DEFAULT_LS_QOS,
    QoSClass.BE: slo_qos.DEFAULT_BE_QOS,
    QoSClass.SYSTEM: slo_qos.DEFAULT_SYSTEM_QOS,
}

REASON = "UpdateCgroups"
"""Reason in the audit log."""
RETRY_S = 5.0
"""Groups that are not there yet, and values that the kernel refused, have their next chance after this time."""


class MemoryPlan(msgspec.Struct, frozen=True):
    """Values by Kubernetes class (Guaranteed is the root of all pods), by pod UID, by UID and container name."""

    classes: dict[KubeQoS, Texts]
    pods: dict[str, Texts]
    containers: dict[str, dict[str, Texts]]


def plan(
    pods: Iterable[Pod],
    strategy: ResourceQOSStrategy,
    node_allocatable_bytes: int,
    version: int,
    not_started: Collection[tuple[str, str]] = (),
) -> MemoryPlan:
    """Return all values of one round; containers in `not_started` (pod UID, name) have no cgroup yet."""
    of_pods: dict[str, Texts] = {}
    of_containers: dict[str, dict[str, Texts]] = {}
    sums: dict[KubeQoS, dict[Knob, int]] = {kube: {} for kube in KubeQoS}
    for pod in pods:
        if pod_labels.is_inactive(pod.status.phase):
            continue
        uid = pod.metadata.uid
        settings = settings_of(pod, class_settings(strategy, qos.default(pod)))
        of_pods[uid] = pod_texts(pod, settings, version)
        of_containers[uid] = {
            container.name: container_texts(pod, container, settings, node_allocatable_bytes)
            for container in pod.spec.containers
            if (uid, container.name) not in not_started
        }
        _add(sums[qos.kube(pod)], _protection(pod_request_bytes(pod), settings))
    return MemoryPlan(_class_texts(sums, strategy), of_pods, of_containers)


def class_settings(strategy: ResourceQOSStrategy, qos_class: QoSClass) -> MemoryQOS:
    """NodeSLO's settings for pods of a class; nothing set when the section is missing."""
    section = {
        QoSClass.LSE: strategy.lsr_class,
        QoSClass.LSR: strategy.lsr_class,
        QoSClass.LS: strategy.ls_class,
        QoSClass.BE: strategy.be_class,
        QoSClass.SYSTEM: strategy.system_class,
    }.get(qos_class)
    return _memory(section) or MemoryQOS()


def settings_of(pod: Pod, node: MemoryQOS) -> MemoryQOS:
    """Return the pod's own settings over the node's; policy none and auto replace these. Malformed counts as none."""
    node = msgspec.structs.replace(node, enable=None)
    try:
        own = MEMORY_QOS.read(pod.metadata.annotations)
    except ProtocolError:
        own = None
    if own is None:
        return node
    if own.policy == _POLICY_NONE:
        return _template(slo_qos.NO_QOS)
    base = _template(_TEMPLATES[qos.default(pod)]) if own.policy == _POLICY_AUTO else node
    said = {
        name: value
        for name in own.__struct_fields__
        if name not in _NOT_OVERLAID and (value := getattr(own, name)) is not None
    }
    return msgspec.structs.replace(base, **said)


def pod_request_bytes(pod: Pod) -> int:
    """Return what the pod's protection is measured by: batch memory for BE, the native request for others."""
    if qos.raw(pod) is QoSClass.BE:
        return pod_resources.batch(pod).request_memory_bytes
    return pod_resources.requests(pod).get(resources.MEMORY, ZERO).value


def pod_texts(pod: Pod, settings: MemoryQOS, version: int) -> Texts:
    """Values of a pod's cgroup."""
    numbers = _lifted(_protection(pod_request_bytes(pod), settings)) | _common(settings)
    if version != V1:
        numbers |= _page_cache(settings, _pod_limit_bytes(pod))
    return _texts(numbers)


def container_texts(
    pod: Pod, container: Container, settings: MemoryQOS, node_allocatable_bytes: int
) -> Texts:
    """Values of a container's cgroup."""
    name = resources.BATCH_MEMORY if qos.raw(pod) is QoSClass.BE else resources.MEMORY
    request = quantity.value(container.resources.requests.get(name, 0))
    limit = quantity.value(container.resources.limits.get(name, 0))
    numbers = _lifted(_protection(request, settings))
    throttling = settings.throttling_percent
    if throttling is not None:
        high = COUNT_MAX
        if throttling > 0:
            ceiling = limit if limit > 0 else node_allocatable_bytes
            span = request + (ceiling - request) * throttling // _PERCENT
            high = span // PAGE_BYTES * PAGE_BYTES
        least = numbers.get(Knob.MEMORY_MIN, 0)
        numbers[Knob.MEMORY_HIGH] = least if 0 < high < least else high
    return _texts(numbers | _common(settings))


def _memory(section: ResourceQOS | None) -> MemoryQOS | None:
    return section.memory_qos if section is not None else None


def _template(section: ResourceQOS) -> MemoryQOS:
    assert section.memory_qos is not None, section
    return msgspec.structs.replace(section.memory_qos, enable=None)


def _protection(request: int, settings: MemoryQOS) -> dict[Knob, int]:
    numbers = {}
    if settings.min_limit_percent is not None:
        numbers[Knob.MEMORY_MIN] = request * settings.min_limit_percent // _PERCENT
    if settings.low_limit_percent is not None:
        numbers[Knob.MEMORY_LOW] = request * settings.low_limit_percent // _PERCENT
    return numbers


def _lifted(numbers: dict[Knob, int]) -> dict[Knob, int]:
    """`memory.low` is at least `memory.min`, unless it is off."""
    low, least = numbers.get(Knob.MEMORY_LOW, 0), numbers.get(Knob.MEMORY_MIN, 0)
    return {**numbers, Knob.MEMORY_LOW: least} if 0 < low < least else numbers


def _common(settings: MemoryQOS) -> dict[Knob, int | None]:
    return {
        Knob.MEMORY_WMARK_RATIO: settings.wmark_ratio,
        Knob.MEMORY_WMARK_SCALE: settings.wmark_scale_permill,
        Knob.MEMORY_WMARK_MIN_ADJ: settings.wmark_min_adj,
        **_victim_choice(settings),
    }


def _victim_choice(settings: MemoryQOS) -> dict[Knob, int | None]:
    return {
        Knob.MEMORY_PRIORITY: settings.priority,
        Knob.MEMORY_USE_PRIORITY_OOM: settings.priority_enable,
        Knob.MEMORY_OOM_GROUP: settings.oom_kill_group,
    }


def _page_cache(settings: MemoryQOS, limit: int) -> dict[Knob, int | None]:
    size = settings.page_cache_limit_size
    if size is not None:
        size = min(size, limit) if limit > 0 else size
    elif settings.page_cache_limit_percent is not None and limit > 0:
        size = limit * settings.page_cache_limit_percent // _PERCENT
    enable = None if size is None else int(size > 0)
    sync = int(bool(settings.page_cache_reclaim_sync)) if size else None
    if settings.page_cache_enable is not None:
        enable = int(settings.page_cache_enable)
    return {Knob.PAGE_CACHE_ENABLE: enable, Knob.PAGE_CACHE_SIZE: size, Knob.PAGE_CACHE_SYNC: sync}


def _pod_limit_bytes(pod: Pod) -> int:
    if qos.raw(pod) is QoSClass.BE:
        return pod_resources.batch(pod).limit_memory_bytes
    running = pod_resources.running_together(pod.spec)
    return sum(_memory_limit(container.resources) for container in running) or UNLIMITED


def _memory_limit(requirements: ResourceRequirements) -> int:
    return max(quantity.value(requirements.limits.get(resources.MEMORY, 0)), 0)


def _class_texts(
    sums: Mapping[KubeQoS, dict[Knob, int]], strategy: ResourceQOSStrategy
) -> dict[KubeQoS, Texts]:
    """Return the three class directories; that of Guaranteed pods is the parent of the others, so it holds all."""
    everything: dict[Knob, int] = {}
    for numbers in sums.values():
        _add(everything, numbers)
    sections = {
        KubeQoS.GUARANTEED: (everything, strategy.lsr_class),
        KubeQoS.BURSTABLE: (sums[KubeQoS.BURSTABLE], strategy.ls_class),
        KubeQoS.BEST_EFFORT: (sums[KubeQoS.BEST_EFFORT], strategy.be_class),
    }
    return {
        kube: _texts(_ordered(numbers) | _victim_choice(_memory(section) or MemoryQOS()))
        for kube, (numbers, section) in sections.items()
    }


def _ordered(numbers: Mapping[Knob, int]) -> dict[Knob, int]:
    return {knob: numbers[knob] for knob in (Knob.MEMORY_MIN, Knob.MEMORY_LOW) if knob in numbers}


def _add(sums: dict[Knob, int], numbers: Mapping[Knob, int]) -> None:
    for knob, number in numbers.items():
        sums[knob] = sums.get(knob, 0) + number


def _texts(numbers: Mapping[Knob, int | None]) -> Texts:
    return {knob: str(number) for knob, number in numbers.items() if number is not None}


class _Inputs(msgspec.Struct, frozen=True, eq=False):
    """The inputs of the values; compared by identity, since views replace values as a whole."""

    pods: object
    strategy: object
    allocatable_bytes: int


class MemoryQoS:
    """Protects and throttles memory by the class of pods.

    All groups get their values when pods, policy or node change. Knobs that this kernel lacks are not tried; those
    that it refuses are tried again after a while.
    """

    name = "CgroupReconcile"
    gates: tuple[str, ...] = ("CgroupReconcile",)

    def __init__(self, shared: Shared) -> None:
        self.interval_s = shared.config.qos.reconcile_interval_s
        self._shared = shared
        self._view = shared.view
        self._cgroups = shared.host.cgroups
        self._done_for: _Inputs | None = None
        self._done_s = 0.0
        self._is_pending = False

    def run(self) -> None:
        """One round; nothing to do while nothing has changed."""
        view = self._view
        slo, node = view.slo, view.node
        if slo is None or slo.resource_qos_strategy is None or node is None or not view.has_pods:
            return
        allocatable = node.status.allocatable.get(resources.MEMORY)
        if allocatable is None:
            return
        inputs = _Inputs(view.pods, slo.resource_qos_strategy, quantity.value(allocatable))
        if not self._is_due(inputs):
            return
        not_started = [
            (uid, container.name)
            for uid, record in view.pods.items()
            for container in record.pod.spec.containers
            if container.name not in {each.name for each in record.containers if not each.is_init}
        ]
        pods = [record.pod for record in view.pods.values()]
        wanted = plan(
            pods,
            slo.resource_qos_strategy,
            inputs.allocatable_bytes,
            self._cgroups.version,
            not_started,
        )
        results = self._shared.executor.update_leveled(self._levels(wanted), owner=self.name)
        running = {
            each.group for record in view.pods.values() for each in record.containers if each.is_running
        }
        self._is_pending = not update_plan.are_settled(results, running)
        self._done_for, self._done_s = inputs, self._shared.clock.now()

    def disable(self) -> None:
        """Restore all groups."""
        self._done_for = None
        self._shared.executor.restore(self.name, REASON)

    def _is_due(self, inputs: _Inputs) -> bool:
        done = self._done_for
        if done is None or done.pods is not inputs.pods or done.strategy is not inputs.strategy:
            return True
        if done.allocatable_bytes != inputs.allocatable_bytes:
            return True
        every_s = RETRY_S if self._is_pending else self._shared.config.qos.force_update_s
        return not 0 <= self._shared.clock.now() - self._done_s < every_s

    def _levels(self, plan: MemoryPlan) -> list[list[Update]]:
        driver = self._view.driver
        top = cgroup_layout.class_dir(driver, KubeQoS.GUARANTEED)
        known: dict[Knob, bool] = {}

        def updates(group: str, texts: Texts) -> list[Update]:
            found = []
            for knob, text in texts.items():
                if knob not in known:
                    known[knob] = self._has(knob, top)
                if known[knob]:
                    found.append(Update(group, knob, text, REASON))
            return found

        root = updates(top, plan.classes.get(KubeQoS.GUARANTEED, {}))
        classes = [
            update
            for kube, texts in plan.classes.items()
            if kube is not KubeQoS.GUARANTEED
            for update in updates(cgroup_layout.class_dir(driver, kube), texts)
        ]
        pods: list[Update] = []
        containers: list[Update] = []
        for uid, texts in plan.pods.items():
            record = self._view.pods[uid]
            pods += updates(record.group, texts)
            of_pod = plan.containers[uid]
            for container in record.containers:
                if not container.is_init and container.name in of_pod:
                    containers += updates(container.group, of_pod[container.name])
        return [root, classes, pods, containers]

    def _has(self, knob: Knob, top: str) -> bool:
        """Return whether this kernel has the file; a knob that counts as always there may be missing all the same."""
        if not self._cgroups.support(knob, top).is_supported:
            return False
        return self._cgroups.files.exists(self._cgroups.path(knob, top))
