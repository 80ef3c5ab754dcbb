"""A pass that is written down is repeated with the same faults, whatever was edited around them."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.mutation import footprint
from tests.mutation.footprint import LATER, TESTS, unrecorded
from tests.mutation.mutants import Mutant
from tests.mutation.passes import Place, found_again, place_of, places

SOURCE = """
class Queue:
    def add(self, entry):
        if entry in self.waiting:
            return False
        self.waiting.append(entry)
        return True

def is_full(queue, most=3):
    return queue.size >= most or queue.held >= most
"""


def written(folder: Path, source: str) -> list[Place]:
    (folder / "queue.py").write_text(source)
    return list(places("queue.py", source))


def line_of(place: Place, folder: Path) -> int | str:
    mutant = found_again(place, folder)
    return mutant.line if isinstance(mutant, Mutant) else mutant


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("", "", [4, 5, 7, 9]),
        ("\nclass", "\n\nLIMIT = 2\n\nclass", [7, 8, 10, 12]),
        (
            "        self.waiting.append",
            "        if not entry:\n            return False\n        self.waiting.append",
            [4, 5, 9, 11],
        ),
    ],
    ids=["as it was", "lines above", "an equal place behind it"],
)
def test_a_mutant_is_found_where_its_line_has_gone(
    tmp_path: Path, old: str, new: str, lines: Sequence[int]
) -> None:
    before = written(tmp_path, SOURCE)[:4]

    written(tmp_path, SOURCE.replace(old, new, 1))

    assert [line_of(place, tmp_path) for place in before] == lines


def test_equal_places_of_a_function_are_told_apart(tmp_path: Path) -> None:
    [first, second] = [
        place
        for place in written(tmp_path, SOURCE.replace("size", "held"))
        if place.before == "queue.held >= most"
    ]

    assert (first.nth, second.nth) == (0, 1)
    assert all(place_of(found_again(place, tmp_path), tmp_path) == place for place in (first, second))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("entry in self.waiting", "entry in self.entries", "the function reads otherwise now"),
        ("def add", "def push", "the function is gone"),
    ],
)
def test_what_is_not_there_any_more_says_why(tmp_path: Path, old: str, new: str, why: str) -> None:
    place = written(tmp_path, SOURCE)[0]

    written(tmp_path, SOURCE.replace(old, new))

    assert found_again(place, tmp_path) == why
    (tmp_path / "queue.py").unlink()
    assert found_again(place, tmp_path) == "the module is gone"


def recorded(part: Path, texts: Mapping[str, str]) -> None:
    part.mkdir(exist_ok=True)
    (part / TESTS).write_bytes(
        msgspec.json.encode({name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()})
    )


def test_files_of_tests_that_came_or_changed_are_recorded_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footprint, "ROOT", tmp_path)
    for name in ("same", "changed", "since", "new"):
        (tmp_path / f"test_{name}.py").write_text(name)
    recorded(tmp_path, {"test_same.py": "same", "test_changed.py": "before", "test_since.py": "before"})
    recorded(tmp_path / f"{LATER}2", {"test_since.py": "between"})
    recorded(tmp_path / f"{LATER}10", {"test_since.py": "since"})

    assert unrecorded(tmp_path, ["."]) == ["test_changed.py", "test_new.py"]
