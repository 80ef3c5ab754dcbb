"""Disk limits of best-effort pods and disk models of the node: which groups get which on which disk, and their texts,
each of which names its disk first, as `major:minor`. Source: behaviour/koordlet-act 11.

Cgroup v1 limits each group by itself (its throttling has no hierarchy): a limit on the group of all best-effort pods,
or of one pod, holds nobody back, since the threads are in the groups of containers. So what a group may use is shared
out evenly among the containers that run in it. Cgroup v2 needs no such help.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from koordinator.api.annotations.koordlet import BLKIO_QOS
from koordinator.api.errors import ProtocolError
from koordinator.api.qos import KubeQoS, QoSClass
from koordinator.api.slo_qos import BlkIOQOS, BlockConfig, IOConfig, ResourceQOS, ResourceQOSStrategy
from koordinator.host import cgroup_knobs, cgroup_layout
from koordinator.host.cgroup_knobs import UNSET_BY_DISK, V1, Knob
from koordinator.host.errors import UnsupportedError
from koordinator.host.storage import LocalStorage
from koordinator.koordlet.node_pods import PodRecord
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.view import are_same
from koordinator.koordlet.writing.update_plan import NOT_TAKEN, Result, Update, WriteOutcome

log = logging.getLogger(__name__)

_RUNNING = "Running"

Disks = dict[str, IOConfig]
"""`major:minor` → settings."""


class DiskPlan(msgspec.Struct, frozen=True):
    """The limits that groups should have; a group that is not named should have nothing of ours."""

    groups: dict[str, Disks]
    """Groups of the best-effort class and of pods: limits and weight."""
    shares: dict[str, Disks]
    """Groups of containers: limits only, where limits do not reach down by themselves."""
    root: Disks
    """Thresholds from which a disk counts as full, and the costs of its operations."""
    problems: tuple[str, ...]
    """Settings that cannot be applied, and why."""


class _Place(msgspec.Struct, frozen=True):
    """The place where disks are looked for."""

    storage: LocalStorage
    volumes: Mapping[str, str]
    kubelet: str


def disk_plan(
    strategy: ResourceQOSStrategy,
    pods: Iterable[PodRecord],
    storage: LocalStorage,
    volumes: Mapping[str, str],
    *,
    best_effort: str,
    kubelet: str,
    is_flat: bool,
) -> DiskPlan:
    """`volumes` leads from `namespace/claim` to the volume; `kubelet` is its directory, `best_effort` the group of
    best-effort pods; `is_flat` says that limits do not reach down."""
    place = _Place(storage, volumes, kubelet)
    problems = [
        f"{name}.blkioQOS is not supported: only beClass, cgroupRoot and pods have limits"
        for name, section in (("lsrClass", strategy.lsr_class), ("lsClass", strategy.ls_class))
        if _blocks(section)
    ]
    groups: dict[str, Disks] = {}
    shares: dict[str, Disks] = {}
    known = list(pods)
    if be_limits := _disk_limits("beClass", _blocks(strategy.be_class), place, None, problems):
        groups[best_effort] = be_limits
        if is_flat:
            leaves = [
                leaf for each in known if each.kube_qos is KubeQoS.BEST_EFFORT for leaf in _leaves(each)
            ]
            _share(shares, be_limits, leaves)
    for record in known:
        limits = _of_pod(record, place, problems)
        if limits:
            groups[record.group] = limits
            if is_flat:
                _share(shares, limits, _leaves(record))
    root = _disk_limits("cgroupRoot", _blocks(strategy.cgroup_root), place, None, problems)
    problems += [
        f"cgroupRoot: disk {disk}: a user model has six figures above 0; the cost model stays as it is"
        for disk, settings in root.items()
        if settings.enable_user_model and not _user_model(settings)
    ]
    return DiskPlan(groups, shares, root, tuple(problems))


def disk_of(block: BlockConfig, record: PodRecord | None, place: _Place) -> str:
    """Return number of the disk that a block names, for a pod's volume with the pod; empty when there is none."""
    storage = place.storage
    match block.type:
        case "device":
            device = storage.disk_of(block.name)
        case "volumegroup":
            device = storage.volume_groups.get(block.name, "")
        case "podvolume" if record is not None:
            volume = _volume_of(record, block.name, place.volumes)
            where = f"{place.kubelet}/pods/{record.uid}/volumes/kubernetes.io~csi/{volume}/mount"
            device = storage.disk_of(storage.mounts.get(where, "")) if volume else ""
        case _:
            return ""
    return storage.numbers.get(device, "")


def _volume_of(record: PodRecord, name: str, volumes: Mapping[str, str]) -> str:
    """Directory of a pod's volume: that of the bound volume, or its own name when it is part of the pod."""
    for volume in record.pod.spec.volumes:
        if volume.name == name:
            claim = volume.persistent_volume_claim
            if claim is not None:
                return volumes.get(f"{record.pod.metadata.namespace}/{claim.claim_name}", "")
            return volume.name if volume.csi is not None else ""
    return ""


def _of_pod(record: PodRecord, place: _Place, problems: list[str]) -> Disks:
    if record.pod.status.phase != _RUNNING or record.qos is QoSClass.NONE:
        return {}
    try:
        asked = BLKIO_QOS.read(record.pod.metadata.annotations, record.key)
    except ProtocolError as error:
        problems.append(str(error))
        return {}
    return _disk_limits(record.key, asked.blocks if asked is not None else [], place, record, problems)


def _disk_limits(
    who: str, blocks: Iterable[BlockConfig], place: _Place, record: PodRecord | None, problems: list[str]
) -> Disks:
    found: Disks = {}
    for block in blocks:
        number = disk_of(block, record, place)
        if number:
            found[number] = block.io_cfg
        else:
            problems.append(f"{who}: no disk for {block.type or 'block without type'} {block.name!r}")
    return found


def _blocks(section: ResourceQOS | None) -> list[BlockConfig]:
    settings: BlkIOQOS | None = section.blkio_qos if section is not None else None
    return settings.blocks if settings is not None and settings.enable else []


def _leaves(record: PodRecord) -> list[str]:
    return [container.group for container in record.containers if container.is_running]


def _share(shares: dict[str, Disks], limits: Disks, leaves: list[str]) -> None:
    """Give each leaf its part, or what it has already if that is less."""
    for leaf in leaves:
        own = shares.setdefault(leaf, {})
        for disk, whole in limits.items():
            old = own.get(disk, IOConfig())
            parts = len(leaves)
            own[disk] = IOConfig(
                read_iops=_least(old.read_iops, whole.read_iops, parts),
                write_iops=_least(old.write_iops, whole.write_iops, parts),
                read_bps=_least(old.read_bps, whole.read_bps, parts),
                write_bps=_least(old.write_bps, whole.write_bps, parts),
            )


def _least(old: int | None, whole: int | None, parts: int) -> int | None:
    if not whole or whole < 0:
        return old
    part = max(whole // parts, 1)
    return part if not old else min(old, part)


WEIGHT_PERCENT = 100
LATENCY_US = 3_000
LATENCY_PERCENT = 95

REASON = "UpdateBlkIO"
RETRY_S = 10.0
"""Time after which writes that the kernel refused are repeated."""
_FLAT_FILE = "cgroup.sane_behavior"
_THROTTLES = (Knob.BLKIO_READ_IOPS, Knob.BLKIO_READ_BPS, Knob.BLKIO_WRITE_IOPS, Knob.BLKIO_WRITE_BPS)
_GROUP_KNOBS = {1: (*_THROTTLES, Knob.BLKIO_WEIGHT), 2: (Knob.IO_MAX, Knob.IO_WEIGHT)}
_ROOT_KNOBS = (Knob.BLKIO_QOS, Knob.BLKIO_MODEL)
ROOT = ""


def group_texts(disk: str, limits: IOConfig) -> dict[Knob, str]:
    """Files of a group (of all best-effort pods, or of one pod) for one disk; 0 is no limit."""
    return {
        Knob.BLKIO_READ_IOPS: f"{disk} {limits.read_iops or 0}",
        Knob.BLKIO_READ_BPS: f"{disk} {limits.read_bps or 0}",
        Knob.BLKIO_WRITE_IOPS: f"{disk} {limits.write_iops or 0}",
        Knob.BLKIO_WRITE_BPS: f"{disk} {limits.write_bps or 0}",
        Knob.BLKIO_WEIGHT: f"{disk} {_or(limits.io_weight_percent, WEIGHT_PERCENT)}",
    }


def share_texts(disk: str, limits: IOConfig) -> dict[Knob, str]:
    """Return the same without a weight, for a group that only gets a part of somebody's limits."""
    texts = group_texts(disk, limits)
    del texts[Knob.BLKIO_WEIGHT]
    return texts


def unified_texts(disk: str, limits: IOConfig) -> dict[Knob, str]:
    """Files of a group on cgroup v2, where one line holds all limits of a disk."""
    rates = {
        "rbps": limits.read_bps,
        "wbps": limits.write_bps,
        "riops": limits.read_iops,
        "wiops": limits.write_iops,
    }
    words = (f"{name}={value if value and value > 0 else 'max'}" for name, value in rates.items())
    weight = _or(limits.io_weight_percent, WEIGHT_PERCENT)
    return {
        Knob.IO_MAX: f"{disk} {' '.join(words)}",
        Knob.IO_WEIGHT: f"{disk} {UNSET_BY_DISK[Knob.IO_WEIGHT] if weight == WEIGHT_PERCENT else weight}",
    }


def root_texts(disk: str, model: IOConfig) -> dict[Knob, str]:
    """Files of the root group for one disk: when it counts as full, and what its operations cost, if all is said."""
    reads = (
        f"rpct={_or(model.read_latency_percent, LATENCY_PERCENT)} rlat={_or(model.read_latency, LATENCY_US)}"
    )
    writes = f"wpct={_or(model.write_latency_percent, LATENCY_PERCENT)} wlat={_or(model.write_latency, LATENCY_US)}"
    texts = {Knob.BLKIO_QOS: f"{disk} enable=1 ctrl=user {reads} {writes}"}
    costs = _user_model(model) if model.enable_user_model else "ctrl=auto"
    if costs:
        texts[Knob.BLKIO_MODEL] = f"{disk} {costs}"
    return texts


def removals(contents: Mapping[Knob, str], configured: Collection[str]) -> dict[Knob, list[str]]:
    """Texts that make files forget disks that are not configured any more."""
    wanted: dict[Knob, list[str]] = {}
    for knob, content in contents.items():
        if knob in UNSET_BY_DISK:
            gone = [disk for disk in _disks(content) if disk not in configured]
            texts = [f"{disk} {UNSET_BY_DISK[knob]}" for disk in gone]
            wanted[knob] = [text for text in texts if needs_write(content, text)]
    return {knob: texts for knob, texts in wanted.items() if texts}


def needs_write(content: str, text: str) -> bool:
    """Return whether a file with this content must be written: no limit only where the disk has one."""
    disk, _, value = text.partition(" ")
    if cgroup_knobs.is_unset(value):
        return disk in _disks(content)
    return text not in (line.strip() for line in content.splitlines())


def _user_model(model: IOConfig) -> str:
    """Return the costs of a disk's operations; empty unless all are known: with one byte per second for a figure that
    nobody gave, the kernel would hold the disk up for a second at each page.
    """
    fields = {
        "rbps": model.model_read_bps,
        "rseqiops": model.model_read_seq_iops,
        "rrandiops": model.model_read_rand_iops,
        "wbps": model.model_write_bps,
        "wseqiops": model.model_write_seq_iops,
        "wrandiops": model.model_write_rand_iops,
    }
    if not all(value is not None and value > 0 for value in fields.values()):
        return ""
    return "ctrl=user " + " ".join(f"{name}={value}" for name, value in fields.items())


def _disks(content: str) -> list[str]:
    first = (line.split()[0] for line in content.splitlines() if line.strip())
    return [word for word in first if ":" in word]  # cgroup v2 has a line for all other disks


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


class BlkIO:
    """One round acts when policies, pods or disks have changed, and checks all once in a while."""

    name = "BlkIOReconcile"
    gates: tuple[str, ...] = ("BlkIOReconcile",)

    def __init__(self, shared: Shared) -> None:
        self.interval_s = shared.config.qos.reconcile_interval_s
        self._shared = shared
        self._seen: tuple[Any, ...] = ()
        self._check_at_s = float("-inf")
        self._reported: frozenset[str] = frozenset()

    async def run(self) -> None:
        """One round."""
        view = self._shared.view
        strategy = view.qos_in_force
        if strategy is None or view.storage is None or not view.has_pods:
            return
        now_s = asyncio.get_running_loop().time()
        seen = strategy, view.pods, view.storage, view.volumes
        if are_same(self._seen, seen) and now_s < self._check_at_s:
            return
        self._seen, self._check_at_s = seen, now_s + self._shared.config.qos.force_update_s
        cgroups = self._shared.host.cgroups
        plan = disk_plan(
            strategy,
            view.pods.values(),
            view.storage,
            view.volumes,
            best_effort=cgroup_layout.class_dir(view.driver, KubeQoS.BEST_EFFORT),
            kubelet=self._shared.host.roots.kubelet,
            is_flat=cgroups.version == V1 and self._is_flat(),
        )
        if not self._carry_out(plan):
            self._check_at_s = now_s + RETRY_S

    def disable(self) -> None:
        """Take back all limits that we set."""
        self._shared.executor.restore(self.name)
        self._seen = ()

    def _is_flat(self) -> bool:
        """Return whether limits hold only those in the very group, which is so for v1 hierarchies as everybody mounts
        them."""
        root = self._shared.host.cgroups.directory(ROOT, "blkio")
        return (self._shared.host.files.read(f"{root}/{_FLAT_FILE}") or "").strip() != "1"

    def _carry_out(self, plan: DiskPlan) -> bool:
        """Carry the updates out; return whether all is as it should be."""
        version = self._shared.host.cgroups.version
        limit_texts = group_texts if version == V1 else unified_texts
        updates = [
            Update(group, knob, text, REASON)
            for groups, texts_of in (
                (plan.groups, limit_texts),
                (plan.shares, share_texts),
                ({ROOT: plan.root}, root_texts),
            )
            for group, disks in groups.items()
            for disk, settings in disks.items()
            for knob, text in texts_of(disk, settings).items()
        ]
        removed = [
            *self._removals({**plan.groups, **plan.shares}, _GROUP_KNOBS[version]),
            *self._removals({ROOT: plan.root} if plan.root else {}, _ROOT_KNOBS),
        ]
        self._take_back(plan)
        results = self._shared.executor.update([*removed, *updates], owner=self.name, cacheable=False)
        unmet = [problem for each in results if (problem := self._unmet(each))]
        self._report_problem(frozenset((*plan.problems, *unmet)))
        return not unmet

    def _unmet(self, result: Result) -> str:
        """Return why an update is not in force; empty when it is, or its group has gone."""
        group, knob = result.update.group, result.update.knob
        if result.outcome in NOT_TAKEN:
            return f"{group or '/'}: {result.problem}"
        is_limit = knob in _THROTTLES or knob is Knob.IO_MAX
        if (
            is_limit
            and result.outcome is WriteOutcome.MISSING
            and self._shared.host.cgroups.exists(group, "blkio")
        ):
            return f"{group}: no {knob}; is the controller for disks on?"
        return ""

    def _removals(self, groups: Mapping[str, Disks], knobs: Iterable[Knob]) -> list[Update]:
        """Return the updates that make groups forget disks for which nothing is configured any more."""
        found = []
        for group, disks in groups.items():
            contents = {knob: text for knob in knobs if (text := self._read(knob, group)) is not None}
            for knob, texts in removals(contents, disks).items():
                found += [Update(group, knob, text, REASON) for text in texts]
        return found

    def _read(self, knob: Knob, group: str) -> str | None:
        try:
            return self._shared.host.cgroups.read(knob, group)
        except UnsupportedError:
            return None

    def _take_back(self, plan: DiskPlan) -> None:
        """Groups that should have nothing of ours get back what they had."""
        wanted = plan.groups.keys() | plan.shares.keys() | ({ROOT} if plan.root else set())
        executor = self._shared.executor
        keys = {each.key for each in executor.changed_by(self.name) if each.group not in wanted}
        if keys:
            executor.restore(self.name, keys=keys)

    def _report_problem(self, problems: frozenset[str]) -> None:
        for problem in sorted(problems - self._reported):
            log.warning("disk not limited as configured", extra={"problem": problem})
        self._reported = problems
