"""Ask the node table what-if questions: pods moved for a while, everything as before in the end."""

import contextlib
from collections.abc import Iterator, Mapping

from koordinator.scheduler.table.columns import ChangeLog
from koordinator.scheduler.table.nodes import NodeTable, PodLocation
from koordinator.scheduler.table.pod_info import PodInfo


class Trial:
    """Pods moved for the sake of a question."""

    def __init__(self, table: NodeTable, *, is_rehearsal: bool = False) -> None:
        self._table = table
        self._is_rehearsal = is_rehearsal
        self._added: list[PodInfo] = []
        self._taken: dict[int, Mapping[str, PodInfo]] = {}
        self._places: dict[str, PodLocation] = {}

    @property
    def is_used(self) -> bool:
        """Return whether it moves any pod."""
        return bool(self._added or self._places)

    @property
    def moved_count(self) -> int:
        """Return how many moves were made."""
        return len(self._added) + len(self._places)

    def add(self, pod: PodInfo, node_name: str) -> None:
        """Count a pod that is nowhere, or back where it was taken from."""
        assert self._table.place_of(pod.uid) is None, pod.key
        self._added.append(pod)
        with self._of_takes() if pod.uid in self._places else contextlib.nullcontext():
            self._table.assign(pod, node_name, assumed=True)

    def drop(self, pod: PodInfo) -> None:
        """Count a pod no longer that was added last."""
        assert self._added and self._added[-1].uid == pod.uid, pod.key
        self._added.pop()
        self._table.unassign(pod.uid)

    def take(self, pod: PodInfo) -> None:
        """Do not count a pod."""
        place = self._table.place_of(pod.uid)
        assert place is not None, pod.key
        self._taken.setdefault(place.row, dict(self._table.pods_at(place.row)))
        self._places.setdefault(pod.uid, place)
        with self._of_takes():
            self._table.unassign(pod.uid)

    def _of_takes(self) -> contextlib.AbstractContextManager[None]:
        if not self._is_rehearsal:
            return contextlib.nullcontext()  # only those are told at all that may be
        return self._table.notifying(lambda keeper: keeper.in_takes)

    def undo(self) -> None:
        """Everything as before, the order of the pods on a row included."""
        table = self._table
        for pod in self._added:
            table.unassign(pod.uid)
        with self._of_takes():
            for uid, place in self._places.items():
                if table.place_of(uid) is None:
                    table.assign(place.pod, table.name_of(place.row), assumed=place.assumed)
        added = {pod.uid for pod in self._added} - self._places.keys()
        for row, pods in self._taken.items():
            table.restore_order(row, {uid: pod for uid, pod in pods.items() if uid not in added})


@contextlib.contextmanager
def trial_of(table: NodeTable) -> Iterator[Trial]:
    """Try pods elsewhere. Everything that the trial changed is as before in the end, so cached evaluations hold; they
    must not be used within."""
    trial = Trial(table)
    was_trial, table.is_trial = table.is_trial, True
    with table.notifying(lambda keeper: keeper.in_trials), table.changes.muted():
        try:
            yield trial
        finally:
            trial.undo()
            table.is_trial = was_trial


@contextlib.contextmanager
def rehearsal_of(table: NodeTable) -> Iterator[Trial]:
    """Try pods as `trial_of` does, for placing them one beside the other: every keeper is told of pods that are added,
    and changes go to a log of their own, so that evaluations made within may be kept current within."""
    log, table.changes = table.changes, ChangeLog(table.capacity)
    was_trial, table.is_trial = table.is_trial, True
    trial = Trial(table, is_rehearsal=True)
    try:
        yield trial
    finally:
        trial.undo()
        table.changes, table.is_trial = log, was_trial
