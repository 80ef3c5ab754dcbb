"""A plan of moves is held against the cluster as it is when somebody wants to carry it out."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from koordinator.cli import main as cli
from koordinator.descheduler import configuration
from koordinator.descheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.config.default_plugins import read_config
from koordinator.simulate import descheduling as plans
from koordinator.simulate import dump as dumps
from koordinator.simulate.descheduling import PlanReport
from tests.cli.test_simulate_descheduling import Dumped


def skewed() -> Dumped:
    """Two nodes that change two pods, and a hot one that gives one away."""
    made = Dumped()
    for name in ("hot", "cold"):
        made.node(name)
    made.workload("web", "hot", 3, (1500, 512))
    made.workload("batch", "hot", 3, (500, 512))
    made.workload("rest", "cold", 1, (100, 512))
    return made


def checked(made: Dumped, moves: list[plans.PlanMove], folder: Path) -> list[str]:
    (folder / "now.json").write_text(json.dumps(made.objects()))
    rules = configuration.read(folder / "descheduler.yaml", installed_plugins())
    return asyncio.run(plans.check(dumps.read((str(folder / "now.json"),)), read_config(None), rules, moves))


def item(made: Dumped, kind: str, name: str) -> dict[str, Any]:
    return next(one for one in made.items if (one["kind"], one["metadata"]["name"]) == (kind, name))


def gone(made: Dumped) -> None:
    made.items.remove(item(made, "Pod", "web-0"))


def another(made: Dumped) -> None:
    item(made, "Pod", "web-0")["metadata"]["uid"] = "other"


def elsewhere(made: Dumped) -> None:
    item(made, "Pod", "web-0")["spec"]["nodeName"] = "cold"


def silent(made: Dumped) -> None:
    del made.usage["cold"]


def cordoned(made: Dumped) -> None:
    item(made, "Node", "cold")["spec"]["unschedulable"] = True


def full(made: Dumped) -> None:
    made.workload("lazy", "cold", 1, (100, 100), asks="8500m")


def hot_itself(made: Dumped) -> None:
    made.workload("busy", "cold", 1, (4000, 100))


def cool(made: Dumped) -> None:
    for own in made.usage["hot"]:
        own["podUsage"]["resources"]["cpu"] = "100m"


def budgeted(made: Dumped) -> None:
    made.budget("web", 0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(lambda _: None, "", id="as it was"),
        pytest.param(gone, "it is gone", id="the pod ended"),
        pytest.param(another, "another pod has its name now", id="the pod was made anew"),
        pytest.param(elsewhere, "it runs on cold now, not on hot", id="the pod moved"),
        pytest.param(silent, "cold takes no part", id="the target's agent is silent"),
        pytest.param(cordoned, "cold is no target", id="the target is cordoned"),
        pytest.param(full, "cold does not take it: 0/2 nodes are available", id="no room by requests"),
        pytest.param(hot_itself, "cold would be above its limits", id="no room by usage"),
        pytest.param(cool, "its node is not hot any more", id="the node cooled down"),
        pytest.param(budgeted, "disruption budget default/web lets no more pods go", id="a budget"),
    ],
)
def test_a_move_is_made_only_while_all_that_it_was_planned_by_holds(
    change: Callable[[Dumped], None], reason: str, tmp_path: Path
) -> None:
    made = skewed()
    [move] = msgspec.convert(made.report(tmp_path), PlanReport).moves

    change(made)
    [found] = checked(made, [move], tmp_path)

    assert (move.pod, move.target) == ("default/web-0", "cold")
    assert found.startswith(reason) if reason else not found


def test_a_file_that_is_no_plan_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("moves: [{pod: 3}]")

    done = CliRunner().invoke(cli.main, ["migrate", "--plan", str(file)])

    assert done.exit_code == 1
    assert "plan.yaml: it is no plan of `koordinator simulate descheduling`" in done.output
