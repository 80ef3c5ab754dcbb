"""Two `koord-scheduler` processes on one cluster, as an installation runs them."""

import json
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, started, until, with_kubectl
from tests.free_ports import free_port

pytestmark = with_kubectl(timeout_s=180)

CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {resourceName: mine, resourceNamespace: default}
profiles: [{schedulerName: mine}]
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  schedulerName: mine
  containers: [{name: main, image: web, resources: {requests: {cpu: 100m}}}]
---
"""


class Process:
    """A scheduler with an insecure and a secure port."""

    def __init__(self, folder: Path, kubeconfig: Path, config: str = CONFIG) -> None:
        self.port, self.secure_port = free_port(), free_port()
        (folder / "config.yaml").write_text(config)
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "koordinator.cli.scheduler"),
                *("--config", str(folder / "config.yaml"), "--kubeconfig", str(kubeconfig)),
                *("--authorization-kubeconfig", str(kubeconfig), "--address", "127.0.0.1"),
                *("--port", str(self.port), "--bind-address", "127.0.0.1"),
                *("--secure-port", str(self.secure_port)),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        until(lambda: self.get("/readyz")[0] == 200, 30, self.process)

    def get(self, path: str, *, secure: bool = False) -> tuple[int, str]:
        """Status and body; 0 while nobody answers."""
        trust = ssl.create_default_context()
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        url = f"https://127.0.0.1:{self.secure_port}" if secure else f"http://127.0.0.1:{self.port}"
        try:
            with urllib.request.urlopen(url + path, timeout=5, context=trust if secure else None) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def leads(self) -> bool:
        return self.get("/apis/v1/__services__")[0] == 200


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = started(tmp_path_factory.mktemp("up"), "--nodes", "5")
    yield running
    if running.process.poll() is None:
        running.stop()


def test_the_second_process_goes_on_where_the_first_is_stopped(cluster: Cluster, tmp_path: Path) -> None:
    first = Process(tmp_path, cluster.kubeconfig)
    until(first.leads, 10, first.process)
    second = Process(tmp_path, cluster.kubeconfig)
    try:
        code, answer = second.get("/apis/v1/nodes/node-0")
        assert (code, json.loads(answer)["message"]) == (503, "the instance is not leader")
        assert str(first.process.pid) in json.loads(answer)["leader"]
        assert second.get("/metrics", secure=True)[0] == 403
        assert second.get("/healthz", secure=True) == (200, "ok")

        names = [f"p-{number}" for number in range(40)]
        cluster.kubectl("create", "-f", "-", text="".join(POD.replace("NAME", name) for name in names))
        first.process.send_signal(signal.SIGTERM)
        assert first.process.wait(timeout=20) == 0
        until(second.leads, 10, second.process)  # sooner than a lease ends that nobody gave back
        more = [f"q-{number}" for number in range(5)]
        cluster.kubectl("create", "-f", "-", text="".join(POD.replace("NAME", name) for name in more))

        def bound() -> set[str]:
            pods = cluster.get("pods")["items"]
            return {each["metadata"]["name"] for each in pods if each["spec"].get("nodeName")}

        until(lambda: bound() == {*names, *more}, 20, second.process)
        assert 'leader_election_master_status{name="mine"} 1' in second.get("/metrics")[1]
        counted = sum(
            len(json.loads(second.get(f"/apis/v1/nodes/node-{number}")[1])["pods"]) for number in range(5)
        )
        assert counted == 45
    finally:
        for each in (first, second):
            if each.process.poll() is None:
                each.process.kill()
            each.process.communicate()
