"""CPU sets of the best-effort groups, written when they or the pods change.

On cgroup v1 a group may not have CPUs that its parent lacks, and one that is made takes over its parent's: so all
groups of the class, its pods and their containers are written, and those made meanwhile are found with the next list of
pods. On v2 the kernel narrows everything below a group by itself, and the group of the class is all that is written.
Source: behaviour/koordlet-act 4.5 and 4.7.
"""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence

import msgspec

from koordinator.api import cpuset
from koordinator.api.cpuset import CPUSet, CPUSetError
from koordinator.api.qos import KubeQoS
from koordinator.host import cgroup_layout
from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.host.errors import ContentError
from koordinator.koordlet.node_pods import PodRecord
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.writing.restore_log import RestoreRecord
from koordinator.koordlet.writing.update_plan import NOT_TAKEN, Result, Update, WriteOutcome

SUBSYSTEM = "cpuset"
RETRY_S = 10.0
"""Time after which writes that the kernel refused are repeated, unless something changes before."""
_LEVELS_BELOW = 2


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
        self._below: Mapping[str, Sequence[str]] = {}
        """Groups of containers, by that of the pod; only on v1."""
        self._pods: Mapping[str, PodRecord] = {}
        """Pods for which groups were looked for last."""
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
        is_same = self._shared.view.pods is self._pods
        age_s = self._shared.clock.now() - self._written_s
        is_due = not 0 <= age_s < self._shared.config.qos.force_update_s
        if not is_due and wanted == self._given and (is_same or self._give_new(wanted, reason)):
            return True
        if not is_due and is_same and wanted == self._refused and age_s < RETRY_S:
            return False
        if is_due or not is_same or not self._below:
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
        self._given = self._refused = None
        self._below, self._pods = {}, {}

    def adopt(self) -> None:
        """Take over groups that were made below a changed one, so that they are put back with it."""
        groups = (
            self._cgroups.walk(self._top, _LEVELS_BELOW, SUBSYSTEM) if self._cgroups.version == V1 else []
        )
        self._adopt(groups)

    def _give_new(self, wanted: TreeCPUs, reason: str) -> bool:
        """Give groups that came with the last list of pods what the others have; return whether all of them do."""
        before = self._pods
        changed = {each.group for uid, each in self._shared.view.pods.items() if before.get(uid) is not each}
        known = {group: below for group, below in self._below.items() if group not in changed}
        self._find(known)
        return bool(self._below) and not _has_failed(self._write(wanted, reason, known))

    def _find(self, known: Mapping[str, Sequence[str]] = {}) -> None:
        """Find the groups; those below some pods are known."""
        self._pods = self._shared.view.pods
        pods = self._children(self._top) if self._cgroups.version == V1 else ()
        self._below = {pod: known[pod] if pod in known else self._children(pod) for pod in pods}
        self._adopt(
            [each for pod, below in self._below.items() if pod not in known for each in (pod, *below)]
        )

    def _children(self, group: str) -> Sequence[str]:
        return self._cgroups.children(group, SUBSYSTEM) or ()

    def _write(self, wanted: TreeCPUs, reason: str, known: Container[str] = ()) -> Sequence[Result]:
        """Write all, or all but pods that are known and what is below them."""
        new = {pod: below for pod, below in self._below.items() if pod not in known}
        containers = [each for pod, below in new.items() if pod not in wanted.left_alone for each in below]
        levels = (
            ((self._top,), wanted.of_class),
            (new, wanted.of_pods),
            (containers, wanted.of_containers),
        )
        updates = []
        for groups, cpus in levels:
            text = cpuset.text_of(cpus)
            updates.append([Update(group, Knob.CPUSET, text, reason) for group in groups])
        return self._shared.executor.update_leveled(updates, owner=self._owner)

    def _adopt(self, groups: Collection[str]) -> None:
        """A group of v1 starts with the CPUs of its parent: those that ours gave it are not its own."""
        if not groups:
            return
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
    return any(result.outcome in NOT_TAKEN for result in results)


def _is_same(a: str, b: str) -> bool:
    try:
        return cpuset.parse(a.strip()) == cpuset.parse(b.strip())
    except CPUSetError:
        return False
