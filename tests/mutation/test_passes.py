"""A pass that is written down is repeated with the same faults, whatever was edited around them."""

from collections.abc import Sequence
from pathlib import Path

import pytest

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
