"""Random expressions, most of which have types that fit, over all functions that Kubernetes offers."""

import random
import re
from pathlib import Path
from typing import Any

import yaml

VALUES: dict[str, Any] = {
    "self": {
        "text": "web-1",
        "long": "The quick brown fox, v1.2.3 and 10.0.0.1",
        "count": 3,
        "zero": 0,
        "share": 1.5,
        "whole": 2.0,
        "on": True,
        "nothing": None,
        "words": ["b", "a", "b", "c"],
        "numbers": [3, 1, 2],
        "mixed": [1, "a", None, 2.5],
        "empty": [],
        "labels": {"app": "web"},
        "parts": [{"name": "a", "size": 1}, {"name": "b", "size": 2}],
        "in-side": {"a b": 1},
    },
    "limit": 5,
}
"""Variables of every expression."""
_TABLES: dict[str, dict[str, list[str]]] = yaml.safe_load(
    Path(__file__).with_name("expressions.yaml").read_text()
)
_TEXTS, _LEAVES, _CALLS = (_TABLES[part] for part in ("texts", "leaves", "calls"))
_HOLE = re.compile(r"<(\w+)>|@(\w+)(?::(\w+))?@|([$%])(\w+)")
_KINDS = [*(["bool"] * 4), *_LEAVES, "strings", "ints", "string", "semver", "ip", "cidr", "url", "optional"]


def expression_of(seed: int) -> str:
    """The expression of a number."""
    writer = _Writer(random.Random(seed))
    return writer.write(writer.random.choice(_KINDS), writer.random.choice([1, 1, 2, 2, 3]))


class _Writer:
    def __init__(self, chances: random.Random) -> None:
        self.random = chances
        self._names: list[tuple[str, str]] = []
        """Variables that may be used, with their types."""
        self._count = 0

    def write(self, kind: str, depth: int) -> str:
        """An expression of a type; now and then of another."""
        if self.random.random() < 0.02:
            kind = self.random.choice([*_LEAVES])
        templates = _CALLS.get(kind, ())
        if depth > 0 and templates and self.random.random() > 0.1:
            return self._filled(self.random.choice(templates), depth - 1)
        known = [name for name, of in self._names if of in (kind, "dyn")]
        if known and self.random.random() < 0.6:
            return self.random.choice(known)
        return self._filled(self.random.choice(_LEAVES[kind]), 0)

    def _filled(self, template: str, depth: int) -> str:
        before, named = len(self._names), dict[str, str]()

        def fill(hole: re.Match[str]) -> str:
            if hole[1]:
                return self.write(hole[1], depth)
            if hole[4]:
                text = self.random.choice(_TEXTS[hole[5]])
                escaped = text.replace('"', '\\"')
                return f'"{escaped}"' if hole[4] == "$" else text
            if hole[2] not in named:
                self._count += 1
                named[hole[2]] = f"{hole[2]}{self._count}"
                self._names.append((named[hole[2]], hole[3]))
            return named[hole[2]]

        text = _HOLE.sub(fill, template)
        del self._names[before:]
        return text
