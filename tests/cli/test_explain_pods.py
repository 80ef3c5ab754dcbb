"""`koordinator explain pods` and `explain deployment/NAME` as a user runs them, on a dump."""

from typing import Any

import yaml
from click.testing import CliRunner, Result

from koordinator.cli import main as cli
from tests.cli.test_explain import dumped, node, pod

Json = dict[str, Any]


def labelled(name: str, app: str, **parts: Any) -> Json:
    body = pod(name, scheduler="default-scheduler", **parts)
    body["metadata"]["labels"] = {"app": app}
    return body


DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "shop", "namespace": "default"},
    "spec": {"selector": {"matchLabels": {"app": "shop"}}},
}
CLUSTER = dumped(
    node("n-0", cpu="4"),
    node("n-1", cpu="2"),
    DEPLOYMENT,
    *(labelled(f"shop-{number}", "shop", cpu="6") for number in range(3)),
    labelled("web", "web", cpu="1"),
    labelled("there", "web", cpu="1", nodeName="n-1"),
)


def explained(*args: str) -> Result:
    return CliRunner().invoke(cli.main, ["explain", *args, "--dump", "-"], input=CLUSTER)


def test_pods_with_the_same_answer_share_a_line() -> None:
    result = explained("pods", "--pending")

    assert result.exit_code == 3
    lines = [line.split() for line in result.output.splitlines()]
    assert ["3", "Unschedulable", "is", "pending:"] in [line[:4] for line in lines]
    assert ["1", "Schedulable", "would"] in [line[:3] for line in lines]
    assert "there" not in result.output.split()
    assert "lower the cpu request from 6 to at most 4" in result.output


def test_a_deployment_is_reported_by_its_pods() -> None:
    result = explained("deployment/shop")

    assert result.exit_code == 3
    assert "default/shop-0, default/shop-1, default/shop-2" in result.output
    assert "default/web" not in result.output


def test_pods_that_are_placed_are_no_failure_and_tools_get_whole_answers() -> None:
    result = explained("pods", "-l", "app=web", "-o", "yaml")

    assert result.exit_code == 0
    assert {each["pod"]: each["verdict"] for each in yaml.safe_load(result.output)} == {
        "default/there": "Bound",
        "default/web": "Schedulable",
    }


def test_a_limit_says_how_many_were_left_out() -> None:
    assert (
        "2 more pods were not asked about: --limit 3"
        in explained("deployment", "shop", "--limit", "1").output
    )


def test_a_workload_that_is_not_there_is_reported_with_those_that_are() -> None:
    result = explained("deployment/shap")

    assert result.exit_code == 1
    assert "no deployment is called default/shap; there are default/shop" in result.output


def test_lines_in_a_pipe_end_where_their_text_ends() -> None:
    assert [line for line in explained("pods").output.splitlines() if line != line.rstrip()] == []
