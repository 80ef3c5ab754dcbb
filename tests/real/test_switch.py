"""From the Go project to ours and back, on a real API server, by exactly the commands that we tell."""

import json
import re
from collections.abc import Iterator

import pytest

from tests.install.test_predecessor import GO
from tests.real.cluster import SYSTEM, RealCluster, Shape

COMMAND = re.compile(r"kubectl ((?:-n \S+ )?delete \S+ \S+)")
CRD = "reservations.scheduling.koordinator.sh"


@pytest.fixture(scope="module")
def bare(_servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """An API server and its controllers; nothing of ours."""
    flags = ("--allow-privileged=true",)  # as every cluster whose node agents are privileged
    shape = Shape(nodes=0, manager=False, scheduler=False, installed=False, apiserver_flags=flags)
    with RealCluster.open(tmp_path_factory.mktemp("switch"), shape) as running:
        running.kubectl("create", "namespace", SYSTEM)
        yield running


def bring_go(cluster: RealCluster) -> None:
    cluster.kubectl("create", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": GO}))


def test_installing_over_the_go_project_takes_the_commands_that_it_tells_and_there_is_a_way_back(
    bare: RealCluster,
) -> None:
    bring_go(bare)

    refused = bare.koordinator("install", "--apply")
    assert refused.returncode == 1
    told = COMMAND.findall(" ".join((refused.stdout + refused.stderr).split()))
    assert len(told) == 5 and bare.run("get", "crd", CRD).returncode == 1, "nothing was applied"

    for command in told:
        bare.kubectl(*command.rstrip(".").split())
    # As kubectl's client side brings it: it owns all defaults, and warns that it adopts the namespace.
    for part in ("base", "manager", "koordlet"):
        brought = bare.run("apply", "-k", f"deploy/{part}")
        assert brought.returncode == 0, brought.stderr
    taken_over = bare.koordinator("install", "--apply")
    assert taken_over.returncode == 0, taken_over.stdout + taken_over.stderr
    (agent,) = bare.get("daemonsets", "-n", SYSTEM)["items"]
    assert agent["metadata"]["labels"]["app.kubernetes.io/part-of"] == "koordinator"
    left = [each["metadata"]["name"] for each in bare.get("deployments", "-n", SYSTEM)["items"]]
    assert "koord-descheduler" in left, "what has no successor stays"
    examined = bare.koordinator("doctor", "--check", "predecessor")
    assert "koord-descheduler" in examined.stdout and "error" not in examined.stdout.lower()

    # Back: ours go, what objects of users need stays.
    gone = bare.koordinator("uninstall", "--apply")
    assert gone.returncode == 0, gone.stdout + gone.stderr
    bare.kubectl("-n", SYSTEM, "delete", "deployment", "koord-descheduler")
    bring_go(bare)
    bare.kubectl("get", "crd", CRD)
