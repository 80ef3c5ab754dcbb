"""Say how much each service suffers, by what its senses measured. Pure; docs/interference.md has the marks.

Each sense works alone, and what is not measured is left out, never taken as calm.
"""

from collections.abc import Mapping

from koordinator.koordlet.interference.latency import Latency
from koordinator.koordlet.suffering import SUFFERS, Sense, Suffering

MARKS: Mapping[Sense, float] = {
    Sense.RUN_QUEUE: 0.5,
    Sense.CPU_PRESSURE: 0.25,
    Sense.MEMORY_PRESSURE: 0.1,
    Sense.IO_PRESSURE: 0.2,
}
"""Share of time lost from which a service suffers: of its runnable time for RUN_QUEUE, of all time for pressure."""


def levels(
    lost: Mapping[Sense, float], latency: Latency | None, profile: Mapping[Sense, float]
) -> dict[Sense, float]:
    """Return the suffering by sense, 1 at its mark.

    `lost` are shares of time, `profile` what CPI and memory bandwidth are against their outlier marks.
    """
    found = {sense: share / MARKS[sense] for sense, share in lost.items()}
    found.update(profile)
    if latency is not None:
        found[Sense.LATENCY] = latency.now_s / latency.target_s
    return found


def suffering(
    uid: str,
    felt: Mapping[Sense, float],
    latency: Latency | None,
    before: Suffering | None,
    now_s: float,
) -> Suffering:
    """Return the record of this second; `before` is that of the last one."""
    suffers = max(felt.values(), default=0.0) >= SUFFERS
    since_s = (before.since_s if before is not None else None) or now_s
    return Suffering(
        uid=uid,
        senses=felt,
        slack=latency.slack if latency is not None else None,
        since_s=since_s if suffers else None,
        at_s=now_s,
        age_s=max(now_s - latency.at_s, 0.0) if latency is not None else 0.0,
    )
