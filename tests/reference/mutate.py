"""Makes new cases of an area out of known ones: values move between places that had the same name, numbers change a
little, members of lists come, go and change places."""

import copy
import random
import re
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
Place = tuple[str, ...]
"""Names on the way to a value; members of lists have no number."""

_NUMBER = re.compile(r"^(-?\d+)([A-Za-z%]*)$")
FIXED = ("op", "kind", "fixtures")
"""They say what is asked: only cases that agree in them exchange values."""


class Mutator:
    """Draws questions like those of an area's known cases. Equal seeds give equal questions."""

    def __init__(self, inputs: list[Json]) -> None:
        self._inputs = inputs
        self._seen: dict[Place, list[Any]] = {}
        for one in inputs:
            for place, value in _walk(one, (_question(one),)):
                self._seen.setdefault(place, []).append(value)

    def draw(self, seed: int) -> Json:
        """A question."""
        chance = random.Random(seed)
        base = copy.deepcopy(chance.choice(self._inputs))
        for _ in range(chance.choice((1, 1, 2, 3, 5))):
            places = list(_spots(base, (_question(base),)))
            if places:
                self._change(chance, *chance.choice(places))
        return base

    def _change(self, chance: random.Random, place: Place, holder: Any, key: Any) -> None:
        value = holder[key]
        if isinstance(value, list) and chance.random() < 0.7:
            self._change_list(chance, place, value)
        elif isinstance(value, dict) and chance.random() < 0.7:
            self._change_members(chance, place, value)
        elif isinstance(holder, dict) and chance.random() < 0.1 and self._may_lack(place):
            del holder[key]
        elif chance.random() < 0.5 and (changed := _near(chance, value)) is not None:
            holder[key] = changed
        else:
            holder[key] = copy.deepcopy(chance.choice(self._seen[place]))

    def _change_list(self, chance: random.Random, place: Place, value: list[Any]) -> None:
        members = self._seen.get((*place, "*"), [])
        how = chance.choice(("drop", "add", "add", "again", "swap"))
        if how == "drop" and value:
            del value[chance.randrange(len(value))]
        elif how == "add" and members:
            value.insert(chance.randint(0, len(value)), copy.deepcopy(chance.choice(members)))
        elif how == "again" and value:
            value.append(copy.deepcopy(chance.choice(value)))
        elif how == "swap":
            chance.shuffle(value)

    def _change_members(self, chance: random.Random, place: Place, value: Json) -> None:
        other = chance.choice([each for each in self._seen[place] if isinstance(each, dict)])
        names = sorted(name for name in other if name not in FIXED)
        if names:
            name = chance.choice(names)
            value[name] = copy.deepcopy(other[name])

    def _may_lack(self, place: Place) -> bool:
        """Whether a known case has what stands around this place without this member."""
        return any(isinstance(around, dict) and place[-1] not in around for around in self._seen[place[:-1]])


def _question(given: Json) -> str:
    return "/".join(str(given[name]) for name in FIXED[:2] if name in given)


def _walk(value: Any, place: Place) -> Iterator[tuple[Place, Any]]:
    yield place, value
    if isinstance(value, dict):
        for name, member in value.items():
            yield from _walk(member, (*place, name))
    elif isinstance(value, list):
        for member in value:
            yield from _walk(member, (*place, "*"))


def _spots(value: Any, place: Place) -> Iterator[tuple[Place, Any, Any]]:
    """Where something can be changed: (place, what holds it, key)."""
    if isinstance(value, dict):
        for name in value:
            if name not in FIXED:
                yield (*place, name), value, name
                yield from _spots(value[name], (*place, name))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield (*place, "*"), value, index
            yield from _spots(member, (*place, "*"))


def _near(chance: random.Random, value: Any) -> Any:
    """A value that is a little different; None for what has no neighbours."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return chance.choice((value + 1, value - 1, value * 2, value // 2, 0, value + chance.randint(-5, 5)))
    if isinstance(value, float):
        return chance.choice((value * 2, value / 2, 0.0, value * (0.9 + 0.2 * chance.random())))
    if isinstance(value, str) and (found := _NUMBER.match(value)):
        return f"{_near(chance, int(found[1]))}{found[2]}"
    return None
