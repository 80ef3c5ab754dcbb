"""No decision is kept that only tests call."""

import json
from fnmatch import fnmatchcase
from pathlib import Path

from tests.unused.finder import unreached

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "src" / "koordinator"
WAITING: dict[str, dict[str, str]] = json.loads((HERE / "waiting.json").read_text())


def patterns() -> list[str]:
    rooms = WAITING["rooms"]
    return [f"{room}*" for room in rooms] + [
        pattern for part, each in WAITING.items() if each is not rooms and part for pattern in each
    ]


def test_nothing_is_kept_for_tests_alone_but_what_waits_for_its_caller() -> None:
    found = list(map(str, unreached(SRC)))

    listed = patterns()
    assert [name for name in found if not any(fnmatchcase(name, each) for each in listed)] == []
    stale = [each for each in listed if not any(fnmatchcase(name, each) for name in found)]
    assert stale == [], "reached or gone: take it off waiting.json"


def test_code_is_reached_by_name_from_what_runs_and_not_by_itself(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "from b import used\n__all__ = ['unused']\n"
        "def unused(): return used() + unused()\n"
        "class Kept:\n    def method(self): return helper()\n    def other(self): return 1\n"
        "def helper(): return 1\n"
        "Kept().method()\n"
    )
    (tmp_path / "b.py").write_text(
        "from c import told\ndef used(): return 1\n@command\ndef registered(): return told()\n"
    )
    (tmp_path / "c.py").write_text('NAMES = ["d:by_text"]\ndef told(): ...\ndef by_text(): ...\n')

    assert list(map(str, unreached(tmp_path))) == ["a.unused", "a.Kept.other", "b.used"]


def test_a_function_is_not_hidden_by_others_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def sums(): ...\ndef lent(): ...\ndef shared(): ...\n")
    (tmp_path / "b.py").write_text("from root.a import shared\ndef sums(): ...\nsums()\n")
    (tmp_path / "c.py").write_text(
        "from root import a\nfrom root.b import shared as known\nclass Books:\n    def sums(self): ...\n"
        "Books().sums()\na.lent()\nknown()\n"
    )

    assert list(map(str, unreached(tmp_path, "root"))) == ["a.sums"]
