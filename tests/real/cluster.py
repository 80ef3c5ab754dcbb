"""A real control plane with Koordinator on it, as an installation has it; offers what a `koordinator up` offers."""

import argparse
import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest
import yaml

from koordinator.cli.up import node_name
from koordinator.cluster import errors
from koordinator.install import text
from koordinator.install.values import EVERYTHING, Values
from koordinator.scheduler.config.default_plugins import shipped_profile
from tests.e2e.cluster import Cluster
from tests.real import components
from tests.real.components import SCHEDULER_PORT, START_S, WEBHOOK_PORT, Manager, Scheduler
from tests.real.processes import Program
from tests.real.servers import Servers

STOCK = "default-scheduler"
SYSTEM = "koordinator-system"
SERVICE = "koordinator-webhook-service"
POD_ADDRESS = "10.128.0.1"
"""Of our manager. Nobody has it: the pod network leads to loopback."""
WEBHOOK_KINDS = "mutatingwebhookconfigurations,validatingwebhookconfigurations"


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What a cluster is made of. `workloads`: whether Deployments and DaemonSets are installed, too;
    `process_node`: whether this machine is a node as well; `cards`: flags that give hollow nodes devices;
    `manager_program`: one that runs as an administrator instead of our manager."""

    nodes: int = 2
    node_cpu: int = 32
    cards: tuple[str, ...] = ()
    process_node: bool = False
    values: Values = Values()
    manager: bool = True
    manager_program: Path | None = None
    webhooks_by_url: bool = False
    scheduler: bool = True
    scheduler_flags: tuple[str, ...] = ()
    workloads: bool = False
    installed: bool = True
    controllers: bool = True
    apiserver_flags: tuple[str, ...] = ()


class RealCluster(Cluster):
    """A running one. Whoever opens it stops it."""

    remarks = (
        "which is not a pod of koordinator-system/",
    )  # components run beside the pods that stand for them

    def __init__(self, folder: Path, shape: Shape) -> None:
        self.folder = folder
        self.shape = shape
        self.servers = Servers(folder)
        self.kubeconfig = self.servers.kubeconfig
        self.manager: Manager | None = None
        self.scheduler: Scheduler | None = None
        self.nodes: Program | None = None
        self._process_node: Program | None = None
        self._programs: list[Program] = []
        self._is_stopped = False
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    @classmethod
    @contextlib.contextmanager
    def open(cls, folder: Path, shape: Shape) -> Iterator[Self]:
        """Inside it runs."""
        cluster = cls(folder, shape)
        try:
            yield cluster
        finally:
            cluster.stop()

    @classmethod
    def like_up(cls, folder: Path, arguments: tuple[str, ...], *, workloads: bool) -> Self:
        """As `koordinator up` with these arguments would be."""
        shape = _shape_of(arguments, elects=workloads)
        return cls(folder, msgspec.structs.replace(shape, workloads=workloads))

    def _start(self) -> None:
        shape = self.shape
        self.servers.start(controllers=shape.controllers, apiserver_flags=shape.apiserver_flags)
        self.process = self.servers.apiserver.process
        if shape.controllers:  # stories begin where nothing changes by itself
            self.servers.controllers.wait(self._are_namespaces_filled, START_S, "namespaces are filled")
        if shape.installed:
            self.install()
        if shape.manager:
            self.manager = self.start_manager()
        if shape.scheduler:
            self.scheduler = self.start_scheduler()
            self._publish()
        if shape.nodes:  # with workloads, the pods behind the webhooks' Service come now
            self.nodes = components.hollow_nodes(
                self.folder, self.kubeconfig, shape.nodes, shape.node_cpu, shape.cards
            )
            self._programs.append(self.nodes)
            self.nodes.wait(lambda: self.ready_nodes() == shape.nodes, START_S, "nodes are ready")
        if shape.process_node:
            self._start_process_node()

    def _are_namespaces_filled(self) -> bool:
        """Whether the controllers gave each namespace its ServiceAccount and the authority's certificate."""
        items = self.get("namespaces,serviceaccounts,configmaps", "-A")["items"]
        found = {
            (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in items
        }
        return all(
            {("ServiceAccount", name, "default"), ("ConfigMap", name, "kube-root-ca.crt")} <= found
            for kind, _, name in found
            if kind == "Namespace"
        )

    def _start_process_node(self) -> None:
        name = node_name()
        kubelet = self.folder / "node.kubeconfig"
        self.servers.write_kubeconfig(kubelet, f"system:node:{name}", "system:nodes")
        agent = self.identity("koordlet")
        token = yaml.safe_load(agent.read_text())["users"][0]["user"]["token"]
        self._process_node = components.process_node(self.folder, kubelet, agent, token)
        wanted = self.shape.nodes + 1
        self._process_node.wait(lambda: self.ready_nodes() == wanted, START_S, "the process node is ready")

    def install(self) -> None:
        """The objects of the installation, and where the webhooks' Service leads."""
        bodies = components.installed(self.shape.values, workloads=self.shape.workloads)
        self.apply(text.documents(bodies if self.shape.workloads else [*bodies, _endpoint_slice()]))

    def end_scheduler(self) -> None:
        assert self.scheduler is not None
        self.scheduler.stop()

    def restore(self) -> None:
        self.install()
        self.tend()

    def apply(self, documents: str) -> None:
        """Server-side, as one would who owns the objects. CRDs take a moment until they are served."""
        command = ("apply", "--server-side", "--force-conflicts", "-f", "-")
        done = self.run(*command, text=documents)
        assert done.returncode == 0, done.stderr

    def start_manager(self, name: str = "koord-manager", *, serves: bool = True) -> Manager:
        """Another manager, under its role; `serves`: the Service leads to it from now on."""
        program = self.shape.manager_program
        found = Manager(
            self.folder,
            self.kubeconfig if program else self.identity("koord-manager"),
            self.shape.values,
            name=name,
            program=program,
            by_url=self.shape.webhooks_by_url,
        )
        self._programs.append(found)
        if serves:
            self.servers.network.ports[WEBHOOK_PORT] = found.webhook_port
        found.wait(found.is_ready, START_S, "is ready")
        found.wait(self._webhooks_are_trusted, START_S, "webhooks are configured")
        return found

    def start_scheduler(
        self, name: str = "koord-scheduler", *, serves: bool = True, url: str = ""
    ) -> Scheduler:
        """Another scheduler, under its role; `url`: how it reaches the API server, where it is not directly."""
        found = Scheduler(
            self.folder,
            self.identity("koord-scheduler", url=url),
            self.shape.values,
            name=name,
            flags=self.shape.scheduler_flags,
        )
        self._programs.append(found)
        if serves:
            self.servers.network.ports[SCHEDULER_PORT] = found.port
        found.wait(found.is_ready, START_S, "is ready")
        return found

    def tend(self) -> None:
        """Start manager and scheduler again where they have ended, as the kubelet does."""
        for component in (self.manager, self.scheduler):
            if component is not None and component.process.poll() is not None:
                component.start_again()

    def identity(self, account: str, *, url: str = "") -> Path:
        """The kubeconfig of a ServiceAccount of the installation: it may do what its role allows."""
        token = self.kubectl("-n", SYSTEM, "create", "token", account, "--duration=24h").strip()
        path = self.folder / f"{account}.kubeconfig"
        self.servers.write_kubeconfig_of(path, {"token": token}, url=url)
        return path

    def kubeconfig_of(self, account: str) -> Path:
        """A kubeconfig of a component that an installation has on demand: its account and roles come with it."""
        kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
        bodies = components.installed(EVERYTHING, workloads=False)
        self.apply(
            text.documents([b for b in bodies if b["kind"] in kinds and b["metadata"]["name"] == account])
        )
        return self.identity(account)

    def refusals(self) -> list[str]:
        """Lines in the components' logs that tell that a role forbids something."""
        logs = (line for program in self._programs for line in program.said().splitlines())
        return [line for line in logs if errors.Forbidden.__name__ in line or "forbidden" in line.lower()]

    def ready_nodes(self) -> int:
        conditions = [node["status"].get("conditions", []) for node in self.get("nodes")["items"]]
        return sum(
            {"type": "Ready", "status": "True"}.items() <= each.items() for c in conditions for each in c
        )

    def stop(self, number: int = signal.SIGTERM) -> str:
        """Everything ends; what the components said on stderr."""
        if self._is_stopped:
            return ""
        self._is_stopped = True
        if self._process_node is not None:
            self._process_node.stop()  # its pods and groups go with it
        for program in reversed(self._programs):
            if program.process.poll() is None:
                program.kill()
        self.servers.close()
        return "".join(program.said() for program in self._programs)

    def _webhooks_are_trusted(self) -> bool:
        """The API server knows what to ask and whom to trust."""
        webhooks = [w for body in self.get(WEBHOOK_KINDS)["items"] for w in body.get("webhooks") or ()]
        return bool(webhooks) and all(each["clientConfig"].get("caBundle") for each in webhooks)

    def _publish(self) -> None:
        """What the kubeconfig of a `koordinator up` tells as well, for whom there is no other way to find it."""
        assert self.scheduler is not None
        content = yaml.safe_load(self.kubeconfig.read_text())
        extension = {"schedulerURL": self.scheduler.url}
        content["clusters"][0]["cluster"]["extensions"] = [{"name": "koordinator", "extension": extension}]
        self.kubeconfig.write_text(yaml.safe_dump(content))


def _endpoint_slice() -> dict[str, Any]:
    """Leads the webhooks' Service to our manager, where no pods of it exist."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{SERVICE}-test",
            "namespace": SYSTEM,
            "labels": {
                "kubernetes.io/service-name": SERVICE,
                "endpointslice.kubernetes.io/managed-by": "test",
            },
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [POD_ADDRESS], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": WEBHOOK_PORT, "protocol": "TCP"}],
    }


def _shape_of(arguments: tuple[str, ...], *, elects: bool) -> Shape:
    """What `koordinator up` is told, as an installation on real servers is told it."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--node-cpu", type=int, default=32)
    parser.add_argument("--gpus", default="0")
    parser.add_argument("--rdma", default="0")
    parser.add_argument("--partitions", action="store_true")
    parser.add_argument("--lend-gpus", default="")
    parser.add_argument("--process-node", action="store_true")
    parser.add_argument("--without-manager", action="store_true")
    parser.add_argument("--manager-feature-gates", default="")
    parser.add_argument("--scheduler-feature-gates", default="")
    parser.add_argument("--scheduler-config", type=Path)
    parser.add_argument("--enable-network-topology-manager", action="store_true")
    asked, other = parser.parse_known_args(arguments)
    if other:
        pytest.skip(f"real servers have no {other[0]}")
    topology = asked.enable_network_topology_manager
    config = asked.scheduler_config.read_text() if asked.scheduler_config else _shipped(topology)
    values = {
        "featureGates": asked.manager_feature_gates,
        "scheduler": {
            "featureGates": asked.scheduler_feature_gates,
            "config": _for_all_pods(config, elects=elects),
        },
    }
    return Shape(
        nodes=asked.nodes if asked.nodes is not None else 0 if asked.process_node else 10,
        process_node=asked.process_node,
        node_cpu=asked.node_cpu,
        cards=(
            *("--gpus", asked.gpus, "--rdma", asked.rdma, *["--partitions"] * asked.partitions),
            *("--lend-gpus", asked.lend_gpus),
        ),
        values=msgspec.convert(values, Values),
        manager=not asked.without_manager,
        scheduler_flags=("--enable-network-topology-manager",) if topology else (),
        apiserver_flags=_flags_for_claims(asked.scheduler_feature_gates),
    )


def _flags_for_claims(gates: str) -> tuple[str, ...]:
    """The API server keeps fields of claims and devices only with the gates that the scheduler has."""
    of_both = [each for each in gates.split(",") if each.startswith("DRA")]
    if not of_both:
        return ()
    return f"--feature-gates={','.join(of_both)}", "--runtime-config=resource.k8s.io/v1alpha3=true"


def _shipped(topology: bool) -> str:
    """The shipped configuration, with what `--enable-network-topology-manager` changes in it."""
    config = yaml.safe_load(components.scheduler_configuration(Values()))
    if topology:
        aware = {"name": "Coscheduling", "args": {"awareNetworkTopology": True}}
        config["profiles"][0].setdefault("pluginConfig", []).append(aware)
    return json.dumps(config)


def _for_all_pods(config: str, *, elects: bool) -> str:
    """The configuration with its profile under the stock scheduler's name, too, as `koordinator up` has it, and
    unless it `elects` a leader without a lease."""
    found = yaml.safe_load(config)
    if not elects:
        found["leaderElection"] = {"leaderElect": False}
    profiles = {each.get("schedulerName", STOCK): each for each in found["profiles"]}
    if STOCK not in profiles:
        name = shipped_profile().scheduler_name
        model = profiles.get(name) or yaml.safe_load(_shipped(False))["profiles"][0]
        found["profiles"].append({**model, "schedulerName": STOCK})
    return str(yaml.safe_dump(found))
