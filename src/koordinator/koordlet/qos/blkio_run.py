"""Limits disks: carries out `blkio_plan`, and takes back what is not configured any more.

Source: behaviour/koordlet-act 11.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from koordinator.api.qos import KubeQoS
from koordinator.host import cgroup_layout
from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.host.errors import UnsupportedError
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.qos import blkio, blkio_plan
from koordinator.koordlet.qos.blkio_plan import DiskPlan, Disks
from koordinator.koordlet.writing.update_plan import Result, Update, WriteOutcome

log = logging.getLogger(__name__)

REASON = "UpdateBlkIO"
RETRY_S = 10.0
"""When the kernel is asked again for what it refused."""
_FLAT_FILE = "cgroup.sane_behavior"
_THROTTLES = (Knob.BLKIO_READ_IOPS, Knob.BLKIO_READ_BPS, Knob.BLKIO_WRITE_IOPS, Knob.BLKIO_WRITE_BPS)
_GROUP_KNOBS = {1: (*_THROTTLES, Knob.BLKIO_WEIGHT), 2: (Knob.IO_MAX, Knob.IO_WEIGHT)}
_ROOT_KNOBS = (Knob.BLKIO_QOS, Knob.BLKIO_MODEL)
_UNMET = frozenset((WriteOutcome.FAILED, WriteOutcome.NOT_HELD, WriteOutcome.REFUSED))
ROOT = ""


class BlkIO:
    """One round acts when policies, pods or disks have changed, and checks all once in a while."""

    name = "BlkIOReconcile"
    gates: tuple[str, ...] = ("BlkIOReconcile",)

    def __init__(self, shared: Shared) -> None:
        self.interval_s = shared.config.qos.reconcile_interval_s
        self._shared = shared
        self._seen: tuple[Any, ...] = ()
        self._check_at_s = float("-inf")
        self._told: frozenset[str] = frozenset()

    async def run(self) -> None:
        """One round."""
        view = self._shared.view
        strategy = view.slo.resource_qos_strategy if view.slo is not None else None
        if strategy is None or view.storage is None or not view.has_pods:
            return
        now_s = asyncio.get_running_loop().time()
        seen = strategy, view.pods, view.storage, view.volumes
        is_same = len(self._seen) == len(seen) and all(a is b for a, b in zip(self._seen, seen, strict=True))
        if is_same and now_s < self._check_at_s:
            return
        self._seen, self._check_at_s = seen, now_s + self._shared.config.qos.force_update_s
        cgroups = self._shared.host.cgroups
        plan = blkio_plan.plan(
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
        """All limits that we set are taken back."""
        self._shared.executor.restore(self.name)
        self._seen = ()

    def _is_flat(self) -> bool:
        """Return whether limits hold only those in the very group, which is so for v1 hierarchies as everybody
        mounts them.
        """
        root = self._shared.host.cgroups.directory(ROOT, "blkio")
        return (self._shared.host.files.read(f"{root}/{_FLAT_FILE}") or "").strip() != "1"

    def _carry_out(self, plan: DiskPlan) -> bool:
        """Carry the updates out; return whether all is as it should be."""
        version = self._shared.host.cgroups.version
        group_texts = blkio.group_texts if version == V1 else blkio.unified_texts
        updates = [
            Update(group, knob, text, REASON)
            for groups, texts_of in (
                (plan.groups, group_texts),
                (plan.shares, blkio.share_texts),
                ({ROOT: plan.root}, blkio.root_texts),
            )
            for group, disks in groups.items()
            for disk, settings in disks.items()
            for knob, text in texts_of(disk, settings).items()
        ]
        removals = [
            *self._removals({**plan.groups, **plan.shares}, _GROUP_KNOBS[version]),
            *self._removals({ROOT: plan.root} if plan.root else {}, _ROOT_KNOBS),
        ]
        self._take_back(plan)
        results = self._shared.executor.update([*removals, *updates], owner=self.name, cacheable=False)
        unmet = [problem for each in results if (problem := self._unmet(each))]
        self._tell(frozenset((*plan.problems, *unmet)))
        return not unmet

    def _unmet(self, result: Result) -> str:
        """Return why an update is not in force; empty when it is, or its group has gone."""
        group, knob = result.update.group, result.update.knob
        if result.outcome in _UNMET:
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
            for knob, texts in blkio.removals(contents, disks).items():
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

    def _tell(self, problems: frozenset[str]) -> None:
        for problem in sorted(problems - self._told):
            log.warning("disk not limited as configured", extra={"problem": problem})
        self._told = problems
