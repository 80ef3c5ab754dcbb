"""A manager outside of the cluster, really called, and what kubectl says when it is gone."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import START_S, Cluster, started, until, with_kubectl

pytestmark = with_kubectl(timeout_s=180)
CONFIGURATIONS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = started(tmp_path_factory.mktemp("webhooks"), "--nodes", "0", "--without-manager")
    yield running
    running.stop()


@pytest.fixture
def manager(cluster: Cluster, tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Serving webhooks at an address of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    where = {
        "WEBHOOK_HOST": "127.0.0.1",
        "WEBHOOK_PORT": str(port),
        "WEBHOOK_CERT_DIR": str(tmp_path / "certs"),
    }
    addresses = [f"--{name}-addr=0" for name in ("metrics", "health-probe", "pprof")]
    command = [
        sys.executable,
        "-m",
        "koordinator.cli.manager",
        "--kubeconfig",
        str(cluster.kubeconfig),
        *addresses,
    ]
    process = subprocess.Popen(command, env={**os.environ, **where}, stderr=subprocess.PIPE, text=True)
    until(lambda: str(port) in str(cluster.get(*CONFIGURATIONS[1:])["items"]), START_S, process)
    yield process
    if process.poll() is None:
        process.kill()
        process.communicate()


def run_pod(cluster: Cluster, name: str, *flags: str, **labels: str) -> "subprocess.CompletedProcess[str]":
    chosen = ",".join(f"koordinator.sh/{key}={value}" for key, value in labels.items())
    return cluster.run("run", name, "--image=x", *flags, *(("--labels", chosen) if chosen else ()))


def test_a_manager_outside_is_called_and_when_it_is_gone_the_policy_decides(
    cluster: Cluster, manager: "subprocess.Popen[str]"
) -> None:
    # It answers: good pods pass, bad ones hear why not.
    until(lambda: run_pod(cluster, "good").returncode == 0, 20, manager)
    bad = run_pod(cluster, "bad", qosClass="LSR", **{"priority-class": "koord-batch"})
    assert 'admission webhook "vpod.koordinator.sh" denied the request' in bad.stderr
    assert (
        "koordinator.sh/qosClass=LSR and priorityClass=koord-batch cannot be used in combination"
        in bad.stderr
    )

    # What nothing acts on yet is created with a warning.
    wish = '{"apiVersion": "analysis.koordinator.sh/v1alpha1", "kind": "Recommendation", '
    wish += '"metadata": {"name": "web"}, "spec": {"target": {"type": "workload", '
    wish += '"workload": {"kind": "Deployment", "name": "web"}}}}'
    created = cluster.run("create", "-f", "-", text=wish)
    assert "Warning: Recommendation: this version of Koordinator does not act on it yet" in created.stderr
    assert created.returncode == 0

    # An edit by hand does not last.
    cluster.kubectl(
        "patch",
        CONFIGURATIONS[0],
        "koordinator-mutating-webhook-configuration",
        "--type=merge",
        "-p",
        '{"webhooks": []}',
    )
    until(lambda: cluster.get(*CONFIGURATIONS[:1])["items"][0]["webhooks"], 10, manager)

    # It is gone, policy Fail: refused, and the words say which webhook could not be asked, where, and why.
    manager.send_signal(signal.SIGKILL)
    manager.communicate()
    set_policy(cluster, "Fail")
    until(lambda: run_pod(cluster, "refused", "--dry-run=server").returncode == 1, 20, cluster.process)
    refused = run_pod(cluster, "refused")
    assert (
        'failed calling webhook "mpod-create.koordinator.sh": failed to call webhook: Post' in refused.stderr
    )
    assert "connect: connection refused" in refused.stderr

    # With policy Ignore it passes, unchecked.
    set_policy(cluster, "Ignore")
    until(lambda: run_pod(cluster, "ignored").returncode == 0, 20, cluster.process)


def set_policy(cluster: Cluster, policy: str) -> None:
    """What happens to all that no webhook could be asked about. API servers hear of it a moment later."""
    for kind in CONFIGURATIONS:
        (found,) = cluster.get(kind)["items"]
        patch = [
            {"op": "replace", "path": f"/webhooks/{index}/failurePolicy", "value": policy}
            for index, _ in enumerate(found["webhooks"])
        ]
        cluster.kubectl("patch", kind, found["metadata"]["name"], "--type=json", "-p", json.dumps(patch))
