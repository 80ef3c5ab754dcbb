"""What the reference answers about reservations, worked out from what we answer."""

from typing import Any

from koordinator.api import duration
from koordinator.clock import parse_rfc3339
from tests.vectors.deviations.question import Ask, Case


def not_looked_at_in_the_last_moment(case: Case, ask: Ask) -> Any:
    """Nobody looks again at a reservation of which exactly no time is left, and so it never ends."""
    if case["op"] != "sync":
        return None
    ours, end_s = ask(case), _end(case["reservation"])
    is_over = ours["phase"] in ("Failed", "Succeeded")
    return None if is_over or parse_rfc3339(case["now"]) != end_s else {**ours, "requeueAfterSeconds": 0}


def collected_for_known_ends_only(case: Case, ask: Ask) -> Any:
    """What failed for a reason of somebody else's stays for ever."""
    if case["op"] != "gc" or case["reservation"]["status"].get("phase") != "Failed":
        return None
    conditions = case["reservation"]["status"].get("conditions") or ()
    is_known = any(each["type"] == "Ready" and each["reason"] == "Expired" for each in conditions)
    return None if is_known else {"delete": False}


def _end(reservation: Case) -> float | None:
    """When a reservation is looked at for the last time: its end, else so long after it was made as it may live."""
    spec = reservation["spec"]
    if spec.get("expires"):
        return parse_rfc3339(spec["expires"])
    ttl_s = duration.parse(spec["ttl"]) if spec.get("ttl") else 0.0
    return parse_rfc3339(reservation["metadata"]["creationTimestamp"]) + ttl_s if ttl_s else None
