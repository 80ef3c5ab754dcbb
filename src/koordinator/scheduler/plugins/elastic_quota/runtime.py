"""How much of its parent each quota may use now: fair shares of one resource among siblings.

Pure integer arithmetic: cpu in milli-cores, everything else in whole units. Products reach 128 bits, so
nothing here may become a float, apart from `scaled_min`, whose rounding is upstream's. Source: spec 06,
sections 6.1 and 7.
"""

from collections.abc import Iterable

import msgspec


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What one child asks of its parent, in one resource."""

    name: str
    weight: int
    """Its part of what is left over, relative to its hungry siblings."""
    request: int
    """What its pods ask for, at most its max."""
    min: int = 0
    """Its minimum, scaled down already where the parent is short."""
    guarantee: int = 0
    """What it has been given before and keeps."""
    lends: bool = True
    """Whether siblings may use what it leaves of its minimum."""

    @property
    def floor(self) -> int:
        """What it gets before anything is shared out."""
        return max(self.min, self.guarantee)

    @property
    def is_hungry(self) -> bool:
        """Whether it asks for more than it is sure of."""
        return self.request > self.floor


def fair_shares(total: int, claims: Iterable[Claim]) -> dict[str, int]:
    """The runtime of each child: floors first, then what is left by weight, nobody beyond its request.

    The floors are given out even when they exceed `total`. What nobody wants stays with the parent. The
    result does not depend on the order of `claims`.
    """
    by_name = sorted(claims, key=lambda claim: claim.name)
    shares = {claim.name: _first_share(claim) for claim in by_name}
    hungry = [claim for claim in by_name if claim.is_hungry]
    left = total - sum(shares.values())
    while left > 0 and hungry:
        parts = split(left, [claim.weight for claim in hungry])
        if parts is None:
            break
        left = 0
        still_hungry = []
        for claim, part in zip(hungry, parts, strict=True):
            share = shares[claim.name] + part
            left += max(share - claim.request, 0)
            shares[claim.name] = min(share, claim.request)
            if share < claim.request:
                still_hungry.append(claim)
        hungry = still_hungry
    return shares


def _first_share(claim: Claim) -> int:
    if claim.lends and not claim.is_hungry:
        return claim.request
    return claim.floor


def split(amount: int, weights: list[int]) -> list[int] | None:
    """`amount` in whole parts by weight, the largest remainders rounded up, the first of equal ones.

    The parts add up to `amount`; weights of zero or less get nothing. None when the weights add up to zero
    or less: there is nobody to give it to.
    """
    whole = sum(weights)
    if whole <= 0:
        return None
    parts = [0] * len(weights)
    remainders: list[tuple[int, int]] = []
    for index, weight in enumerate(weights):
        if weight > 0:
            parts[index], remainder = divmod(weight * amount, whole)
            remainders.append((-remainder, index))
    residual = amount - sum(parts)
    for _, index in sorted(remainders)[: max(residual, 0)]:
        parts[index] += 1
    return parts


def scaled_min(minimum: int, available: int, sum_of_mins: int) -> int:
    """A child's part of `available` in proportion to its minimum, for a parent that cannot give all minima.

    In binary floating point, cut off, as upstream computes it: other results would differ by units.
    """
    if available <= 0 or sum_of_mins <= 0:
        return 0
    return int(float(available) * float(minimum) / float(sum_of_mins))
