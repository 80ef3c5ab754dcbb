"""Our components as an installation runs them: the workloads' own arguments, as their ServiceAccounts.

What a container gets from its pod is put together here: arguments, environment, mounted configuration. Only addresses
differ, as all pods of this machine share one: the ports are free ones, and metrics and health listen to loopback.
"""

import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from koordinator.install import objects
from koordinator.install.values import Values
from tests.free_ports import free_port
from tests.real.processes import Program

Json = dict[str, Any]

START_S = 60.0
HOST = "127.0.0.1"
WEBHOOK_PORT, SCHEDULER_PORT = 9876, 10251
"""Of the containers, in the manifests."""
OWN_FLAG = "--shutdown-delay-duration"
"""Of the manager: the original has none."""


class Component(Program):
    """A process of ours with a health port."""

    health_url: str
    metrics_url: str

    def is_ready(self) -> bool:
        return self.ask(f"{self.health_url}/readyz")[0] == 200

    def metrics(self) -> str:
        return self.ask(self.metrics_url)[1]

    @staticmethod
    def ask(url: str) -> tuple[int, str]:
        """Status and body; 0 while nobody answers."""
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)


class Manager(Component):
    """koord-manager. With `by_url` the API server calls its address instead of the Service; `program`: another one
    than ours."""

    def __init__(
        self,
        folder: Path,
        kubeconfig: Path,
        values: Values,
        *,
        name: str,
        by_url: bool = False,
        program: Path | None = None,
    ) -> None:
        self.webhook_port, health, metrics = free_port(), free_port(), free_port()
        self.health_url = f"http://{HOST}:{health}"
        self.metrics_url = f"http://{HOST}:{metrics}/all-metrics"
        container = _container("Deployment", "koord-manager", values)
        own = {"WEBHOOK_PORT": str(self.webhook_port), "WEBHOOK_CERT_DIR": str(folder / f"{name}-certs")}
        environment = _environment(container) | own | ({"WEBHOOK_HOST": HOST} if by_url else {})
        words, arguments = [sys.executable, "-m", "koordinator.cli.manager"], container["args"]
        if program is not None:
            words = [str(program)]
            arguments = [each for each in arguments if not each.startswith(OWN_FLAG)]
        command = [
            *(*words, *arguments),
            *(f"--kubeconfig={kubeconfig}", f"--metrics-addr={HOST}:{metrics}"),
            f"--health-probe-addr={HOST}:{health}",
        ]
        super().__init__(name, command, folder / f"{name}.log", environment)


class Scheduler(Component):
    """koord-scheduler with the configuration that the installation mounts."""

    def __init__(
        self, folder: Path, kubeconfig: Path, values: Values, *, name: str, flags: tuple[str, ...] = ()
    ) -> None:
        config = folder / f"{name}.config"
        config.write_text(scheduler_configuration(values))
        self.port = free_port()
        self.url = self.health_url = f"http://{HOST}:{self.port}"
        self.metrics_url = f"{self.url}/metrics"
        container = _container("Deployment", "koord-scheduler", values)
        arguments = [each for each in container["args"] if not each.startswith("--config=")]
        command = [
            *(sys.executable, "-m", "koordinator.cli.scheduler", *arguments),
            *(f"--config={config}", f"--kubeconfig={kubeconfig}", f"--address={HOST}", f"--port={self.port}"),
            *(f"--bind-address={HOST}", f"--secure-port={free_port()}", *flags),
        ]
        super().__init__(name, command, folder / f"{name}.log")

    def leads(self) -> bool:
        return self.ask(f"{self.url}/apis/v1/__services__")[0] == 200


def hollow_nodes(
    folder: Path, kubeconfig: Path, count: int, cpus: int, cards: tuple[str, ...] = ()
) -> Program:
    """Nodes that act as kubelets and node agents do; `cards` are flags as those of `koordinator up`."""
    command = [sys.executable, "-m", "tests.real.hollow", str(kubeconfig), str(count), str(cpus), *cards]
    return Program("hollow nodes", command, folder / "hollow.log")


def process_node(folder: Path, node_kubeconfig: Path, agent_kubeconfig: Path, agent_token: str) -> Program:
    """This machine as a node, with the node agent beside it. Needs root."""
    token_file = folder / "agent-token"
    token_file.write_text(agent_token)
    where = (node_kubeconfig, agent_kubeconfig, folder / "process-node", token_file, folder / "ca.crt")
    command = [sys.executable, "-m", "tests.real.process_node", *map(str, where)]
    return Program("process node", command, folder / "process-node.log")


def installed(values: Values, *, workloads: bool) -> list[Json]:
    """The objects of an installation; without `workloads` nothing that would start pods."""
    pods = ("Deployment", "DaemonSet", "PodDisruptionBudget")
    return [body for body in objects.objects(values) if workloads or body["kind"] not in pods]


def scheduler_configuration(values: Values) -> str:
    """What the ConfigMap of an installation mounts into the scheduler."""
    (found,) = (
        body
        for body in objects.objects(values)
        if (body["kind"], body["metadata"]["name"]) == ("ConfigMap", "koord-scheduler-config")
    )
    text: str = found["data"]["koord-scheduler-config"]
    return text


def _container(kind: str, name: str, values: Values) -> Json:
    (found,) = (
        body for body in objects.objects(values) if (body["kind"], body["metadata"]["name"]) == (kind, name)
    )
    container: Json = found["spec"]["template"]["spec"]["containers"][0]
    return container


def _environment(container: Json) -> dict[str, str]:
    """As the kubelet makes it; fields of the pod are those of an installation in its usual namespace."""
    fields = {"metadata.namespace": Values().installation.namespace}
    return {
        each["name"]: each["value"] if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in container.get("env", [])
    }
