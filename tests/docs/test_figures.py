"""Figures in README are those that a run has written: `make demo` keeps them in docs/figures/demo.json."""

import json

from koordinator.simulate import summary
from koordinator.simulate.scenario import Scenario
from koordinator.simulate.summary import compare
from tests.docs.pages import ROOT

FIGURES = ROOT / "docs" / "figures" / "demo.json"


def readme_table() -> list[list[str]]:
    """The cells of the table of `make demo`, its head first."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("| 100 nodes"))
    table = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table


def test_the_table_in_the_readme_is_what_the_run_wrote() -> None:
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    head, _, *rows = readme_table()

    assert head[0] == figures["title"]
    assert len(rows) >= 5
    assert [row for row in rows if row not in figures["rows"]] == [], "run: make demo, then mend README"


def test_the_run_that_wrote_them_is_the_one_that_make_demo_starts() -> None:
    written = json.loads(FIGURES.read_text(encoding="utf-8"))["scenario"]
    small = summary.figures(compare(Scenario(nodes=2, hours=0.5)))

    assert small["scenario"].keys() == written.keys()
    differing = {name for name in written if written[name] != small["scenario"][name]}
    assert differing == {"nodes", "hours"}
    assert (written["nodes"], written["hours"]) == (100, 24.0)
    assert small["title"].startswith("2 nodes, ") and len(small["rows"][0]) == 4
