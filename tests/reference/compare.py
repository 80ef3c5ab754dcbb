"""Holds our answers to random questions against the original's own."""

import importlib
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tests.go_programs import Ask
from tests.reference.mutate import Mutator
from tests.reference.original import Refused, answer_of
from tests.vectors import runner
from tests.vectors.runner import Adapters, Area

Json = dict[str, Any]

KEPT = Path(__file__).parents[1] / "vectors" / "cases"


class Questions(msgspec.Struct, frozen=True):
    """How a group's questions are drawn, by area: what its `questions.py` says, where it has one."""

    mend: dict[str, Callable[[Json], Json | None]] = {}
    """MEND: makes a question that was drawn one that can be asked; None where it cannot be."""
    draw: dict[str, Callable[[random.Random], Json]] = {}
    """DRAW: draws every other question from nothing."""
    outdated: dict[str, dict[str, str]] = {}
    """OUTDATED: kept cases that this release answers otherwise, by name, and why."""

    @classmethod
    def of(cls, group: str) -> "Questions":
        try:
            module = importlib.import_module(f"tests.reference.{group}.questions")
        except ModuleNotFoundError:
            return cls()
        return cls(*(getattr(module, name, {}) for name in ("MEND", "DRAW", "OUTDATED")))


class AreaComparison:
    """One area and both who answer."""

    def __init__(self, ask: Ask, area: Area, adapters: Adapters, questions: Questions) -> None:
        self._ask, self._area, self._adapters, self._questions = ask, area, adapters, questions
        self._mutator = Mutator([case["input"] for case in area.cases])
        self.counts: Counter[str] = Counter()
        """same, differs, no question, refused (by the original), or the name of a documented deviation."""

    def question(self, seed: int) -> Json | None:
        draw = self._questions.draw.get(self._area.name)
        if draw is not None and seed % 2:
            return draw(random.Random(seed))
        given = self._mutator.draw(seed)
        mend = self._questions.mend.get(self._area.name)
        return given if mend is None else mend(given)

    def difference(self, seed: int) -> str:
        """Where our answer to a random question differs; empty where it does not."""
        given = self.question(seed)
        if given is None:
            self.counts["no question"] += 1
            return ""
        try:
            answer = answer_of(self._ask, self._area.name, given)
        except Refused:
            self.counts["refused"] += 1
            return ""
        case = {"name": str(seed), "input": given, "expected": answer}
        outcome = runner.run_case(self._area.name, case, self._adapters)
        if outcome.deviation is not None:
            self.counts[outcome.deviation.name] += 1
        else:
            self.counts["differs" if outcome.problem else "same"] += 1
        return outcome.problem

    def unlike_kept(self) -> list[str]:
        """Names of kept cases whose expected answer is not what the original answers here."""
        same = runner.compared_by(self._area.name, self._adapters)
        outdated = self._questions.outdated.get(self._area.name, {})
        return [
            case["name"]
            for case in self._area.cases
            if same(case["expected"], self._original(case)) == (case["name"] in outdated)
        ]

    def _original(self, case: dict[str, Any]) -> Any:
        try:
            return answer_of(self._ask, self._area.name, case["input"])
        except Refused as refused:
            return {"refused": str(refused)}


def kept_areas() -> dict[str, Area]:
    return {area.name: area for area in runner.find_areas(KEPT)}
