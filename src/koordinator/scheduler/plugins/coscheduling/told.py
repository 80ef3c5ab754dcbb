"""Who was told why its gang group does not start: when a round fails for the same reason again, there is nothing new to
tell, and the members need not be tried."""

from collections import OrderedDict

import msgspec

from koordinator.clock import Clock

TOLD_S = 240.0
"""Then everybody is told again, before the queue tries sleepers on its own: a condition may not have been written."""
GROUPS_MAX = 10_000
"""Groups that fail for ever and are gone some day: who was not told of for longest is forgotten."""


class _Told(msgspec.Struct):
    text: str
    since_s: float
    members: dict[str, str] = {}
    """By `namespace/name`, with their uids."""


class ToldFailures:
    """The last failure of each gang group, and which members know of it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._groups: OrderedDict[str, _Told] = OrderedDict()

    def tell(self, group_id: str, text: str, key: str, uid: str) -> None:
        """A member is told."""
        found = self._groups.get(group_id)
        if found is None or found.text != text or self._is_old(found):
            found = self._groups[group_id] = _Told(text, self._clock.now())
            self._groups.move_to_end(group_id)
            if len(self._groups) > GROUPS_MAX:
                self._groups.popitem(last=False)
        found.members[key] = uid

    def who_knows(self, group_id: str, text: str) -> dict[str, str]:
        """The members that were told just that, with their uids."""
        found = self._groups.get(group_id)
        return found.members if found is not None and found.text == text and not self._is_old(found) else {}

    def forget(self, group_id: str) -> None:
        """Members were told something else."""
        self._groups.pop(group_id, None)

    def _is_old(self, told: _Told) -> bool:
        return not 0.0 <= self._clock.now() - told.since_s < TOLD_S
