"""Every way of installing, on bare servers: first, after every other one, and twice."""

import itertools
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from koordinator.install import objects
from koordinator.install.steps import LASTING_KINDS
from koordinator.install.values import Values
from tests.e2e.cluster import HELM, needs_helm, until
from tests.real.cluster import RealCluster, Shape

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = str(DEPLOY / "chart" / "koordinator")
RELEASE = "koordinator"
FORGETTING = ("delete", "secret", "-A", "-l", f"owner=helm,name={RELEASE}")
"""What docs/install.md tells who leaves Helm: the record goes, the objects stay."""
WANTED = {objects.key(body): body for body in objects.objects(Values())}
LEADERS = ("Deployment", "DaemonSet", "PodDisruptionBudget")
"""Controllers write the status of these, so their version moves; what is wanted of them is their generation."""
GONE_S = 60.0

Json = dict[str, Any]
Done = subprocess.CompletedProcess[str]


def install(cluster: RealCluster) -> Done:
    return cluster.koordinator("install", "--apply")


def kubectl_apply(cluster: RealCluster) -> Done:
    return cluster.run("apply", "-k", str(DEPLOY))


def server_side(cluster: RealCluster) -> Done:
    return cluster.run("apply", "--server-side", "-k", str(DEPLOY))


def run_helm(cluster: RealCluster, *words: str) -> Done:
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    return subprocess.run([HELM, *words], capture_output=True, text=True, timeout=120, env=environment)


def helm(cluster: RealCluster) -> Done:
    """`--take-ownership`: of what the other ways brought."""
    return run_helm(cluster, "upgrade", "--install", RELEASE, CHART, "--take-ownership")


def rendered(cluster: RealCluster) -> Done:
    """What Helm renders, applied."""
    made = run_helm(cluster, "template", RELEASE, CHART)
    assert made.returncode == 0, made.stderr
    return cluster.run("apply", "--server-side", "-f", "-", text=made.stdout)


BY_COMMAND, BY_HELM = "koordinator install --apply", "helm upgrade --install"
WAYS: dict[str, Callable[[RealCluster], Done]] = {
    BY_COMMAND: install,
    "kubectl apply -k": kubectl_apply,
    "kubectl apply --server-side -k": server_side,
}
if HELM:
    WAYS |= {BY_HELM: helm, "helm template": rendered}


@pytest.fixture(scope="module")
def bare(_servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    shape = Shape(nodes=0, manager=False, scheduler=False, installed=False)
    with RealCluster.open(tmp_path_factory.mktemp("bare"), shape) as running:
        yield running


def carry_out(cluster: RealCluster, way: str) -> None:
    done = WAYS[way](cluster)
    assert done.returncode == 0, f"{way}: {done.stdout[-2000:]}{done.stderr}"


def live(cluster: RealCluster) -> dict[str, Json]:
    """What is there of an installation."""
    kinds = sorted(
        {f"{body['kind']}.{body['apiVersion'].rpartition('/')[0]}".rstrip(".") for body in WANTED.values()}
    )
    done = cluster.run("get", ",".join(kinds), "-A", "-o", "json")
    assert done.returncode == 0, done.stderr
    found = {objects.key(body): body for body in json.loads(done.stdout)["items"]}
    return {key: found[key] for key in WANTED if key in found}


def differences(found: Any, wanted: Any, path: str = "") -> list[str]:
    """Where what is there is not what is wanted; defaults and status may come on top."""
    if isinstance(wanted, dict):
        if not isinstance(found, dict):
            return [f"{path}: {found!r}, not {wanted!r}"]
        return [
            each
            for name, value in wanted.items()
            for each in differences(found.get(name), value, f"{path}.{name}")
        ]
    if isinstance(wanted, list):
        if not isinstance(found, list) or len(found) != len(wanted):
            return [f"{path}: {found!r}, not {wanted!r}"]
        pairs = enumerate(zip(found, wanted, strict=True))
        return [each for index, (a, b) in pairs for each in differences(a, b, f"{path}[{index}]")]
    is_empty = wanted in ("", None, False, 0) and found is None
    return [] if found == wanted or is_empty else [f"{path}: {found!r}, not {wanted!r}"]


def versions(cluster: RealCluster) -> dict[str, str]:
    """Object → what changes whenever something else is wanted of it."""
    found = {}
    for key, body in live(cluster).items():
        field = "generation" if body["kind"] in LEADERS else "resourceVersion"
        found[key] = str(body["metadata"][field])
    return found


def assert_installed(cluster: RealCluster) -> None:
    found = live(cluster)
    assert found.keys() == WANTED.keys()
    told = [f"{key}{each}" for key, body in WANTED.items() for each in differences(found[key], body)]
    assert not told, told


def uninstall(cluster: RealCluster, way: str) -> None:
    if way == BY_HELM:
        gone = run_helm(cluster, "uninstall", RELEASE, "--wait", "--timeout=60s")
        assert gone.returncode == 0, gone.stderr
        assert {key.partition(" ")[0] for key in live(cluster)} == set(LASTING_KINDS)
    done = cluster.koordinator("uninstall", "--apply", "--everything")
    assert done.returncode == 0, done.stdout + done.stderr
    until(lambda: not live(cluster), GONE_S, cluster.process)


@pytest.mark.parametrize("way", WAYS)
def test_on_an_empty_cluster_it_installs_twice_and_everything_goes_again(bare: RealCluster, way: str) -> None:
    carry_out(bare, way)
    assert_installed(bare)
    before = versions(bare)

    carry_out(bare, way)

    assert versions(bare) == before, "the second time changes nothing"
    uninstall(bare, way)


def every_pair(names: list[str]) -> list[str]:
    """An order in which each name comes directly after each other one, once: a way over all edges (Hierholzer)."""
    left, stack, order = set(itertools.permutations(names, 2)), [names[0]], []
    while stack:
        following = sorted(pair for pair in left if pair[0] == stack[-1])
        if following:
            left.remove(following[0])
            stack.append(following[0][1])
        else:
            order.append(stack.pop())
    return order[::-1]


@pytest.mark.timeout(600)
def test_ways_mix_in_any_order_without_conflicts(bare: RealCluster) -> None:
    order = every_pair(list(WAYS))
    assert set(itertools.pairwise(order)) == set(itertools.permutations(WAYS, 2))

    has_release = False
    for way in order:
        if way == BY_COMMAND and has_release:
            refused = install(bare)
            assert refused.returncode == 1 and f"belongs to the Helm release {RELEASE}" in refused.stdout
            bare.kubectl(*FORGETTING)
        has_release = way == BY_HELM or (has_release and way != BY_COMMAND)
        carry_out(bare, way)
        assert_installed(bare)


@needs_helm
def test_a_release_is_upgraded_rolled_back_and_leaves_what_users_need(bare: RealCluster) -> None:
    bare.run(*FORGETTING)
    assert run_helm(bare, "upgrade", "--install", RELEASE, CHART, "--take-ownership").returncode == 0
    manager = ("deployment", "koord-manager", "-n", "koordinator-system")

    changed = run_helm(bare, "upgrade", RELEASE, CHART, "--set", "manager.replicas=3,koordlet.enabled=false")
    assert changed.returncode == 0, changed.stderr
    assert bare.get(*manager)["spec"]["replicas"] == 3
    assert bare.run("get", "daemonset", "koordlet", "-n", "koordinator-system").returncode == 1

    back = run_helm(bare, "rollback", RELEASE)
    assert back.returncode == 0, back.stderr
    assert_installed(bare)

    uninstall(bare, BY_HELM)
