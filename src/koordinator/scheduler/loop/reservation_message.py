"""Why reservations did not take a pod, told apart from why nodes did not. Pure. Source: behaviour/scheduler E2."""

import re

_HEAD = re.compile(r"0/\d+ nodes are available: ")
_ITEM = re.compile(r"(\d+) Reservation\(s\) (.*)")
_TOTAL = "matched owner total"
_EXACT = "exactly matches the requested reservation name"
_OF_NODE = "for node reason that"


def event_message(message: str) -> str | None:
    """`0/8 reservations are available: 2 Reservation(s) Insufficient cpu.` from the message of a pod that found
    no node; None when it says nothing about reservations."""
    head = _HEAD.match(message)
    if head is None:
        return None
    total: str | None = None
    exact: list[str] = []
    others: list[str] = []
    of_nodes: list[str] = []
    for part in message[head.end() :].replace(". ", ",").split(","):
        text = part.strip(" .")
        item = _ITEM.fullmatch(text)
        if item is None:
            continue
        count, reason = item.groups()
        if reason == _TOTAL:
            total = count
        else:
            group = exact if reason == _EXACT else of_nodes if reason.startswith(_OF_NODE) else others
            group.append(text)
    if total is None:
        return None
    return f"0/{total} reservations are available: {', '.join([*exact, *others, *of_nodes])}."
