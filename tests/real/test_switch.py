"""From the Go project, or from kube-scheduler, to ours and back, on a real API server, by exactly what we tell."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import yaml

from koordinator.install.values import Values
from tests.docs.pages import ROOT
from tests.free_ports import free_port
from tests.install.test_predecessor import GO
from tests.real import binaries
from tests.real.cluster import SYSTEM, RealCluster, Shape
from tests.real.components import HOST
from tests.real.processes import Program

COMMAND = re.compile(r"kubectl ((?:-n \S+ )?delete \S+ \S+)")
PAGE = ROOT / "docs" / "switch-from-kube-scheduler.md"
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


STOCK = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "profiles": [{"schedulerName": "default-scheduler"}],
}
LEASE = ("lease", "kube-scheduler", "-n", "kube-system")
WAIT_S = 60.0


@pytest.fixture
def stock(_servers: None, tmp_path: Path) -> Iterator[RealCluster]:
    """A cluster whose pods wait for kube-scheduler; ours is installed, and does not run yet."""
    values = msgspec.convert({"scheduler": {"config": yaml.safe_dump(STOCK)}}, Values)
    shape = Shape(nodes=2, manager=False, scheduler=False, values=values)
    with RealCluster.open(tmp_path, shape) as running:
        yield running


def kube_scheduler(cluster: RealCluster, binary: Path) -> Program:
    """As a static pod of the control plane runs it."""
    user, config = cluster.folder / "stock.kubeconfig", cluster.folder / "stock.yaml"
    cluster.servers.write_kubeconfig(user, "system:kube-scheduler")
    config.write_text(yaml.safe_dump({**STOCK, "clientConnection": {"kubeconfig": str(user)}}))
    flags = [f"--config={config}", f"--bind-address={HOST}", f"--secure-port={free_port()}"]
    return Program("kube-scheduler", [str(binary), *flags], cluster.folder / "stock.log")


def holder(cluster: RealCluster) -> str:
    found = cluster.run("get", *LEASE, "-o", "jsonpath={.spec.holderIdentity}")
    return found.stdout.strip()


def place(cluster: RealCluster, name: str, by: Program) -> None:
    """Create a pod that names no scheduler, and wait until it has a node."""
    cluster.kubectl("run", name, "--image=web")
    by.wait(lambda: cluster.get("pod", name)["spec"].get("nodeName"), WAIT_S, f"places {name}")


def test_ours_takes_the_place_of_kube_scheduler_by_its_lease_and_gives_it_back(stock: RealCluster) -> None:
    binary = binaries.find("kube-scheduler")
    if binary is None:
        pytest.skip(binaries.why_missing(("kube-scheduler",)))
    theirs = kube_scheduler(stock, binary)
    try:
        theirs.wait(lambda: holder(stock), WAIT_S, "leads")
        place(stock, "before", theirs)
        their_name = holder(stock)

        told = re.findall(r"^ *kubectl (-n kube-system create .+)$", PAGE.read_text(), re.MULTILINE)
        assert len(told) == 2
        for command in told:
            stock.kubectl(*command.split())
        ours = stock.start_scheduler()
        assert holder(stock) == their_name, "only one of the two works at any time"

        theirs.stop()
        ours.wait(lambda: holder(stock) not in ("", their_name), WAIT_S, "leads")
        place(stock, "meanwhile", ours)
        our_name = holder(stock)

        theirs.start_again()
        assert ours.stop() == 0
        theirs.wait(lambda: holder(stock) not in ("", our_name), WAIT_S, "leads")
        place(stock, "after", theirs)
        placed = {each["metadata"]["name"] for each in stock.get("pods")["items"] if each["spec"]["nodeName"]}
        assert placed == {"before", "meanwhile", "after"}, "what ours placed stays"
        assert stock.refusals() == []
    finally:
        if theirs.process.poll() is None:
            theirs.kill()
