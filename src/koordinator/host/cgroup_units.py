"""CPU amounts as the kernel counts them. Source: behaviour/koordlet-act 3.4 and 3.5."""

SHARES_MIN, SHARES_MAX = 2, 262_144
WEIGHT_MIN, WEIGHT_MAX = 1, 10_000
SHARES_PER_CORE = 1024
CFS_PERIOD_US = 100_000
CFS_QUOTA_US_MIN = 1_000
"""The kernel refuses a smaller quota."""
UNLIMITED = -1
"""A quota or limit that is not there."""
COUNT_MAX = 2**63 - 1
"""What the word `max` stands for."""
UNLIMITED_BYTES_MIN = 0x7FFF_FFFF_FFFF_F000
"""Cgroup v1 shows no limit as the largest whole number of pages."""

_SHARES_SPAN = SHARES_MAX - SHARES_MIN
_WEIGHT_SPAN = WEIGHT_MAX - WEIGHT_MIN


def weight_of_shares(shares: int) -> int:
    """`cpu.weight` for v1 shares, which must be within `SHARES_MIN` and `SHARES_MAX`."""
    assert SHARES_MIN <= shares <= SHARES_MAX, shares
    return WEIGHT_MIN + (shares - SHARES_MIN) * _WEIGHT_SPAN // _SHARES_SPAN


def shares_of_weight(weight: int) -> int:
    """V1 shares for a `cpu.weight`, which must be within `WEIGHT_MIN` and `WEIGHT_MAX`."""
    assert WEIGHT_MIN <= weight <= WEIGHT_MAX, weight
    return (weight - WEIGHT_MIN) * _SHARES_SPAN // _WEIGHT_SPAN + SHARES_MIN


def shares_of_milli(milli: int) -> int:
    """Shares of a CPU request in milli-cores, always valid."""
    return min(max(milli * SHARES_PER_CORE // 1000, SHARES_MIN), SHARES_MAX) if milli > 0 else SHARES_MIN


def quota_of_milli(milli: int) -> int:
    """CFS quota in µs per `CFS_PERIOD_US` of a CPU limit in milli-cores; `UNLIMITED` without limit."""
    return max(milli * CFS_PERIOD_US // 1000, CFS_QUOTA_US_MIN) if milli > 0 else UNLIMITED
