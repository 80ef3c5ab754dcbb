"""CPU sets of the best-effort groups, written when they or the pods change.

On cgroup v1 a group may not have CPUs that its parent lacks, and one that is made takes over its parent's: so all
groups of the class, its pods and their containers are written, and those made meanwhile are found with the next list of
pods. On v2 the kernel narrows everything below a group by itself, and the group of the class is all that is written.
Source: behaviour/koordlet-act 4.5 and 4.7.
"""

from collections.abc import Iterable, Sequence

import msgspec

from koordinator.api import cpuset
from koordinator.api.cpuset import CPUSet, CPUSetError
from koordinator.api.qos import KubeQoS
from koordinator.host import cgroup_layout
from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.host.errors import ContentError
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.writing.restore_log import RestoreRecord
from koordinator.koordlet.writing.update_plan import Result, Update, WriteOutcome

SUBSYSTEM = "cpuset"
RETRY_S = 10.0
"""What the kernel refused is tried again after this time, unless something changes before."""
_LEVELS_BELOW = 2
_FAILED = frozenset((WriteOutcome.FAILED, WriteOutcome.NOT_HELD, WriteOutcome.REFUSED))


class TreeCPUs(msgspec.Struct, frozen=True):
    """CPUs of the class, its pods and their containers; pods in `left_alone` (groups) have others to set theirs."""

    of_class: CPUSet
    of_pods: CPUSet
    of_containers: CPUSet
    left_alone: frozenset[str] = frozenset()


def alike(cpus: CPUSet, left_alone: frozenset[str] = frozenset()) -> TreeCPUs:
    """Return the same CPUs for everybody."""
    return TreeCPUs(cpus, cpus, cpus, left_alone)


class BestEffortCPUs:
    """The tree of best-effort groups of this node; `owner` is whose changes these are."""

    def __init__(self, shared: Shared, owner: str) -> None:
        self._shared = shared
        self._owner = owner
        self._cgroups = shared.host.cgroups
        self._levels: list[list[str]] | None = None
        self._pods: object = None
        self._given: TreeCPUs | None = None
        self._refused: TreeCPUs | None = None
        self._written_s = 0.0

    @property
    def _top(self) -> str:
        return cgroup_layout.class_dir(self._shared.view.driver, KubeQoS.BEST_EFFORT)

    def now(self, *, of_containers: bool) -> CPUSet | None:
        """Return CPUs that the class has, or its containers, where these are set apart; None when that is unknown."""
        try:
            if not of_containers or self._cgroups.version != V1:
                return self._cgroups.cpus(self._top)
            if self._given is not None:
                return self._given.of_containers
            groups = self._cgroups.walk(self._top, _LEVELS_BELOW, SUBSYSTEM)
            depth = self._top.count("/") + _LEVELS_BELOW
            texts = {
                each: self._cgroups.read(Knob.CPUSET, each) for each in groups if each.count("/") == depth
            }
            known = {group: text for group, text in texts.items() if text is not None}
            return cgroup_layout.smallest_cpuset(self._cgroups.read(Knob.CPUSET, self._top), known)
        except ContentError:
            return None

    def give(self, wanted: TreeCPUs, reason: str) -> bool:
        """Make all groups have these CPUs; whether they do. Nothing is even read while nothing has changed."""
        pods = self._shared.view.pods
        age_s = self._shared.clock.now() - self._written_s
        is_due = not 0 <= age_s < self._shared.config.qos.force_update_s
        is_known = pods is self._pods and not is_due
        if is_known and wanted == self._given:
            return True
        if is_known and wanted == self._refused and age_s < RETRY_S:
            return False
        if self._levels is None or not is_known:
            self._find()
        results = self._write(wanted, reason)
        if _has_failed(results):
            self._find()  # a group that we did not know of stands in the way
            results = self._write(wanted, reason)
        self._written_s = self._shared.clock.now()
        if not any(
            result.update.group == self._top and result.outcome is not WriteOutcome.MISSING
            for result in results
        ):
            self.forget()  # the kubelet has not made its groups yet
            return False
        has_failed = _has_failed(results)
        self._given, self._refused = (None, wanted) if has_failed else (wanted, None)
        return not has_failed

    def forget(self) -> None:
        """Look at everything again in the next round."""
        self._given = self._refused = self._levels = self._pods = None

    def adopt(self) -> None:
        """Take over groups that were made below a changed one, so that they are put back with it."""
        groups = (
            self._cgroups.walk(self._top, _LEVELS_BELOW, SUBSYSTEM) if self._cgroups.version == V1 else []
        )
        self._adopt(groups)

    def _find(self) -> None:
        self._pods = self._shared.view.pods
        if self._cgroups.version != V1:
            self._levels = [[self._top]]
            return
        found = self._cgroups.walk(self._top, _LEVELS_BELOW, SUBSYSTEM)
        depth = self._top.count("/")
        self._levels = [
            [group for group in found if group.count("/") == depth + level]
            for level in range(_LEVELS_BELOW + 1)
        ]
        self._adopt(found)

    def _write(self, wanted: TreeCPUs, reason: str) -> Sequence[Result]:
        levels = self._levels or []
        sets = (wanted.of_class, wanted.of_pods, wanted.of_containers)
        updates = [
            [
                Update(group, Knob.CPUSET, text, reason)
                for group in groups
                if level < _LEVELS_BELOW or not _is_below(group, wanted.left_alone)
            ]
            for level, (groups, text) in enumerate(
                zip(levels, (cpuset.text_of(cpus) for cpus in sets), strict=False)
            )
        ]
        return self._shared.executor.update_leveled(updates, owner=self._owner)

    def _adopt(self, groups: Iterable[str]) -> None:
        """A group of v1 starts with the CPUs of its parent: those that ours gave it are not its own."""
        changed = {each.group: each for each in self._changed()}
        top = changed.get(self._top)
        if top is None or _is_same(top.before, top.wrote):
            return
        for group in groups:
            if group in changed:
                continue
            text = self._cgroups.read(Knob.CPUSET, group)
            if text is not None and _is_same(text, top.wrote):
                self._shared.executor.adopt(Knob.CPUSET, group, top.before, owner=self._owner)

    def _changed(self) -> list[RestoreRecord]:
        files = self._cgroups.files
        return [
            record
            for record in self._shared.executor.changed_by(self._owner)
            if record.knob == Knob.CPUSET and files.identity(record.path) == record.identity
        ]


def _has_failed(results: Iterable[Result]) -> bool:
    return any(result.outcome in _FAILED for result in results)


def _is_below(group: str, pods: frozenset[str]) -> bool:
    return group.rpartition("/")[0] in pods


def _is_same(a: str, b: str) -> bool:
    try:
        return cpuset.parse(a.strip()) == cpuset.parse(b.strip())
    except CPUSetError:
        return False
