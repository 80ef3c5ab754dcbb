"""Place batch tasks on nodes: by room, by the load-aware rule and score, many at once.

One task at a time would always take the best node, and make it a little worse. Rounds come near that: in each, the best
nodes get one task each, at most half of those with room, so that nobody gets a second one before its equals have one.
"""

import msgspec
import numpy as np

from koordinator.local.nodes.usage import F64, Index, Mask
from koordinator.scheduler.plugins.load_aware import load


class NodeRoom(msgspec.Struct, eq=False):
    """The room that nodes still have. `free` (2, nodes): batch-cpu and batch-memory that are left; `pods` (nodes,).

    `below_limit` (names, nodes) is what use may grow by within the thresholds; `left` (names, nodes) and `capacity` are
    what the score goes by. Placing changes all but the capacity.
    """

    free: Index
    pods: Index
    below_limit: Index
    left: Index
    capacity: F64
    weights: Index
    dominant_weight: int

    def take(self, rows: Index, asked: Index, estimate: Index) -> None:
        """A task comes to each of `rows`, (n,): it asks for `asked` (2,) and is expected to use `estimate` (names,)."""
        self.free[:, rows] -= asked[:, np.newaxis]
        self.pods[rows] -= 1
        self.below_limit[:, rows] -= estimate[:, np.newaxis]
        self.left[:, rows] -= estimate[:, np.newaxis]

    def fits(self, asked: Index, estimate: Index) -> Mask:
        """Return where one more such task may go, (nodes,)."""
        has_room = (self.free >= asked[:, np.newaxis]).all(axis=0) & (self.pods > 0)
        is_over = load.is_over(self.below_limit, estimate[:, np.newaxis]).any(axis=0)
        fits: Mask = has_room & ~is_over
        return fits

    def score(self, rows: Index, estimate: Index) -> Index:
        """Return how the scheduler likes nodes, (n,)."""
        free = (self.left[:, rows] - estimate[:, np.newaxis]).astype(np.float64)
        return load.usage_score(free, self.capacity[:, rows], self.weights, self.dominant_weight)


def place(room: NodeRoom, asked: Index, estimate: Index, wanted: int, rng: np.random.Generator) -> Index:
    """Return the nodes of up to `wanted` tasks, (placed,), and take their room."""
    placed: list[Index] = []
    while wanted > 0:
        rows = np.flatnonzero(room.fits(asked, estimate))
        if not rows.size:
            break
        count = min(wanted, max(rows.size // 2, 1))
        if count < rows.size:
            # Equal nodes are chosen among by chance, as the scheduler does by the pod's uid.
            worth = room.score(rows, estimate) + rng.random(rows.size)
            rows = rows[np.argpartition(-worth, count - 1)[:count]]
        room.take(rows, asked, estimate)
        placed.append(rows)
        wanted -= rows.size
    return np.concatenate(placed) if placed else np.zeros(0, np.int64)
