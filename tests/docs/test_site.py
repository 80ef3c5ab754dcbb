"""The docs site: every page is in its navigation, and pages written for CommonMark come out as they are meant."""

import importlib.util
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from benchmarks import _record

from tests.docs.pages import ROOT

ALSO = {"CONTRIBUTING.md", "CHANGELOG.md", "benchmark-runs.md"}


def navigated(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for each in nav.values() if isinstance(nav, dict) else nav:
            yield from navigated(each)


def test_every_page_is_in_the_navigation_once() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    found = list(navigated(config["nav"]))

    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert set(found) == pages | ALSO
    assert len(found) == len(set(found))


def test_decisions_are_listed() -> None:
    listed = (ROOT / "docs" / "decisions" / "README.md").read_text()
    for path in (ROOT / "docs" / "decisions").glob("0*.md"):
        assert f"({path.name})" in listed, path.name


def test_kept_runs_of_benchmarks_can_be_read_and_name_their_machine() -> None:
    for name, runs in _record.history().items():
        assert importlib.util.find_spec(f"benchmarks.{name}") is not None, name
        for run in runs:
            assert re.fullmatch(r"[0-9a-f]{7,}\+?", run.commit), run.commit
            assert run.machine.cpu and run.machine.cores and run.lines


def test_a_run_is_kept_with_what_it_printed(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_record, "HISTORY", tmp_path)
    path = _record.record("store", lambda: print("1,000 pods: 3 µs"))
    _record.record("store", lambda: print("1,000 pods: 4 µs"))

    assert path.read_text().count("\n") == 2
    assert [run.lines for run in _record.history()["store"]] == [["1,000 pods: 3 µs"], ["1,000 pods: 4 µs"]]
    assert "3 µs" in capfd.readouterr().out


SOURCE = """\
Steps:
1. first
   * inner
     more
   ```
   * code
   ```
2. second
Text.
| a | b |
| --- | --- |

* last
"""


def test_lists_and_tables_below_text_get_the_empty_line_and_depth_that_python_markdown_wants() -> None:
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "tools" / "docs_site.py")
    assert spec is not None and spec.loader is not None
    site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(site)

    lines = list(site._as_python_markdown(SOURCE, lambda line: line))
    assert lines[:4] == ["Steps:", "", "1. first", "    * inner"]
    assert "        more" in lines and "    * code" in lines
    assert lines[lines.index("| a | b |") - 1] == ""
