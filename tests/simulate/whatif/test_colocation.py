"""`koordinator simulate colocation` on dumps, as a user runs it."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from koordinator.cli import main as cli
from tests.simulate.whatif.world import WhatIfWorld, day_csv, shop

Json = dict[str, Any]


def run(*words: object) -> Result:
    return CliRunner().invoke(cli.main, ["simulate", "colocation", *map(str, words)])


def answered(*words: object) -> Json:
    result = run(*words, "--hours", 4, "-o", "json")
    assert result.exit_code == 0, result.output
    found: Json = json.loads(result.stdout)
    return found


def test_a_day_of_an_idle_cluster_is_filled_by_batch(tmp_path: Path) -> None:
    dump, day = shop().dump(tmp_path / "dump.json"), day_csv(tmp_path / "day.csv", 4)

    found = answered("--dump", dump, "--history", day, "--price-per-core-hour", "0.02")

    [installed] = found["strategies"]
    figures = installed["figures"]
    assert found["hours"] == 4 and found["servicePods"] == 12 and found["workloads"] == 2
    # 64 cores: 40 % are never lent, 20 % less 0.2 for the system are services' use, half a core per node is reserved.
    assert figures["lentCores"] == round(0.6 * 64 - (0.2 * 64 - 4 * 0.2) - 4 * 0.5, 1)
    assert figures["cpuUseBefore"] < 0.25 < 0.45 < figures["cpuUse"] < 0.65
    assert figures["worth"] == round(figures["batchCoreHours"] * 0.02, 2) > 0
    assert figures["p99GrowthLow"] <= figures["p99Growth"] <= figures["p99GrowthHigh"]
    assert len(installed["series"]["hour"]) == 48


def test_strategies_stand_side_by_side_and_lend_as_they_say(tmp_path: Path) -> None:
    dump, day = shop().dump(tmp_path / "dump.json"), day_csv(tmp_path / "day.csv", 4)
    own = tmp_path / "half.yaml"
    own.write_text("colocation-config: {enable: true, cpuReclaimThresholdPercent: 50}\n")

    names = ("conservative", "installed", "aggressive", str(own))
    found = answered("--dump", dump, "--history", day, *(w for n in names for w in ("--strategy", n)))

    lent = {each["strategy"]: each["figures"]["lentCores"] for each in found["strategies"]}
    assert list(lent) == ["conservative", "installed", "aggressive", "half"]
    assert lent["conservative"] < lent["half"] < lent["installed"] < lent["aggressive"]


def test_without_history_it_says_that_this_is_a_moment(tmp_path: Path) -> None:
    result = run("--dump", shop().dump(tmp_path / "dump.json"), "--hours", 1)

    assert result.exit_code == 0, result.output
    assert "a single moment" in result.stdout
    assert "Cores lent, mean" in result.stdout


def test_equal_seeds_give_equal_answers(tmp_path: Path) -> None:
    dump = shop().dump(tmp_path / "dump.json")

    assert answered("--dump", dump, "--seed", 3) == answered("--dump", dump, "--seed", 3)


def test_the_clusters_own_configuration_is_tried_beside_the_installed_one(tmp_path: Path) -> None:
    world = shop()
    config = {"colocation-config": '{"enable": true, "cpuReclaimThresholdPercent": 30}'}
    meta = {"name": "slo-controller-config", "namespace": "koordinator-system"}
    world.items.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": config})

    found = answered("--dump", world.dump(tmp_path / "dump.json"))

    installed, current = (each["figures"]["lentCores"] for each in found["strategies"])
    assert current < installed


def test_tainted_and_cordoned_nodes_get_no_batch(tmp_path: Path) -> None:
    world = WhatIfWorld()
    world.node("free")
    world.node("cordoned", unschedulable=True)
    world.node("control", taints=[{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}])

    [only] = answered("--dump", world.dump(tmp_path / "dump.json"))["strategies"]

    assert {each["node"] for each in only["nodes"] if each["batchCoreHours"] > 0} == {"free"}


def test_a_memory_history_that_is_longer_than_that_of_cpu_is_refused(tmp_path: Path) -> None:
    cpu, memory = tmp_path / "cpu.csv", tmp_path / "memory.csv"
    cpu.write_text("shop/web-n0-0,1,2\n")
    memory.write_text("shop/web-n0-0,1e9,2e9,3e9\n")

    result = run(
        "--dump", shop().dump(tmp_path / "d.json"), "--history", cpu, "--memory-history", memory, "--hours", 1
    )

    assert result.exit_code == 1
    assert "the memory history has 3 values a line and that of CPU 2" in result.stderr


def test_a_node_that_cannot_be_read_is_named_and_left_out(tmp_path: Path) -> None:
    world = shop()
    world.node("odd", reported=False)
    world.items[-1]["status"]["capacity"]["cpu"] = "many"

    found = answered("--dump", world.dump(tmp_path / "dump.json"))

    assert found["nodes"] == 4
    (note,) = (each for each in found["notes"] if "left out" in each)
    assert "node odd" in note and "'many' is not a quantity" in note


def test_a_strategy_that_lends_nothing_is_not_to_be_enabled(tmp_path: Path) -> None:
    off = tmp_path / "off.yaml"
    off.write_text("colocation-config: {enable: false}\n")

    found = answered("--dump", shop().dump(tmp_path / "dump.json"), "--strategy", off)

    (step,) = found["firstSteps"]
    assert step.startswith("`off` lends nothing")


@pytest.mark.parametrize("option", ["--hours", "--step", "--days", "--price-per-core-hour"])
def test_what_is_no_number_is_refused(tmp_path: Path, option: str) -> None:
    result = run("--dump", shop().dump(tmp_path / "dump.json"), option, "nan")

    assert result.exit_code == 2 and f"'{option}': nan is no finite number" in result.stderr


def test_a_node_without_a_line_is_named(tmp_path: Path) -> None:
    dump, day = shop().dump(tmp_path / "dump.json"), day_csv(tmp_path / "day.csv", 3)

    result = run("--dump", dump, "--history", day)

    assert result.exit_code == 1
    assert "no line for 1 of 4 nodes (n3)" in result.stderr and "--trace" in result.stderr


def test_a_wrong_strategy_is_refused_by_key_and_reason(tmp_path: Path) -> None:
    dump = shop().dump(tmp_path / "dump.json")
    own = tmp_path / "mine.yaml"
    for text, reason in (
        ("colocation-config: {cpuReclaimThresholdPercent: -1}", "cpuReclaimThresholdPercent"),
        ("load-aware: {usageThresholds: {cpu: 101}}", "load-aware"),
        ("protection: steel", "'steel' is none of none, shares"),
        ("feature-gates: [CPUEvict]", "CPUEvict is not played"),
        ("cpu: 1", "'cpu' is none of"),
    ):
        own.write_text(text)
        result = run("--dump", dump, "--strategy", own)
        assert result.exit_code == 1 and "mine" in result.stderr and reason in result.stderr, result.stderr
    result = run("--dump", dump, "--strategy", "no-such")
    assert "neither a file nor one of installed, conservative, aggressive, closed-loop" in result.stderr


def test_the_page_says_it_in_words_and_needs_no_network(tmp_path: Path) -> None:
    world = shop()
    world.node("big", cores=64, pool="large")
    page = tmp_path / "what-if.html"

    result = run(
        "--dump", world.dump(tmp_path / "dump.json"), "--hours", 1, "--price-per-core-hour", "0.05",
        "-o", "html", "--output-file", page,
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert "these machines would use" in text and "worth" in text and "pool=large" in text
    assert "Enable lending (<code>installed</code>)" in text
    assert 'src="http' not in text and "@import" not in text


def test_the_table_goes_to_a_file_too(tmp_path: Path) -> None:
    dump, table = shop().dump(tmp_path / "dump.json"), tmp_path / "what-if.txt"

    result = run("--dump", dump, "--hours", 1, "--output-file", table)

    assert result.exit_code == 0 and result.stdout == ""
    text = table.read_text()
    assert "Without → with co-location" in text and "What to do first:" in text


def test_by_slack_batch_fills_the_node_only_while_services_do_not_feel_it(tmp_path: Path) -> None:
    dump = shop().dump(tmp_path / "dump.json")
    names = ("--strategy", "installed", "--strategy", "closed-loop")
    light = answered("--dump", dump, "--history", day_csv(tmp_path / "light.csv", 4, percent=15), *names)
    heavy = answered("--dump", dump, "--history", day_csv(tmp_path / "heavy.csv", 4, percent=42), *names)

    fixed, loop = (each["figures"] for each in light["strategies"])
    assert loop["cpuUse"] > fixed["cpuUse"] + 0.05 and loop["p99Growth"] <= fixed["p99Growth"] + 1e-3
    fixed, loop = (each["figures"] for each in heavy["strategies"])
    assert loop["p99Growth"] < fixed["p99Growth"]


def test_a_preview_is_shown_but_not_advised(tmp_path: Path) -> None:
    dump = shop().dump(tmp_path / "dump.json")

    found = answered("--dump", dump, "--strategy", "closed-loop", "--strategy", "conservative")

    assert found["advised"] == "conservative"
    assert any("closed-loop is a preview" in note for note in found["notes"])
