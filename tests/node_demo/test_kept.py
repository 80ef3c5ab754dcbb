"""Figures that are kept between parts of a measurement."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from koordinator.cli import main as cli
from koordinator.node_demo import kept, plan, results, show
from koordinator.node_demo.kept import KeptFigures
from koordinator.node_demo.plan import DemoError, DemoMode, DemoScenario, Hog
from tests.node_demo.measurements import WINDOW_S, measured
from tests.node_demo.test_page import shown_results

PLANNED = plan.runs([DemoScenario(40, Hog.CPU)], repeats=1, modes=(DemoMode.ALONE, DemoMode.UNMANAGED))


def written(path: Path) -> KeptFigures:
    shown = shown_results([measured()])
    rows = results.summarise(shown.measured)
    kept.write(path, show.circumstances(shown), rows, shown.measured)
    found = kept.read(path)
    assert found is not None
    return found


def test_what_a_file_holds_is_not_measured_again(tmp_path: Path) -> None:
    left = kept.left(PLANNED, written(tmp_path / "figures.json"), WINDOW_S)

    assert [run.mode for run in left] == [DemoMode.UNMANAGED]


def test_without_a_file_everything_is_left(tmp_path: Path) -> None:
    assert kept.left(PLANNED, kept.read(tmp_path / "missing.json"), WINDOW_S) == PLANNED


def test_parts_are_compared_with_each_other(tmp_path: Path) -> None:
    now = shown_results([measured(DemoMode.UNMANAGED, p99_ms=30.0)])

    shown, _ = kept.join(written(tmp_path / "figures.json"), now, show.circumstances(now))

    assert results.summarise(shown.measured)[-1].p99_to_alone == 10.0


def test_figures_of_another_kernel_are_not_mixed_in(tmp_path: Path) -> None:
    now = msgspec.structs.replace(shown_results([measured()]), kernel="7.0")

    with pytest.raises(DemoError, match=r"another kernel: 6\.18, and now 7\.0"):
        kept.check(written(tmp_path / "figures.json"), now)


def test_a_file_of_another_machine_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    written(path)

    result = CliRunner().invoke(
        cli.main, ["demo-node", "--resume", str(path), "--report", f"{tmp_path}/r.html"]
    )

    assert "the kept figures are of another" in str(result.exception or "") + result.output


@pytest.mark.parametrize(
    ("planned", "seconds", "words"),
    [
        pytest.param(PLANNED, 60.0, "go on with --seconds 5", id="runs of another length"),
        pytest.param(PLANNED[:1], WINDOW_S, "measured already", id="nothing is left"),
    ],
)
def test_what_cannot_be_gone_on_with_is_said(
    planned: list[plan.DemoRun], seconds: float, words: str, tmp_path: Path
) -> None:
    with pytest.raises(DemoError, match=words):
        kept.left(planned, written(tmp_path / "figures.json"), seconds)


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text("[]")

    with pytest.raises(DemoError, match="does not hold the figures"):
        kept.read(path)
