"""The main job, small: co-location fills the machines and services do not notice; figures follow the switches."""

import functools
import json
from pathlib import Path

import msgspec
import plotly.offline
import pytest
from click.testing import CliRunner

from koordinator.cli.demo import demo
from koordinator.local.nodes.contention import Protection
from koordinator.simulate import summary
from koordinator.simulate.report import page, plots
from koordinator.simulate.run import RunResult, simulate
from koordinator.simulate.scenario import Scenario
from koordinator.simulate.summary import Comparison, Summary, compare

SMALL = Scenario(nodes=10, hours=3, seed=7)


@functools.cache
def small() -> Comparison:
    return compare(SMALL)


def both() -> tuple[Summary, Summary]:
    return summary.summarise(small().before), summary.summarise(small().after)


def test_cpu_use_grows_and_services_stay_fast() -> None:
    before, after = both()
    assert after.cpu_use_ratio > before.cpu_use_ratio * 1.4
    assert after.latency_p99_ms <= before.latency_p99_ms * 1.10
    assert after.latency_p99_ms <= after.latency_p99_alone_ms * 1.10
    assert after.batch_core_hours > before.batch_core_hours * 1.4
    assert after.queueing_p95_s < before.queueing_p95_s


def test_services_are_the_same_in_both_runs() -> None:
    before, after = both()
    assert small().before.services_unplaced == small().after.services_unplaced == 0
    assert small().before.series.services == small().after.series.services
    assert before.services_use_ratio == after.services_use_ratio
    assert before.jobs_arrived == after.jobs_arrived > 0


def test_batch_never_uses_more_than_the_nodes_have_left() -> None:
    series, cores = small().after.series, small().after.cores
    for services, batch, system in zip(series.services, series.batch, series.system, strict=True):
        assert services + batch + system <= cores + 1e-3


def test_batch_runs_on_lent_cpus_only_with_colocation() -> None:
    assert max(small().before.series.batch_allocatable) == 0
    assert max(small().before.series.batch_requested) == 0
    assert max(small().after.series.batch_requested) > 0
    assert min(small().after.series.batch_allocatable) > 0.3 * small().after.cores


def test_the_same_seed_gives_the_same_figures_to_the_last_digit() -> None:
    again = compare(SMALL)
    assert json.dumps(summary.document(again)) == json.dumps(summary.document(small()))


def test_another_seed_gives_other_figures() -> None:
    other = simulate(Scenario(nodes=10, hours=1, seed=8), colocation=True)
    assert other.series.services[:3] != small().after.series.services[:3]


def test_without_colocation_nothing_is_gained() -> None:
    off = compare(Scenario(nodes=6, hours=1, seed=7, colocation=False))
    assert summary.summarise(off.before) == summary.summarise(off.after)


def run(**options: object) -> RunResult:
    return simulate(Scenario(nodes=8, hours=2, seed=3, **options), colocation=True)  # type: ignore[arg-type]


def busiest_share(result: RunResult) -> float:
    """Share of node-time above 60 % CPU use."""
    return sum(result.utilisation[12:]) / sum(result.utilisation)


def test_load_aware_scheduling_keeps_nodes_apart_from_overload() -> None:
    aware, blind = run(), run(load_aware=False)
    assert aware.utilisation != blind.utilisation
    assert busiest_share(aware) <= busiest_share(blind)


def jumping_trace(tmp_path: Path) -> Path:
    """Services sleep while batch moves in, then want 80 % of their nodes for half an hour."""
    values = ["5"] * 18 + ["80"] * 6 + ["5"] * 6
    path = tmp_path / "jumping.csv"
    path.write_text(f"m,{','.join(values)}\n")
    return path


def test_services_suffer_where_nobody_protects_them(tmp_path: Path) -> None:
    trace = jumping_trace(tmp_path)
    guarded = run(trace=trace).means
    bare = run(trace=trace, protection=Protection.NONE).means
    # The shipped policy leaves batch 2 CPUs even then.
    assert guarded["p99_ms"] <= guarded["p99_alone_ms"] * 1.10
    assert bare["p99_ms"] > guarded["p99_ms"] * 1.05


def test_services_follow_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "flat.csv"
    path.write_text("a,20,20,40,40\n")
    result = simulate(Scenario(nodes=4, hours=1, trace=path), colocation=False)
    ratios = {round(s / result.cores, 1) for s in result.series.services}
    assert ratios == {0.2, 0.4}


def test_the_report_stands_alone_and_shows_the_figures() -> None:
    text = page.render(small())
    before, after = both()
    assert f"{after.cpu_use_ratio * 100:.1f} %" in text
    assert f"{before.cpu_use_ratio * 100:.1f} %" in text
    library = plotly.offline.get_plotlyjs()
    assert library in text
    own = text.replace(library, "")
    assert "src=" not in own and "href=" not in own  # no network needed
    assert "$" not in own  # every placeholder was filled in
    pictures = own.split('<div class="figure">')[1:]
    assert len(pictures) == text.count('class="plotly-graph-div"') == 12
    assert all('<button type="button" class="csv">CSV</button>' in each for each in pictures)
    assert "@media (prefers-color-scheme: dark)" in own and 'dark.addEventListener("change", recolour)' in own


def test_every_row_of_the_table_says_its_unit_unless_it_counts() -> None:
    units = {"%", "ms", "Cores", "core-hours", "Minutes", "h", "min", "s"}
    bare = {
        row.name
        for row in summary.rows(*both())
        if not units & set(f"{row.name} {row.after}".replace(",", " ").split())
    }

    assert bare == {"Batch jobs finished", "Evictions"}


def test_the_command_prints_a_table_and_writes_both_files(tmp_path: Path) -> None:
    report, figures = tmp_path / "r.html", tmp_path / "r.json"
    arguments = ["--nodes", "4", "--hours", "0.5", "--quiet", "--report", str(report), "--json", str(figures)]
    result = CliRunner().invoke(demo, arguments)
    assert result.exit_code == 0, result.output
    assert "CPU used, mean of the cluster" in result.output
    assert report.read_text().startswith("<!DOCTYPE html>")
    found = json.loads(figures.read_text())
    assert found["scenario"]["nodes"] == 4
    assert found["after"]["cpuUseRatio"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trace", "missing.csv"], "missing.csv: No such file or directory"),
        (["--trace", "bad.csv"], "bad.csv, line 2, column 3: 'x' is not a number"),
        (["--nodes", "0"], "0 is not in the range"),
        (["--hours", "nan"], "nan"),
        (["--report", "nowhere/r.html"], "nowhere does not exist"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.csv").write_text("a,1,2\nb,1,x\n")
    result = CliRunner().invoke(demo, arguments)
    assert result.exit_code == 2, result.output
    assert message in result.output


def test_help_teaches() -> None:
    result = CliRunner().invoke(demo, ["--help"])
    assert result.exit_code == 0
    for word in ("--trace", "--no-load-aware", "name,v0,v1", "koordinator demo --nodes 20"):
        assert word in result.output


def test_pictures_over_the_day_have_a_tick_every_six_hours_and_their_legend_below() -> None:
    before, after = small().before, small().after
    over_time = [
        plots.use_over_time(after),
        plots.cpu_use(before, after),
        plots.queue(before, after),
        plots.latency(before, after),
        plots.memory(before, after),
        plots.jobs(before, after),
        plots.nodes_over_time(after),
        plots.held_back(after),
    ]

    assert {figure.layout.xaxis.dtick for figure in over_time} == {6}
    assert {(figure.layout.legend.yref, figure.layout.legend.y) for figure in over_time} == {("container", 0)}


def test_latencies_that_span_much_have_a_logarithmic_axis() -> None:
    calm = small().after
    series = msgspec.structs.replace(
        calm.series, p99_ms=[calm.series.p50_ms[0] * 100] * len(calm.series.hour)
    )
    spiky = msgspec.structs.replace(calm, series=series)

    assert plots.latency(calm, calm).layout.yaxis.type != "log"
    assert plots.latency(calm, spiky).layout.yaxis.type == "log"


def test_every_node_is_seen_over_the_whole_day() -> None:
    run = small().after

    assert len(set(run.shown_nodes)) == 10
    assert {len(values) for values in run.series.node_percent} == {10}
    assert len(run.series.node_percent) == len(run.series.hour)
    assert max(max(values) for values in run.series.node_percent) > 40


def test_batch_never_gets_more_than_it_wants_and_jobs_end_after_they_arrive() -> None:
    series = small().after.series

    assert all(got <= wanted + 1e-3 for got, wanted in zip(series.batch, series.batch_wanted, strict=True))
    assert all(done <= come for done, come in zip(series.jobs_finished, series.jobs_arrived, strict=True))
    assert series.jobs_finished == sorted(series.jobs_finished)
    assert max(series.memory_gib) <= small().after.memory_gib
