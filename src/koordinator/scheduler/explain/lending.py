"""Who borrows from whom among siblings. Pure integer arithmetic, one resource at a time.

What a quota may use beyond its minimum is borrowed: from what no sibling's minimum covers, then from siblings
that leave part of theirs.
"""

from collections.abc import Sequence

import msgspec

from koordinator.scheduler.plugins.elastic_quota.runtime import split


class Stand(msgspec.Struct, frozen=True, kw_only=True):
    """A child of a quota, in any one unit. `request` is None where it is not known."""

    name: str
    min: int
    runtime: int
    request: int | None = None

    @property
    def borrowed(self) -> int:
        """What it may use beyond its minimum."""
        return max(self.runtime - self.min, 0)

    @property
    def left(self) -> int:
        """What it leaves of its minimum because it does not ask for it."""
        kept = self.runtime if self.request is None else max(self.runtime, self.request)
        return max(self.min - kept, 0)


class Loan(msgspec.Struct, frozen=True, kw_only=True):
    """What one quota borrows or lends. `lenders` says how much of `borrowed` comes from whom; the rest was
    nobody's minimum."""

    borrowed: int = 0
    lent: int = 0
    lenders: dict[str, int] = {}


NO_LOAN = Loan()


def loans(total: int | None, children: Sequence[Stand]) -> dict[str, Loan]:
    """Loans by name; quotas that neither borrow nor lend are left out.

    `total` is what the parent has; None when that is not known: then as much as can be is taken for lent. Of
    several lenders and borrowers each takes part by the size of its loan.
    """
    children = sorted(children, key=lambda child: child.name)
    borrowers = [child for child in children if child.borrowed]
    lenders = [child for child in children if child.left]
    borrowed = sum(child.borrowed for child in borrowers)
    left = sum(child.left for child in lenders)
    spare = max(borrowed - left, 0)
    if total is not None:
        spare = min(max(spare, total - sum(child.min for child in children), 0), borrowed)
    parts = split(borrowed - spare, [child.borrowed for child in borrowers]) or [0] * len(borrowers)
    lent = dict.fromkeys((child.name for child in lenders), 0)
    found: dict[str, Loan] = {}
    for child, part in zip(borrowers, parts, strict=True):
        shares = split(part, [each.left for each in lenders]) or []
        by = {each.name: share for each, share in zip(lenders, shares, strict=False) if share}
        for name, share in by.items():
            lent[name] += share
        found[child.name] = Loan(borrowed=child.borrowed, lenders=by)
    found.update((name, Loan(lent=amount)) for name, amount in lent.items() if amount)
    return found
