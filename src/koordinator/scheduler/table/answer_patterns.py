"""What most evaluations have in common about refusals: every node passes, or none was asked. They share these arrays,
and copy one when they have something of their own to say."""

import msgspec
import numpy as np
import numpy.typing as npt

NO_NODE = 255
"""`refused_by` of rows that stand for no node."""
LEFT_OUT = 254
"""`refused_by` of nodes that a PreFilter plugin left out."""
NOT_FEASIBLE = int(np.iinfo(np.int32).min)
"""Total of a row that is out of the question."""

RefusedBy = npt.NDArray[np.uint8]
"""(capacity,): 0 for rows that pass, else the position (from 1) of the first Filter plugin that refused."""


class AnswerPatterns(msgspec.Struct, frozen=True):
    """Arrays of (capacity,), to be read only. `membership` says for which nodes they hold."""

    membership: int
    nobody_refused: RefusedBy
    nobody_asked: RefusedBy
    no_codes: npt.NDArray[np.uint16]
    everywhere: npt.NDArray[np.bool_]
    nowhere: npt.NDArray[np.bool_]
    never: npt.NDArray[np.int32]

    @classmethod
    def of(cls, rows: npt.NDArray[np.intp], capacity: int, membership: int) -> "AnswerPatterns":
        """`rows` stand for nodes."""
        nobody_refused = np.full(capacity, NO_NODE, np.uint8)
        nobody_refused[rows] = 0
        found = cls(
            membership,
            nobody_refused=nobody_refused,
            nobody_asked=np.full(capacity, NO_NODE, np.uint8),
            no_codes=np.zeros(capacity, np.uint16),
            everywhere=nobody_refused == 0,
            nowhere=np.zeros(capacity, np.bool_),
            never=np.full(capacity, NOT_FEASIBLE, np.int32),
        )
        for name in cls.__struct_fields__[1:]:
            getattr(found, name).setflags(write=False)
        return found
