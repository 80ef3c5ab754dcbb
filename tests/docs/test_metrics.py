"""The tables of metrics say what components tell: each name with its type and labels, and nothing else."""

import re

from tests import exported_metrics
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "metrics.md").read_text()
_SECTION = re.compile(r"^## (.+)\n((?:(?!## ).*\n?)*)", re.MULTILINE)
_ROW = re.compile(r"^\| `(\w+)`(?: †)? \| (\w+) \| (.*?) ?\| (.+) \|$", re.MULTILINE)
_NAME = re.compile(r"`([a-zA-Z_]+)`")

SECTIONS: dict[str, str] = dict(_SECTION.findall(PAGE))
ABSENT = "Not here"


def rows(section: str) -> dict[str, tuple[str, tuple[str, ...], str]]:
    """Metric → its type, its labels, and what is different."""
    found = _ROW.findall(SECTIONS[section])
    return {name: (kind, tuple(_NAME.findall(labels)), note) for name, kind, labels, note in found}


def test_the_tables_hold_all_metrics_of_all_components_with_type_and_labels() -> None:
    exported = exported_metrics.by_component()

    assert SECTIONS.keys() == {name[0].upper() + name[1:] if " " in name else name for name in exported} | {
        ABSENT
    }
    for component, families in exported.items():
        section = next(name for name in SECTIONS if name.lower() == component)
        told = {name: (kind, labels) for name, (kind, labels, _) in rows(section).items()}
        assert told == {each.name: (each.kind, tuple(each.labels)) for each in families}, component


def test_every_metric_says_whether_it_is_as_in_the_reference() -> None:
    for section in SECTIONS.keys() - {ABSENT}:
        assert all(note.strip() for _, _, note in rows(section).values()), section


def test_what_is_said_not_to_be_here_is_not() -> None:
    exported = {each.name for families in exported_metrics.by_component().values() for each in families}
    cells = re.findall(r"^\| (.+?) \|", SECTIONS[ABSENT], re.MULTILINE)
    absent = {name for cell in cells for name in _NAME.findall(cell)}

    assert len(absent) > 10
    assert not absent & exported
