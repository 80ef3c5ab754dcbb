"""The evaluations of recently seen classes: equal pods share one, brought up to date before each use."""

from collections import OrderedDict
from collections.abc import Hashable

from koordinator.scheduler.engine.answers import ScoreShare
from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.extensions import ShownNodes
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.plugin.status import Status
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import Trial, trial_of


class ShownEvaluation(Evaluation):
    """An `Evaluation` of nodes as transformers show them.

    While transformers of pods change something it works everything out anew after every change in the table. Rows that
    node transformers show are shown again, one by one, when they changed.

    Source: behaviour/scheduler C2.
    """

    _is_changed = False
    _shown: ShownNodes | None = None

    def update(self, pod: PodInfo) -> None:
        log, table = self._table.changes, self._table
        is_stale = self._sequence != log.sequence or self._membership != table.membership
        if self._is_changed and (is_stale or self._stale_plugins()):
            self._pod = pod
            self._run_all()
        elif self._shown is not None:
            self._pod = pod
            self._update_shown(self._shown)
        else:
            super().update(pod)

    def _update_shown(self, shown: ShownNodes) -> None:
        log = self._table.changes
        changes = log.since(self._sequence) if self._sequence != log.sequence else None
        if self._is_void(changes) or self._stale_plugins():
            self._run_all()
            return
        if changes is None:
            return
        with trial_of(self._table) as what_if:
            for row in changes.rows.tolist():
                shown.show_row(row, what_if)
            self._sequence = log.sequence
            self._apply(changes, [])
            if not self.feasible_count and self.status.is_success:
                self._all_refusals()
        self._note_epochs()
        self._normal_epochs = self._normal_epochs_now()

    def score_shares(self, rows: Rows) -> list[ScoreShare]:
        if self.is_of_table:
            return super().score_shares(rows)
        extensions = self._profile.extensions
        with trial_of(self._table) as what_if:
            if self._shown is not None:
                for row in rows.tolist():
                    self._shown.show_row(row, what_if)
            if self._is_changed:
                shown = extensions.see_before_pre_filter(self._pod, what_if)
                extensions.see_before_filter(self.states, shown.pod, what_if)
            return super().score_shares(rows)

    @property
    def is_of_table(self) -> bool:
        return not self._is_changed and self._shown is None

    def follow(self, row: int, sequence: int) -> None:
        """Follow as always where transformers show nothing; else the next pod may be shown another row."""
        if self._shown is None and not self._profile.extensions.transforms:
            super().follow(row, sequence)

    def _run_all(self) -> None:
        extensions = self._profile.extensions
        self._shown = extensions.shown_nodes(self._pod) if extensions.node_transformers else None
        if self._shown is None and not extensions.transforms:
            self._is_changed = False
            super()._run_all()
            return
        with trial_of(self._table) as what_if:
            if self._shown is not None:
                self._shown.show(what_if)
            moved_count = what_if.moved_count
            shown = self._show(what_if)
            is_used = what_if.is_used
            self._is_changed = shown is not self._pod or what_if.moved_count > moved_count
            if is_used and self.status.is_success:
                self._all_refusals()  # now, as later the nodes are as they are again
        # The trial is undone: what plugins count is as before, their epochs need not be.
        self._sequence = self._table.changes.sequence
        self._membership = self._table.membership
        if is_used:
            self._note_epochs()
            self._normal_epochs = self._normal_epochs_now()

    def _show(self, what_if: Trial) -> PodInfo:
        """Evaluate; the pod as the last transformer showed it."""
        extensions = self._profile.extensions
        shown = extensions.see_before_pre_filter(self._pod, what_if)
        self._begin(shown.pod)
        self._pre_filter()
        if self._is_refused(shown.status):
            self._pre_score()
            return shown.pod
        filtered = extensions.see_before_filter(self.states, shown.pod, what_if)
        if filtered.pod is not shown.pod:
            self._prepare(filtered.pod)
            self._choose_local_filters()
        self._pre_score()
        if self._is_refused(filtered.status):
            return filtered.pod
        self._ask_all()
        return filtered.pod

    def _is_refused(self, status: Status) -> bool:
        """Return whether the pod is refused as a whole, by a transformer (`status`) or before."""
        if not status.is_success:
            self.status = status
        return not self.status.is_success


CLASSES_MAX = 16_384
"""Evaluations kept at most, however small they are."""
BYTES_LEAST, BYTES_PER_NODE, BYTES_MAX = 2 << 20, 50_000, 256 << 20
"""Memory of the evaluations kept: about 150 classes of pods at 20 nodes, which are soon evaluated anew, 3,000 at 5,000,
1,000 at 20,000."""
ONCE_SHARE = 8
"""The part of it, 1 / so much, for classes that were asked about once so far: of pods that all differ, nothing else
would be left in memory. About 400 classes at 5,000 nodes."""
GHOSTS_MAX = 16_384
"""Classes remembered, by number only, that were asked about once and are not kept: the next time they are."""


def evaluate(profile: Profile, table: NodeTable, pod: PodInfo) -> Evaluation:
    """Return a new evaluation."""
    kind = ShownEvaluation if profile.extensions.shows else Evaluation
    return kind(profile, table, pod)


class EvaluationCache:
    """Evaluations by profile and class; who was not asked for longest goes first, and before all others goes who was
    asked for once only.

    `classes_max` 0 evaluates every pod anew; `bytes_max` follows from the number of nodes unless it is given.
    """

    def __init__(
        self, table: NodeTable, *, classes_max: int = CLASSES_MAX, bytes_max: int | None = None
    ) -> None:
        self._table = table
        self._classes_max = classes_max
        self._bytes_max = bytes_max
        self._once = _Segment()
        self._again = _Segment()
        self._ghosts: OrderedDict[int, object] = OrderedDict()
        """By the hash of the key: one that shares it with another is kept too soon, which does no harm."""
        self._last: _Kept | None = None
        self.hit_count = 0
        self.miss_count = 0

    def __len__(self) -> int:
        return len(self._once.kept) + len(self._again.kept)

    def evaluate(self, profile: Profile, pod: PodInfo, class_key: Hashable) -> Evaluation:
        """Return the current evaluation of the pod's class (`Profile.class_key`)."""
        if self._classes_max == 0:
            self.miss_count += 1
            return evaluate(profile, self._table, pod)
        key = (profile.name, class_key, profile.live_key(pod))
        last = self._last
        if last is not None and key == last.key:
            # Pods of a kind follow each other: neither order nor size have to be seen to for each of them.
            self.hit_count += 1
            last.is_again = True
            last.evaluation.update(pod)
            return last.evaluation
        self._put_away()
        known = self._again.pop(key) or self._once.pop(key)
        if known is None:
            self.miss_count += 1
            evaluation = evaluate(profile, self._table, pod)
            is_again = self._ghosts.pop(hash(key), _NO_GHOST) is not _NO_GHOST
            self._last = _Kept(key, evaluation, self._again if is_again else self._once)
            self._last.put()
            self._drop_oldest()
            return evaluation
        self.hit_count += 1
        known.evaluation.update(pod)
        known.segment = self._again
        known.put()
        self._last = known
        return known.evaluation

    def _put_away(self) -> None:
        """Note that the last one grew or shrank while it was in use, and was asked for again, perhaps."""
        last = self._last
        if last is None:
            return
        size_bytes = last.evaluation.size_bytes
        if last.is_again and last.segment is self._once:
            self._once.pop(last.key)
            last.segment, last.size_bytes = self._again, size_bytes
            last.put()
        elif size_bytes != last.size_bytes:
            last.resize(size_bytes)
        else:
            return
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Keep within the limits; the newest stays however large it is."""
        once, again, bytes_max = self._once, self._again, self._bytes_max
        is_newest_again = self._last is not None and self._last.segment is again
        if bytes_max is None:
            bytes_max = min(BYTES_MAX, BYTES_LEAST + BYTES_PER_NODE * self._table.node_count)
        while len(self) > 1:
            is_once_full = once.size_bytes * ONCE_SHARE > bytes_max and len(once.kept) > 1
            if is_once_full:
                key = once.drop_oldest()
            elif once.size_bytes + again.size_bytes > bytes_max or len(self) > self._classes_max:
                # Of the newest, nothing but itself is left in its segment.
                key = (again if len(again.kept) > is_newest_again else once).drop_oldest()
            else:
                return
            self._ghosts[hash(key)] = None
            if len(self._ghosts) > GHOSTS_MAX:
                self._ghosts.popitem(last=False)


_NO_GHOST = object()


class _Segment:
    """Evaluations in the order in which they were asked for last, and their size."""

    def __init__(self) -> None:
        self.kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self.size_bytes = 0

    def pop(self, key: Hashable) -> "_Kept | None":
        found = self.kept.pop(key, None)
        if found is not None:
            self.size_bytes -= found.size_bytes
        return found

    def drop_oldest(self) -> Hashable:
        """Return the key of what is kept no more."""
        key, found = self.kept.popitem(last=False)
        self.size_bytes -= found.size_bytes
        return key


class _Kept:
    """An evaluation with its key, its size, and where it is kept. `is_again`: it was asked for once more since."""

    __slots__ = ("evaluation", "is_again", "key", "segment", "size_bytes")

    def __init__(self, key: Hashable, evaluation: Evaluation, segment: _Segment) -> None:
        self.key, self.evaluation, self.segment = key, evaluation, segment
        self.size_bytes, self.is_again = evaluation.size_bytes, False

    def put(self) -> None:
        """Put it in as the newest; it is not there yet."""
        self.segment.kept[self.key] = self
        self.segment.size_bytes += self.size_bytes

    def resize(self, size_bytes: int) -> None:
        self.segment.size_bytes += size_bytes - self.size_bytes
        self.size_bytes = size_bytes
