"""What the scheduler serves over HTTP, and the command line in front of it."""

from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer
from click.testing import CliRunner

from koordinator.api.core import Node
from koordinator.api.decode import from_builtins
from koordinator.cli import scheduler as command
from koordinator.clock import FixedClock
from koordinator.scheduler import http
from koordinator.scheduler.config import ConfigError
from koordinator.scheduler.scheduler import Scheduler
from tests.scheduler.fake_cluster import FakeCluster
from tests.scheduler.world import node

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
UNSET = {"leader_elect": None, "leader_elect_lease_duration": None}


async def test_health_metrics_and_nodes_are_served() -> None:
    scheduler = Scheduler(FakeCluster(FixedClock()))
    scheduler.table.set_node(from_builtins(node("n-1", cpu="2"), Node))
    leading = [False]

    async with TestClient(TestServer(http.application(scheduler, lambda: leading[0]))) as client:
        assert (await client.get("/healthz")).status == 200
        assert (await client.get("/readyz")).status == 503
        assert "scheduler_pending_pods" in await (await client.get("/metrics")).text()
        assert "profiles" in (await (await client.get("/configz")).json())["kubescheduler.config.k8s.io"]

        refused = await client.get("/apis/v1/nodes/n-1")
        assert (refused.status, await refused.json()) == (503, {"message": "the instance is not leader"})
        leading[0] = True
        assert (await (await client.get("/apis/v1/nodes/n-1")).json())["allocatable"]["cpu"] == "2"
        missing = await client.get("/apis/v1/nodes/n-2")
        assert (missing.status, await missing.json()) == (404, {"message": "cannot find node n-2"})


def test_flags_of_leader_election_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(HEAD + "leaderElection: {leaderElect: true, leaseDuration: 20s, resourceName: mine}\n")

    flags = {**UNSET, "leader_elect": False, "leader_elect_resource_name": "theirs"}
    election = command.read_config(file, flags).leader_election

    assert (election.leader_elect, election.resource_name, election.lease_duration) == (
        False,
        "theirs",
        "20s",
    )


def test_the_shipped_configuration_runs_without_a_file() -> None:
    assert [each.scheduler_name for each in command.read_config(None, UNSET).profiles] == ["koord-scheduler"]


@pytest.mark.parametrize(
    "text", ["leaderElection: {leaseDuration: 5s}", "leaderElection: {retryPeriod: soon}"]
)
def test_durations_that_cannot_work_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(HEAD + text)
    with pytest.raises(ConfigError, match="leaderElection"):
        command.read_config(file, UNSET)


def test_the_command_says_what_is_wrong_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(HEAD + "profiles: [{plugin: 1}]")
    result = CliRunner().invoke(command.main, ["--config", str(file)])
    assert result.exit_code == 1
    assert 'profiles[0].plugin: unknown field "plugin"' in result.output
