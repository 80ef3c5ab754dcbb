"""Finds area files and adapters, runs cases, and says what differs."""

import importlib
import json
import pkgutil
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from koordinator.api.errors import KoordinatorError
from tests.vectors import adapters
from tests.vectors.compare import Compare, exact
from tests.vectors.deviations import deviation_of
from tests.vectors.deviations.question import Deviation, Question

Adapter = Callable[[dict[str, Any]], Any]

_SHOWN_CHARS = 600


class Area(msgspec.Struct, frozen=True):
    """One area file."""

    name: str
    path: Path
    cases: list[dict[str, Any]]


class Outcome(msgspec.Struct, frozen=True):
    """What became of a case; `problem` is empty when it passed, or deviates in a documented way."""

    area: str
    case: str
    problem: str = ""
    deviation: Deviation | None = None
    answers: str = ""
    """Where it deviates, the members that differ: the reference's and ours."""


class Adapters(msgspec.Struct, frozen=True):
    """What answers the cases of each area, and how answers are compared (default: exactly)."""

    adapters: dict[str, Adapter] = {}
    compare: dict[str, Compare] = {}
    broken: dict[str, str] = {}
    """Module → why it cannot be imported."""


def find_adapters() -> Adapters:
    """All adapters below `tests.vectors.adapters`; a module that cannot be imported stops only its own areas.

    Raises: ValueError when two modules claim the same area.
    """
    found = Adapters({}, {}, {})
    for name in sorted(info.name for info in pkgutil.iter_modules(adapters.__path__)):
        try:
            module = importlib.import_module(f"{adapters.__name__}.{name}")
        except Exception:
            found.broken[name] = traceback.format_exc(limit=-1)
            continue
        for area, adapter in module.ADAPTERS.items():
            if area in found.adapters:
                raise ValueError(f"area {area} has two adapters, one in {module.__name__}")
            found.adapters[area] = adapter
        found.compare.update(getattr(module, "COMPARE", {}))
    return found


def find_areas(*folders: Path) -> list[Area]:
    """The area files below the folders, by name; JSON files without `area` and `cases` are none.

    Raises: ValueError when a file is not JSON.
    """
    areas = []
    for folder in folders:
        paths = [folder] if folder.is_file() else sorted(folder.rglob("*.json"))
        for path in paths:
            try:
                content = json.loads(path.read_text())
            except ValueError as error:
                raise ValueError(f"{path} is not JSON: {error}") from error
            if isinstance(content, dict) and "area" in content and "cases" in content:
                cases = [_with_fixtures(case, content.get("fixtures")) for case in content["cases"]]
                areas.append(Area(content["area"], path, cases))
    return sorted(areas, key=lambda area: area.name)


def _with_fixtures(case: dict[str, Any], fixtures: Any) -> dict[str, Any]:
    """The case with what its file shares among all cases, as `fixtures` of its input."""
    return case if fixtures is None else {**case, "input": {**case["input"], "fixtures": fixtures}}


def run_case(area: str, case: dict[str, Any], found: Adapters) -> Outcome:
    """Runs one case; anything that an adapter raises is a failure, except errors that are answers.

    An answer that is not the expected one is looked up in the table of deviations. Where a case says what `ours` is
    and `why` (a deviation's name), it must be that answer, for that reason.
    """
    expected, name = case["expected"], case["name"]

    def ask(given: dict[str, Any]) -> Any:
        try:
            return found.adapters[area](given)
        except KoordinatorError as error:
            return Refusal(error)

    try:
        ours = ask(case["input"])
        same = compared_by(area, found)
        if same(expected, ours) and "ours" not in case:
            return Outcome(area, name)
        deviation = deviation_of(area, Question(case["input"], expected, ours, ask, same))
    except Exception:
        return Outcome(area, name, traceback.format_exc(limit=-3))
    if "ours" in case and not same(case["ours"], ours):
        return Outcome(area, name, f"not what we documented: {difference(case['ours'], ours)}")
    if deviation is None or case.get("why", deviation.name) != deviation.name:
        return Outcome(area, name, difference(expected, ours))
    return Outcome(area, name, deviation=deviation, answers=difference(expected, ours, "reference", "ours"))


class Refusal(dict[str, Any]):
    """An adapter's own error as an answer."""

    def __init__(self, error: KoordinatorError) -> None:
        super().__init__(error=True)
        self.text = f"refused: {error}"


def compared_by(area: str, found: Adapters) -> Compare:
    """How answers of an area are compared; an adapter's own error is the answer `{"error": true}` and no other."""
    same = found.compare.get(area, exact)
    return lambda expected, actual: (
        bool(expected == actual) if isinstance(actual, Refusal) else same(expected, actual)
    )


def difference(expected: Any, actual: Any, first: str = "expected", second: str = "got") -> str:
    """The members that differ when both are objects, else both sides, shortened."""
    if isinstance(actual, Refusal):
        return actual.text
    if isinstance(expected, dict) and isinstance(actual, dict):
        names = sorted(expected.keys() | actual.keys(), key=str)
        parts = [(n, expected.get(n, "(absent)"), actual.get(n, "(absent)")) for n in names]
        lines = [f"{n}: {first} {_shown(e)}, {second} {_shown(a)}" for n, e, a in parts if not exact(e, a)]
        return "\n".join(lines)
    return f"{first} {_shown(expected)}, {second} {_shown(actual)}"


def _shown(value: Any) -> str:
    text = json.dumps(value, default=repr, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
