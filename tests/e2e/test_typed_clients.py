"""Operators written with typed clients, on a whole cluster: a controller-runtime program in Go (which speaks protobuf),
and the official Python client."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes
import pytest
from kubernetes import client, watch

from tests.e2e.cluster import Cluster, started, until

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "controller_runtime"
STEPS = [
    "elected",
    "lease",
    "create-or-update",
    "watched",
    "status",
    "scale",
    "server-side-apply",
    "node",
    "pods",
    "evict",
    "errors",
    "token",
    "delete",
]
BUILD_S_MAX = 840  # from nothing, on two busy cores


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = started(tmp_path_factory.mktemp("clients"), "--nodes", "2")
    yield running
    if running.process.poll() is None:
        running.stop()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Go program, built here; without a toolchain or its modules the test is skipped."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no Go toolchain on the PATH: the controller-runtime program cannot be built")
    path = tmp_path_factory.mktemp("go") / "typed"
    built = subprocess.run(
        [go, "build", "-o", str(path), "."],
        cwd=PROGRAM,
        capture_output=True,
        text=True,
        timeout=BUILD_S_MAX,
        env={**os.environ, "GOFLAGS": "-mod=mod -buildvcs=false"},
    )
    if built.returncode != 0 and ("dial tcp" in built.stderr or "proxy" in built.stderr):
        pytest.skip(f"Go modules cannot be fetched: {built.stderr.strip().splitlines()[-1]}")
    assert built.returncode == 0, built.stderr
    return path


def test_a_controller_runtime_program_does_all_that_it_would_on_kubernetes(
    cluster: Cluster, program: Path
) -> None:
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}

    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=90, env=environment)

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == STEPS


def test_the_python_client_creates_updates_and_watches_typed_objects(cluster: Cluster) -> None:
    kubernetes.config.load_kube_config(str(cluster.kubeconfig))
    apps, core = client.AppsV1Api(), client.CoreV1Api()
    labels = {"app": "python"}
    template = client.V1PodTemplateSpec(
        metadata=client.V1ObjectMeta(labels=labels),
        spec=client.V1PodSpec(containers=[client.V1Container(name="main", image="web:1")]),
    )
    spec = client.V1DeploymentSpec(
        replicas=1, selector=client.V1LabelSelector(match_labels=labels), template=template
    )
    created = apps.create_namespaced_deployment(
        "default", client.V1Deployment(metadata=client.V1ObjectMeta(name="python"), spec=spec)
    )
    watcher = watch.Watch()
    seen: list[tuple[str, str]] = []
    for event in watcher.stream(
        core.list_namespaced_pod, "default", label_selector="app=python", timeout_seconds=60
    ):
        seen.append((event["type"], event["object"].status.phase))
        if event["object"].spec.node_name:
            watcher.stop()

    def scaled(found: client.V1Deployment) -> client.V1Deployment:
        found.spec.replicas = 2
        return found

    updated = conflicts_aside(apps, created.metadata.name, scaled)

    assert seen[0][0] == "ADDED"
    assert updated.spec.replicas == 2
    assert updated.metadata.generation > created.metadata.generation
    apps.delete_namespaced_deployment("python", "default")


def conflicts_aside(apps: client.AppsV1Api, name: str, change: Any) -> client.V1Deployment:
    """The object after an update, tried again where somebody else was faster."""
    while True:
        try:
            return apps.replace_namespaced_deployment(
                name, "default", change(apps.read_namespaced_deployment(name, "default"))
            )
        except client.ApiException as error:
            if error.status != 409:
                raise


ELECTION = """
from kubernetes import config
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock

config.load_kube_config()
leaderelection.LeaderElection(electionconfig.Config(
    LeaseLock("python-leader", "default", "python"), lease_duration=15, renew_deadline=10, retry_period=1,
    onstarted_leading=lambda: print("leading", flush=True), onstopped_leading=None,
)).run()
"""


def test_the_python_client_is_elected_and_renews_its_lease(cluster: Cluster) -> None:
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    candidate = subprocess.Popen(
        [sys.executable, "-c", ELECTION],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert candidate.stdout is not None
        assert candidate.stdout.readline() == "leading\n"
        first = cluster.get("lease", "python-leader")["spec"]
        until(
            lambda: cluster.get("lease", "python-leader")["spec"]["renewTime"] != first["renewTime"],
            30,
            candidate,
        )
    finally:
        candidate.kill()
        candidate.communicate()

    assert first["holderIdentity"] == "python"
