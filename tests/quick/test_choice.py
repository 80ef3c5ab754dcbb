"""`make quick` runs the tests that matter for a change, nearest first, and names those that it has no time for."""

import subprocess
from pathlib import Path

import pytest

from tests.quick.choice import Choice, changed, changed_lines, choose
from tests.quick.imports import Imports

FILES = {
    "src/koordinator/api/quantity.py": "",
    "src/koordinator/scheduler/fit.py": "from koordinator.api import quantity\n",
    "src/koordinator/scheduler/plugins/zone/plugin.py": "from koordinator.scheduler import (\n    fit,\n)\n",
    "tests/api/test_quantity.py": "from koordinator.api.quantity import parse\n",
    "tests/api/test_pods.py": "from tests.api.pods import pod\n",
    "tests/api/pods.py": "from koordinator.api import quantity\n",
    "tests/scheduler/test_fit.py": "from koordinator.scheduler.fit import fits\n",
    "tests/scheduler/zone/test_zones.py": "",
    "tests/e2e/test_up.py": "from koordinator.api import quantity\n",
    "tests/vectors/adapters/amounts.py": "from koordinator.api import quantity\n",
    "tests/docs/test_pages.py": "",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def chosen(project: Path, *paths: str, budget_s: float = 40.0, **seconds: float) -> Choice:
    took = {f"tests/{name.replace('__', '/')}.py": value for name, value in seconds.items()}
    return choose(paths, Imports(project), {"amounts": ["api-quantity"]}.__getitem__, took, budget_s)


def test_tests_that_bear_the_modules_name_come_first_then_those_that_import_it(project: Path) -> None:
    choice = chosen(project, "src/koordinator/api/quantity.py")

    assert choice.files[:2] == ("tests/api/test_quantity.py", "tests/api/test_pods.py")
    assert "tests/scheduler/test_fit.py" in choice.files
    assert choice.areas == ("api-quantity",)


def test_suites_that_start_clusters_are_not_chosen(project: Path) -> None:
    assert "tests/e2e/test_up.py" not in chosen(project, "src/koordinator/api/quantity.py").files


def test_a_plugin_finds_its_tests_by_its_folder(project: Path) -> None:
    assert chosen(project, "src/koordinator/scheduler/plugins/zone/plugin.py").files == (
        "tests/scheduler/zone/test_zones.py",
    )


def test_a_changed_helper_of_tests_brings_the_tests_that_use_it(project: Path) -> None:
    assert chosen(project, "tests/api/pods.py").files == ("tests/api/test_pods.py",)


def test_a_changed_test_runs_whatever_it_takes(project: Path) -> None:
    choice = chosen(project, "tests/api/test_quantity.py", budget_s=1.0, api__test_quantity=50.0)
    assert choice == Choice(("tests/api/test_quantity.py",), (), ())


def test_what_there_is_no_time_for_is_named_and_the_quickest_of_the_equally_near_run(project: Path) -> None:
    path = "src/koordinator/api/quantity.py"
    choice = chosen(
        project, path, budget_s=5.0, api__test_quantity=3.0, api__test_pods=4.0, scheduler__test_fit=1.0
    )

    assert choice.files == ("tests/api/test_quantity.py", "tests/scheduler/test_fit.py")
    assert choice.left_out == ("tests/api/test_pods.py",)


def test_tests_that_ran_a_changed_line_come_before_those_that_only_import_the_module(project: Path) -> None:
    path, far = "src/koordinator/api/quantity.py", "tests/scheduler/test_fit.py"
    plain = choose([path], Imports(project), lambda adapter: [], {}, 40.0)
    recorded = choose([path], Imports(project), lambda adapter: [], {}, 40.0, lambda path: [far])

    assert plain.files.index(far) == len(plain.files) - 1
    assert recorded.files[:2] == ("tests/api/test_quantity.py", far)


def test_pages_and_cases_are_looked_at_by_their_own_tests(project: Path) -> None:
    assert "tests/docs/test_pages.py" in chosen(project, "docs/install.md").files
    assert chosen(project, "tests/vectors/cases/numa-score.json").areas == ("numa-score",)


def test_what_changed_is_what_was_committed_is_uncommitted_or_untracked(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q", "-b", "main")
    git("config", "user.email", "a@b")
    git("config", "user.name", "a")
    for name in ("kept", "committed", "uncommitted", "deleted"):
        (tmp_path / name).write_text("before")
    git("add", "-A")
    git("commit", "-qm", "begin")
    git("checkout", "-qb", "work")
    (tmp_path / "committed").write_text("after")
    git("commit", "-qam", "change")
    (tmp_path / "uncommitted").write_text("after")
    (tmp_path / "untracked").write_text("new")
    (tmp_path / "deleted").unlink()

    (tmp_path / "uncommitted").write_text("before\nafter\n\n")
    assert changed_lines("main", tmp_path)["uncommitted"] == [1, 2, 3]
    assert changed("main", tmp_path) == ["committed", "uncommitted", "untracked"]
    with pytest.raises(subprocess.CalledProcessError):
        changed("nowhere", tmp_path)
