"""The search for devices on one node: first fit in order, with backtracking.

Source: upstream's structured allocator. Requests are served in the order of the pod's claims; of several subrequests
(`firstAvailable`) the first that lets everything else succeed counts, earlier requests having precedence. Devices
that nothing tells apart are tried once instead of one after the other.
"""

import enum
from collections.abc import Hashable, Iterator, Sequence

import msgspec

from koordinator.api.dra import RESULTS_MAX

ALL = 0
"""Count that stands for all devices that fit, at least one."""


class SubRequest(msgspec.Struct, frozen=True):
    """`fits` is the index of a list in `Stock.fits`; `rules` are indices of those that the devices have to keep."""

    fits: int
    count: int
    is_admin: bool = False
    rules: tuple[int, ...] = ()


class ClaimRequest(msgspec.Struct, frozen=True):
    """One request of a claim (by index)."""

    claim: int
    sub_requests: tuple[SubRequest, ...]


class MatchConstraint(msgspec.Struct, frozen=True):
    """Values of an attribute (index of a list in `Stock.values`) have to be equal, or all different."""

    values: int
    is_distinct: bool = False


class AllocationProblem(msgspec.Struct, frozen=True):
    asks: tuple[ClaimRequest, ...]
    rules: tuple[MatchConstraint, ...] = ()
    claim_count: int = 1


class Stock(msgspec.Struct, frozen=True):
    """Devices that a node reaches, in order: equal `kinds` are alike in all that is said here. `fits` and
    `values` have one list per selection and attribute; a value of -1 is none. `is_unusable`: the pool changes, or
    contradicts itself.

    `consumes`, per device, is what it takes of the `available` counters, as (counter, amount) pairs, unless it
    `is_shared` already. `room`, per device, is what is left of its capacities when several claims may have it, else
    None; `shares`, per selection and device, what one more claim would take of them.
    """

    kinds: Sequence[Hashable]
    fits: Sequence[Sequence[bool]]
    values: Sequence[Sequence[int]]
    is_used: Sequence[bool]
    is_unusable: Sequence[bool]
    consumes: Sequence[Sequence[tuple[int, int]]]
    available: Sequence[int]
    room: Sequence[Sequence[int] | None]
    shares: Sequence[Sequence[Sequence[int]]]
    is_shared: Sequence[bool]


class AllocationOutcome(enum.IntEnum):
    FOUND = 0
    NOT_FOUND = 1
    TOO_MANY_STEPS = 2
    UPDATING = 3
    """All devices were asked for, while a pool changes or cannot be used."""
    INVALID_POOL = 4
    """There are none, and a pool with some cannot be used."""


class Pick(msgspec.Struct, frozen=True):
    """The devices of an ask: the subrequest that was met, and indices of devices."""

    sub_request: int
    devices: tuple[int, ...]


class AllocatorResult(msgspec.Struct, frozen=True):
    """`picks` has one entry per ask when they were FOUND, else none; `steps` is how many devices were tried."""

    outcome: AllocationOutcome
    picks: tuple[Pick, ...] = ()
    steps: int = 0


class _TooManySteps(Exception):
    pass


def search(problem: AllocationProblem, stock: Stock, steps_max: int) -> AllocatorResult:
    """Devices for all asks at once. `steps_max` bounds the devices tried; 0 does not."""
    run = _Search(problem, stock, steps_max)
    try:
        is_found = run.serve(0)
    except _TooManySteps:
        return AllocatorResult(AllocationOutcome.TOO_MANY_STEPS, steps=run.steps)
    if is_found:
        return AllocatorResult(AllocationOutcome.FOUND, tuple(run.picks), run.steps)
    outcome = AllocationOutcome.UPDATING if run.met_updating else AllocationOutcome.NOT_FOUND
    return AllocatorResult(outcome, steps=run.steps)


class _Search:
    def __init__(self, problem: AllocationProblem, stock: Stock, steps_max: int) -> None:
        self._problem = problem
        self._stock = stock
        self._steps_max = steps_max
        self.steps = 0
        self._takers: list[list[int]] = [[] for _ in stock.kinds]
        """Claims that got each device in this search, or look at it."""
        self._users = [int(is_shared) for is_shared in stock.is_shared]
        """Number of holders of each device, of those that share it."""
        self._left = list(stock.available)
        self._room = [None if room is None else list(room) for room in stock.room]
        self._rules: list[list[int]] = [[] for _ in problem.rules]
        """Values of the devices chosen so far, by rule."""
        self._counts = [0] * problem.claim_count
        self.picks: list[Pick] = []
        self.met_updating = False

    def serve(self, at: int) -> bool:
        """Serve this ask and return whether it and all later ones can be met."""
        if at == len(self._problem.asks):
            return True
        ask = self._problem.asks[at]
        for index, sub_request in enumerate(ask.sub_requests):
            if sub_request.count == ALL:
                if self._serve_all(at, ask, index, sub_request):
                    return True
            elif self._counts[ask.claim] + sub_request.count <= RESULTS_MAX and self._serve_some(
                at, ask, index, sub_request, 0, []
            ):
                return True
        return False

    def _serve_all(self, at: int, ask: ClaimRequest, index: int, sub_request: SubRequest) -> bool:
        stock = self._stock
        if any(stock.is_unusable):
            self.met_updating = True
            return False
        wanted = [
            device
            for device, fits in enumerate(stock.fits[sub_request.fits])
            if fits and _has_room(stock.room[device], stock.shares[sub_request.fits], device)
        ]
        if not wanted or self._counts[ask.claim] + len(wanted) > RESULTS_MAX:
            return False
        taken: list[int] = []
        for device in wanted:
            self._step()
            if not self._may_take(ask, sub_request, device):
                break
            self._take(ask, sub_request, device)
            taken.append(device)
        if len(taken) == len(wanted) and self._go_on(at, index, taken):
            return True
        for device in reversed(taken):
            self._give_back(sub_request, device)
        self._counts[ask.claim] -= len(taken)
        return False

    def _serve_some(
        self, at: int, ask: ClaimRequest, index: int, sub_request: SubRequest, first: int, taken: list[int]
    ) -> bool:
        """Choose devices from `first` on, until there are enough."""
        if len(taken) == sub_request.count:
            return self._go_on(at, index, taken)
        for device in self._candidates(ask, sub_request, first):
            self._take(ask, sub_request, device)
            taken.append(device)
            may_repeat = self._room[device] is not None and not sub_request.is_admin
            if self._serve_some(at, ask, index, sub_request, device + (not may_repeat), taken):
                return True
            taken.pop()
            self._give_back(sub_request, device)
            self._counts[ask.claim] -= 1
        return False

    def _go_on(self, at: int, index: int, taken: list[int]) -> bool:
        self.picks.append(Pick(index, tuple(taken)))
        if self.serve(at + 1):
            return True
        self.picks.pop()
        return False

    def _candidates(self, ask: ClaimRequest, sub_request: SubRequest, first: int) -> Iterator[int]:
        """Devices that can be taken next; of those that are alike only the first, as the others fail with it."""
        kinds, fits = self._stock.kinds, self._stock.fits[sub_request.fits]
        tried: set[Hashable] = set()
        for device in range(first, len(kinds)):
            if not fits[device] or self._stock.is_unusable[device] or kinds[device] in tried:
                continue
            self._step()
            if self._may_take(ask, sub_request, device):
                if (
                    not sub_request.is_admin
                ):  # others may have the device too, so that equals are not alike any more
                    tried.add(kinds[device])
                yield device

    def _step(self) -> None:
        if self.steps == self._steps_max and self._steps_max:
            raise _TooManySteps
        self.steps += 1

    def _may_take(self, ask: ClaimRequest, sub_request: SubRequest, device: int) -> bool:
        if sub_request.is_admin:
            if ask.claim in self._takers[device]:
                return False
        elif not self._is_free(sub_request, device):
            return False
        for number in sub_request.rules:
            rule, seen = self._problem.rules[number], self._rules[number]
            value = self._stock.values[rule.values][device]
            if value < 0 or (value in seen if rule.is_distinct else bool(seen) and seen[0] != value):
                return False
        return True

    def _is_free(self, sub_request: SubRequest, device: int) -> bool:
        room = self._room[device]
        if self._stock.is_used[device] or (room is None and self._takers[device]):
            return False
        if not _has_room(room, self._stock.shares[sub_request.fits], device):
            return False
        if self._users[device]:
            return True  # it took its counters already
        return all(self._left[counter] >= amount for counter, amount in self._stock.consumes[device])

    def _take(self, ask: ClaimRequest, sub_request: SubRequest, device: int) -> None:
        self._takers[device].append(ask.claim)
        self._counts[ask.claim] += 1
        if not sub_request.is_admin:
            self._use(sub_request, device, 1)
        for number in sub_request.rules:
            self._rules[number].append(self._stock.values[self._problem.rules[number].values][device])

    def _give_back(self, sub_request: SubRequest, device: int) -> None:
        self._takers[device].pop()
        if not sub_request.is_admin:
            self._use(sub_request, device, -1)
        for number in sub_request.rules:
            self._rules[number].pop()

    def _use(self, sub_request: SubRequest, device: int, count: int) -> None:
        """One user more (1) or less (-1) has the device, or a share of it."""
        before, self._users[device] = self._users[device], self._users[device] + count
        if not (before and self._users[device]):
            for counter, amount in self._stock.consumes[device]:
                self._left[counter] -= count * amount
        room = self._room[device]
        if room is not None:
            for place, amount in enumerate(self._stock.shares[sub_request.fits][device]):
                room[place] -= count * amount


def _has_room(room: Sequence[int] | None, shares: Sequence[Sequence[int]], device: int) -> bool:
    """Return whether one more share fits; devices that are not shared have no capacity to run out of."""
    return room is None or all(left >= amount for left, amount in zip(room, shares[device], strict=True))
