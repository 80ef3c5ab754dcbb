"""The one table of where our answers differ from the reference's on purpose, by area and behaviour.

A deviation explains a case only when its condition holds there and when the reference's answer follows from it:
`Derived` works out what the reference says from what the code answers, with that one difference taken out of the
question or put into the answer, and any other difference stays a failure. Where the reference's answer cannot be
worked out, a predicate bounds what may differ. Where several deviations meet in one case, what one works out stands
for our answer when the next one is asked. Each deviation names its section of
`docs/deliberate-differences.md` and a word or two by which its line there is found.
"""

from tests.vectors.deviations import table_control_plane, table_node, table_scheduler
from tests.vectors.deviations.question import Derived, Deviation, Question, together

TABLE = (*table_control_plane.TABLE, *table_scheduler.TABLE, *table_node.TABLE)


MOST_AT_ONCE = 3


def deviation_of(area: str, question: Question) -> Deviation | None:
    """The fewest deviations of the area that explain together why both answers differ, None when none do."""
    known = tuple(each for each in TABLE if area in each.areas)
    counts = range(1, min(MOST_AT_ONCE, len(known)) + 1)
    return next(filter(None, (_explaining(known, question, count) for count in counts)), None)


def _explaining(known: tuple[Deviation, ...], question: Question, count: int) -> Deviation | None:
    """As many deviations: the last one asked for the difference between `expected` and what the others make of ours."""
    if count == 1:
        return next((each for each in known if each.explains(question)), None)
    for each in known:
        if isinstance(each.explains, Derived):
            rest = tuple(other for other in known if other is not each)
            found = _explaining(rest, each.explains.taken_for_ours(question), count - 1)
            if found is not None:
                return together(each, found)
    return None
