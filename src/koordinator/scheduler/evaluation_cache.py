"""The evaluations of recently seen classes: equal pods share one, brought up to date before each use."""

from collections import OrderedDict
from collections.abc import Hashable

from koordinator.scheduler.evaluation import Evaluation
from koordinator.scheduler.nodes import NodeTable
from koordinator.scheduler.pod_info import PodInfo
from koordinator.scheduler.profile import Profile
from koordinator.scheduler.shown_evaluation import ShownEvaluation

CLASSES_MAX = 16_384
"""Evaluations kept at most, however small they are."""
BYTES_MAX = 256 << 20
"""Memory of the evaluations kept: about 2,500 classes of pods at 5,000 nodes, 600 at 20,000."""


def evaluate(profile: Profile, table: NodeTable, pod: PodInfo) -> Evaluation:
    """A new evaluation."""
    kind = ShownEvaluation if profile.extensions.transforms else Evaluation
    return kind(profile, table, pod)


class EvaluationCache:
    """Evaluations by profile and class; who was not asked for longest goes first.

    `classes_max` 0 evaluates every pod anew.
    """

    def __init__(
        self, table: NodeTable, *, classes_max: int = CLASSES_MAX, bytes_max: int = BYTES_MAX
    ) -> None:
        self._table = table
        self._classes_max = classes_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._evaluations: OrderedDict[Hashable, tuple[Evaluation, int]] = OrderedDict()
        self._last: Evaluation | None = None
        self._last_key: Hashable = None
        self.hit_count = 0
        self.miss_count = 0

    def __len__(self) -> int:
        return len(self._evaluations)

    def evaluate(self, profile: Profile, pod: PodInfo, class_key: Hashable) -> Evaluation:
        """The current evaluation of the pod's class (`Profile.class_key`)."""
        if self._classes_max == 0:
            self.miss_count += 1
            return evaluate(profile, self._table, pod)
        key = (profile.name, class_key, profile.live_key(pod))
        if self._last is not None and key == self._last_key:
            # Pods of a kind follow each other: neither order nor size have to be seen to for each of them.
            self.hit_count += 1
            self._last.update(pod)
            return self._last
        self._note_size()
        found = self._evaluations.get(key)
        if found is None:
            self.miss_count += 1
            evaluation = evaluate(profile, self._table, pod)
            self._evaluations[key] = (evaluation, 0)
        else:
            self.hit_count += 1
            evaluation = found[0]
            self._evaluations.move_to_end(key)
            evaluation.update(pod)
        self._last, self._last_key = evaluation, key
        self._note_size()
        return evaluation

    def _note_size(self) -> None:
        """Of the last one, which grows and shrinks while it is in use: called when it comes and when it goes."""
        if self._last is None:
            return
        known_bytes, size_bytes = self._evaluations[self._last_key][1], self._last.size_bytes
        if size_bytes != known_bytes:
            self._evaluations[self._last_key] = (self._last, size_bytes)
            self._bytes += size_bytes - known_bytes
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Keep within the limits; the newest stays however large it is."""
        while len(self._evaluations) > 1 and (
            self._bytes > self._bytes_max or len(self._evaluations) > self._classes_max
        ):
            _, (_, size_bytes) = self._evaluations.popitem(last=False)
            self._bytes -= size_bytes
