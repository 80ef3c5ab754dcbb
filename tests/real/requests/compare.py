"""Where the answers of both servers to one case differ, after what must differ was put aside."""

import datetime
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.real.requests.sides import Answer, Json, Sides

_DRAWN = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "<uid>"),
    (re.compile(r"10\.96\.\d+\.\d+"), "<address>"),
    (re.compile(r"\b(web[-.]|a{58})[bcdfghjklmnpqrstvwxz2456789]{5}\b"), r"\1<random>"),
    (re.compile(r"\(\d+\)"), "(<version>)"),
    (re.compile(r":3\d{4}/"), ":<port>/"),
    (re.compile(r"Key: (/registry)?/"), "Key: /"),
)
"""What each server draws or counts for itself, and what stands for it."""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_QUOTED = re.compile(r"\{.*\}")
_AGE = re.compile(r"\d+s")
_LATELY_S = 3600
_NUMBERS = itertools.count(1)
"""Each comparison has a namespace of its own."""


def differences(sides: Sides, steps: list[Json]) -> list[str]:
    """Lines that say which answer differs in what; the first are the most telling ones."""
    name = f"case{next(_NUMBERS)}"
    theirs, ours = sides.theirs.answers(steps, name), sides.ours.answers(steps, name)
    found = []
    for number, (step, their, our) in enumerate(zip(steps, theirs, ours, strict=True)):
        where = f"{number} {step['method']} {step['path'].rpartition('/apis/')[2]}"
        found += [f"{where}: {line.replace(name, '{case}')}" for line in between(their, our)]
        if found and step["method"] != "GET":
            break  # what follows differs because of it
    return found


def between(theirs: Answer, ours: Answer) -> Iterator[str]:
    if theirs.code == 500 and 400 <= ours.code < 500:
        return  # a mistake in a request is the client's: there we are better
    if theirs.code == ours.code == 400:
        return  # what cannot be read is told in the words of Go's decoders
    if theirs.code != ours.code:
        messages = " / ".join(_words(each) for each in (theirs, ours))
        yield f"code: {theirs.code} / {ours.code}: {messages}"
        return
    if sorted(_plain(theirs.warnings)) != sorted(_plain(ours.warnings)):
        yield f"warnings: {theirs.warnings} / {ours.warnings}"
    their, our = _plain(theirs.body), _plain(ours.body)
    if theirs.code == 422 and "causes" in their.get("details", {}) and "causes" in our.get("details", {}):
        yield from _causes(their, our)
    else:
        yield from _parts("", their, our)


def _causes(theirs: Json, ours: Json) -> Iterator[str]:
    """What is wrong with an object, in any order; the message says the same in one line."""
    told = [Counter(map(_cause, body["details"].pop("causes"))) for body in (theirs, ours)]
    for them, only in (("theirs", told[0].keys() - told[1]), ("ours", told[1] - told[0])):
        for field, reason, message in sorted(only):
            yield f"only {them}: {field}: {reason}: {message}"
    del theirs["message"], ours["message"]
    yield from _parts("", theirs, ours)


def _words(answer: Answer) -> str:
    body = answer.body
    return str(body.get("message", "")) if isinstance(body, dict) else str(body)[:200]


def _parts(path: str, theirs: Any, ours: Any) -> Iterator[str]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in sorted({*theirs, *ours}):
            their, our = theirs.get(key, "<none>"), ours.get(key, "<none>")
            if our == "<none>" and _is_zero(their):
                continue  # Go writes out some zero values
            yield from _parts(f"{path}.{key}", their, our)
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for index, (their, our) in enumerate(zip(theirs, ours, strict=True)):
            yield from _parts(f"{path}[{index}]", their, our)
    elif theirs is None and ours == []:
        return
    elif theirs != ours or type(theirs) is not type(ours):
        yield f"{path}: {theirs!r} / {ours!r}"


_PHASE_TIME = "lastPhaseTransitionTime"
_LEFT_OUT = {
    ("columnDefinitions", "description"),
    ("metadata", "remainingItemCount"),
    ("status", _PHASE_TIME),
}
"""Parent and name of what is not compared: words for people, and how many objects of other cases there are."""
_ADDED = ("kubernetes.io/pvc-protection", "kubernetes.io/pv-protection")


def _is_added(item: Any) -> bool:
    """What kube-apiserver adds to new nodes and volumes for controllers that we do without."""
    return item in _ADDED or (isinstance(item, dict) and item.get("key") == "node.kubernetes.io/not-ready")


def _cause(cause: Json) -> tuple[str, str, str]:
    """Field, reason and message, without quoted objects, which Go and JSON write otherwise."""
    field, reason, message = cause["field"], cause["reason"], cause["message"]
    if field == "patch":
        return field, reason, ""
    head, found, values = _QUOTED.sub("{}", message.partition("\n")[0]).partition("supported values: ")
    return field, reason, f"{head}{found}{sorted(values.split(', '))}"


def _is_zero(value: Any) -> bool:
    return all(map(_is_zero, value.values())) if isinstance(value, dict) else not value


def _plain(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _plain(item, name) for name, item in value.items() if (key, name) not in _LEFT_OUT}
    if isinstance(value, list):
        items = [_plain(item, key) for item in value if not _is_added(item)]
        return sorted(items, key=str) if key == "managedFields" else items
    if key == "nodePort" or (key == "healthCheckNodePort" and value):
        return "<port>"
    if not isinstance(value, str):
        return value
    if key in ("resourceVersion", "continue") and value not in ("", "0"):
        return f"<{key}>"
    for pattern, shown in _DRAWN:
        value = pattern.sub(shown, value)
    value = _TIME.sub(_lately, value)
    return _AGE.sub("<age>", value) if key == "cells" else value


def _lately(found: re.Match[str]) -> str:
    try:
        then = datetime.datetime.fromisoformat(found[0])
    except ValueError:
        return found[0]
    is_near = abs((datetime.datetime.now(datetime.UTC) - then).total_seconds()) < _LATELY_S
    return "<now>" if is_near else found[0]
