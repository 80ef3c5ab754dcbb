"""What sources cite of the behaviour pages is there: page and section."""

import re

from tests.docs.citations import citations
from tests.docs.pages import ROOT, anchors

SOURCES = sorted(
    path
    for top in ("src", "tests", "benchmarks")
    for path in (ROOT / top).rglob("*")
    if path.suffix in (".py", ".json") and "docs" not in path.relative_to(ROOT).parts
)
CASES = {path.stem for path in (ROOT / "tests" / "vectors" / "cases").glob("*.json")}


def test_cited_sections_exist() -> None:
    cited = [each for file in SOURCES for each in citations(file)]

    assert len(cited) > 500
    there = {page: anchors(page) if page.exists() else None for page in {each.page for each in cited}}
    missing = [
        str(each)
        for each in cited
        if (known := there[each.page]) is None or (each.anchor and each.anchor not in known)
    ]
    assert not missing


def test_there_is_one_form_of_citation() -> None:
    old = re.compile(r"\bspec \d\d|§")
    assert [path for path in SOURCES if path.suffix == ".py" and old.search(path.read_text())] == []


def test_cases_that_behaviour_pages_name_exist() -> None:
    for page in sorted((ROOT / "docs" / "behaviour").glob("*.md")):
        for told in re.findall(r"\bCases: (`[^`]+`(?:,\s`[^`]+`)*)", page.read_text()):
            for name in re.findall(r"`([^`]+)`", told):
                pattern = re.compile(re.escape(name).replace(r"\*", ".*"))
                assert any(pattern.fullmatch(case) for case in CASES), f"{page.name}: {name}"
