"""What the reference answers about reservations, worked out from what we answer."""

from typing import Any

from koordinator.clock import parse_rfc3339
from tests.vectors.deviations.question import Ask, Case


def not_looked_at_in_the_last_moment(case: Case, ask: Ask) -> Any:
    """Nobody looks again at a reservation of which exactly no time is left, and so it never ends."""
    if case["op"] != "sync":
        return None
    ours, ends = ask(case), _minutes_later(case["reservation"])
    is_over = ours["phase"] in ("Failed", "Succeeded")
    return None if is_over or parse_rfc3339(case["now"]) not in ends else {**ours, "requeueAfterSeconds": 0}


def collected_for_known_ends_only(case: Case, ask: Ask) -> Any:
    """What failed for a reason of somebody else's stays for ever."""
    if case["op"] != "gc" or case["reservation"]["status"].get("phase") != "Failed":
        return None
    conditions = case["reservation"]["status"].get("conditions") or ()
    is_known = any(each["type"] == "Ready" and each["reason"] == "Expired" for each in conditions)
    return None if is_known else {"delete": False}


def _minutes_later(reservation: Case) -> list[float]:
    """The end in seconds, for a ttl of whole minutes; none where there is no such ttl."""
    minutes, mark, rest = reservation["spec"].get("ttl", "").partition("m0s")
    if not mark or rest or not minutes.isdigit():
        return []
    return [parse_rfc3339(reservation["metadata"]["creationTimestamp"]) + 60.0 * int(minutes)]
