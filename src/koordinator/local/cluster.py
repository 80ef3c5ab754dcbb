"""A whole Kubernetes cluster with Koordinator on it, in this process: what `koordinator up` runs.

Everything meets in the API only. Each component has a client of its own (its name shows as the user of a request);
they would run unchanged against any other API server. HTTP is served on the loopback address only.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import msgspec
from aiohttp import web

from koordinator.api import crd, defaults, kinds
from koordinator.api.apps import ReplicaSet, ReplicationController
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.clock import Clock
from koordinator.cluster import errors
from koordinator.cluster.backoff import new_rng
from koordinator.cluster.delegated_auth import guarded
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.leader import ElectionConfig, LeaderElector
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.proof import MoveAnswer, MoveQuestion
from koordinator.cluster.protocol import Cluster
from koordinator.descheduler import http as descheduler_http
from koordinator.descheduler.configuration import DeschedulerConfig
from koordinator.descheduler.descheduler import Descheduler
from koordinator.descheduler.plugins.built_in import installed_plugins
from koordinator.host.files import HostRoots
from koordinator.host.host import Host, open_host
from koordinator.local import registry
from koordinator.local.admission import AdmissionChain
from koordinator.local.apiserver import ApiServer, documents
from koordinator.local.apiserver.auth import StaticToken
from koordinator.local.apiserver.kubelets import KubeletStreams
from koordinator.local.apiserver.pod_streams import NoStreams
from koordinator.local.apiserver.tls import ServerTls
from koordinator.local.controllers import service_addresses, volumes
from koordinator.local.controllers.cronjob import CronJobController
from koordinator.local.controllers.daemonset import DaemonSetController
from koordinator.local.controllers.deployment import DeploymentController
from koordinator.local.controllers.disruption import DisruptionController
from koordinator.local.controllers.endpoints import EndpointsController
from koordinator.local.controllers.ephemeral_volumes import EphemeralVolumeController
from koordinator.local.controllers.garbage_collector import GarbageCollector
from koordinator.local.controllers.job import JobController
from koordinator.local.controllers.namespace import NamespaceContentsController, NamespaceController
from koordinator.local.controllers.node_lifecycle import (
    NodeLifecycleController,
    PodGarbageCollector,
    TaintEvictionController,
)
from koordinator.local.controllers.pod_autoscaler import PodAutoscalerController
from koordinator.local.controllers.replicaset import ReplicaSetController
from koordinator.local.controllers.resource_claims import ResourceClaimController
from koordinator.local.controllers.resource_quota import ResourceQuotaController
from koordinator.local.controllers.role_aggregation import RoleAggregationController
from koordinator.local.controllers.service_addresses import LoadBalancerController
from koordinator.local.controllers.statefulset import StatefulSetController
from koordinator.local.controllers.volume_protection import VolumeProtectionController
from koordinator.local.controllers.volumes import VolumeController
from koordinator.local.nodes.behaviour import HOLLOW_LABEL
from koordinator.local.nodes.fleet import FleetPolicy, HollowFleet, NodeShape
from koordinator.local.nodes.hollow import HollowConfig, HollowNodes
from koordinator.local.openapi import OpenApi
from koordinator.local.processes.node_api import NodeStreams
from koordinator.local.processes.server import KubeletOptions, ProcessKubelet
from koordinator.local.schema.catalog import Catalog
from koordinator.local.store import SETTLE_S
from koordinator.manager import http as manager_http
from koordinator.manager.manager import Manager
from koordinator.manager.metrics import LEASE
from koordinator.manager.webhooks import configuration
from koordinator.manager.webhooks.configuration import WebhookSettings
from koordinator.manager.webhooks.serving import Webhooks
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.config.config import PluginConfig, SchedulerConfig
from koordinator.scheduler.explain.tries import PodToMove
from koordinator.scheduler.scheduler import Scheduler
from koordinator.scheduler.serve import http
from koordinator.scheduler.serve.explain_service import prove_live

log = logging.getLogger(__name__)


WEBHOOK_HOST = "127.0.0.1"
IDENTITY = "koordinator-up"
"""Holder of the manager's lease; the same at every start, so that a lease of the last one is no reason to wait."""
HOT_FILES = 64
REGISTERED_POLL_S = 0.02  # between two looks for nodes that are not registered yet
DEFAULT_SCHEDULER = "default-scheduler"
FIRST_REPORT_S = 5.0  # a cluster that was just started lends at once what its nodes have idle


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a cluster. Without `data_dir` it lives in memory only.

    `process_node` is a node of this machine that runs pods as processes; it needs root.
    """

    nodes: tuple[NodeShape, ...] = ()
    agents: FleetPolicy = FleetPolicy()
    """Policy of the node agents of `nodes`."""
    process_node: KubeletOptions | None = None
    host: str = "127.0.0.1"
    port: int = 0
    data_dir: Path | None = None
    tokens: tuple[StaticToken, ...] = ()
    tls: ServerTls | None = None
    hosts: tuple[str, ...] = ()
    scheduler_port: int = 0
    manager: bool = True
    """Without, a process of its own can be the manager; the webhook configurations wait for it."""
    manager_gates: FeatureGates | None = None
    """Feature gates of the manager, their defaults without."""
    scheduler: SchedulerConfig | None = None
    """Instead of the shipped configuration."""
    scheduler_gates: FeatureGates | None = None
    """Feature gates of the scheduler, their defaults without."""
    descheduler: DeschedulerConfig | None = None
    """The descheduler's configuration; without, none runs."""
    network_topology: bool = False
    """Whether the scheduler follows ClusterNetworkTopology and places gangs by it."""
    seed: int = 0


class LocalCluster:
    """Build, then `run`; addresses are known once `ready` is set."""

    def __init__(self, clock: Clock, options: ClusterOptions) -> None:
        """Raises: StorageError (data directory), UnsafeBind (other than loopback without token and TLS)."""
        self._options = options
        self._clock = clock
        self._rng = random.Random(options.seed)
        catalog = Catalog(kinds.BUILT_IN)
        if options.data_dir is None:
            self.registry = registry.in_memory(clock, seed=options.seed, catalog=catalog)
        else:
            self.registry = registry.on_disk(clock, options.data_dir, seed=options.seed, catalog=catalog)
        registry.seed_roles(self.registry)
        self.kubelet: ProcessKubelet | None = None
        streams: NodeStreams | None = None
        if options.process_node is not None:
            self._host: Host = open_host(HostRoots.below(""), HOT_FILES)
            client = MemoryCluster(self.registry, user=f"system:node:{options.process_node.node.name}")
            self.kubelet = ProcessKubelet(client, self._host, options.process_node, rng=new_rng(self._rng))
            streams = self.kubelet.streams()
        kubelets = KubeletStreams(
            self.registry,
            streams or NoStreams(),
            lambda: registry.kubelet_client_token(self.registry),
            self._is_own_node,
        )
        self.server = ApiServer(
            self.registry,
            streams=kubelets,
            host=options.host,
            port=options.port,
            tokens=options.tokens,
            tls=options.tls,
            hosts=options.hosts,
            openapi=OpenApi(catalog, documents.VERSION["gitVersion"]),
            authorizer=self.registry.authorizer,
            accounts=self.registry.tokens,
            seed=options.seed,
        )
        self.scheduler = Scheduler(
            self._client("koord-scheduler"),
            scheduler_config(options.scheduler, network_topology=options.network_topology),
            clock=clock,
            seed=options.seed,
            gates=options.scheduler_gates,
            network_topology=options.network_topology,
        )
        self.scheduler_url = ""
        self.descheduler: Descheduler | None = None
        if options.descheduler is not None:
            self.descheduler = Descheduler(
                self._client("koord-descheduler"),
                options.descheduler,
                installed_plugins(),
                rng=new_rng(self._rng),
                prove=self._prove,
            )
        self.descheduler_url = ""
        self.manager: Manager | None = None
        if options.manager:
            self.manager = Manager(
                self._client("koord-manager"), gates=options.manager_gates, prove=self._prove
            )
        self.manager_url = ""
        self.ready = asyncio.Event()

    def write_kubeconfig(self, path: Path) -> None:
        """Write a kubeconfig for this cluster, with what clients cannot find in the API: the address of the
        scheduler's own API, and the manager's feature gates as a flag would give them."""
        gates = self._options.manager_gates or FeatureGates.of(Component.MANAGER)
        flag = ",".join(f"{name}={str(state).lower()}" for name, state in sorted(gates.states.items()))
        extensions = {"schedulerURL": self.scheduler_url, "managerFeatureGates": flag}
        if self.manager_url:
            extensions["managerURL"] = self.manager_url
        if self.descheduler_url:
            extensions["deschedulerURL"] = self.descheduler_url
        self.server.write_kubeconfig(path, extensions)

    async def run(self) -> None:
        """Run everything until cancelled; then close watches, stop components and save.

        Raises: OSError when the port is taken; HostError when the process node may not have its groups; what a
        component could not survive.
        """
        try:
            if self.kubelet is not None:
                await self.kubelet.prepare()
            # First: webhooks of the last start, whose server is gone, would refuse what is installed now.
            await quieten_webhooks(self._client("koordinator-installer"))
            await install(self._client("koordinator-installer"))
            async with contextlib.AsyncExitStack() as stack:
                guard = guarded(self.server.refusal)  # whoever may not ask the API may not ask the scheduler
                scheduler_api = http.application(self.scheduler, http.HttpOptions(), (guard,))
                serving = served(scheduler_api, self._options.scheduler_port, self._options.tls)
                self.scheduler_url = await stack.enter_async_context(serving)
                if self.descheduler is not None:
                    queries = descheduler_http.application(
                        self.descheduler, descheduler_http.HttpOptions(), (guard,)
                    )
                    self.descheduler_url = await stack.enter_async_context(
                        served(queries, tls=self._options.tls)
                    )
                if self.manager is not None:
                    metrics = manager_http.metrics_application(
                        self.manager.shared.metrics, self.manager.lent, (guard,)
                    )
                    self.manager_url = await stack.enter_async_context(served(metrics, tls=self._options.tls))
                certificates = stack.enter_context(TemporaryDirectory(prefix="koordinator-certs-"))
                group = await stack.enter_async_context(asyncio.TaskGroup())
                if self.manager is not None:
                    await self._start_manager(self.manager, group, Path(certificates))
                self._start_components(group)
                self._start(group, self._settling(), "past kept as text")
                await self.server.start()
                await service_addresses.publish(
                    self._client("kube-apiserver"), self._options.host, self.server.port
                )
                self.ready.set()
        except ExceptionGroup as problems:
            if len(problems.exceptions) > 1:
                raise
            raise problems.exceptions[0] from None  # one task failed, the others were only cancelled for it
        finally:
            await self.server.stop()
            if self.kubelet is not None:
                await self.kubelet.close()
            await self.registry.close()

    async def _prove(self, moves: Sequence[MoveQuestion]) -> list[MoveAnswer]:
        """Ask our scheduler where the successors of pods would be placed."""
        found = prove_live(self.scheduler, [PodToMove(one.uid, one.nodes) for one in moves])
        return [MoveAnswer(one.node, one.why) for one in found]

    async def up(self) -> None:
        """Return once the cluster answers and all of its nodes are registered."""
        await self.ready.wait()
        expected = [shape.name for shape in self._options.nodes]
        if self._options.process_node is not None:
            expected.append(self._options.process_node.node.name)
        nodes = self.registry.store.table("nodes")
        while expected:
            while expected and nodes.get("", expected[-1]) is not None:
                expected.pop()
            if expected:
                await asyncio.sleep(REGISTERED_POLL_S)

    async def _settling(self) -> None:
        while True:
            await asyncio.sleep(SETTLE_S)
            self.registry.store.settle()

    def _client(self, user: str) -> MemoryCluster:
        return MemoryCluster(self.registry, user=f"system:serviceaccount:koordinator-system:{user}")

    @staticmethod
    def _start(group: asyncio.TaskGroup, work: Coroutine[Any, Any, Any], name: str) -> None:
        group.create_task(work, name=name)

    async def _start_manager(self, manager: Manager, group: asyncio.TaskGroup, certificates: Path) -> None:
        """Start the manager with its webhooks, and wait until they answer: nothing is to be created without them."""
        settings = WebhookSettings(port=0, cert_dir=certificates)
        webhooks = Webhooks(
            manager.shared, manager.admission, settings, synced=manager.synced, host=WEBHOOK_HOST
        )
        # Another manager may be started beside this one; only one of them may change anything.
        election = LeaderElector(
            self._client("koord-manager"),
            ElectionConfig(name=LEASE, namespace=defaults.NAMESPACE, identity=IDENTITY),
            rng=random.Random(self._options.seed),
        )
        self._start(group, manager.run(election, stays=True), "koord-manager")
        self._start(group, webhooks.run(), "webhooks")
        await manager.synced.wait()
        await webhooks.ready.wait()
        if manager.handlers:
            admission, service = self.registry.admission, settings.service
            assert isinstance(admission, AdmissionChain), "no webhooks are asked"
            admission.webhooks.register_service(service.namespace, service.name, WEBHOOK_HOST, webhooks.port)

    def _is_own_node(self, node: dict[str, Any]) -> bool:
        process = self._options.process_node
        is_process = process is not None and node["metadata"]["name"] == process.node.name
        return is_process or HOLLOW_LABEL in node["metadata"].get("labels", {})

    def _start_components(self, group: asyncio.TaskGroup) -> None:
        self._start(group, self.scheduler.run(), "koord-scheduler")
        if self.descheduler is not None:
            self._start_descheduler(group, self.descheduler)
        if self._options.nodes:
            fleet = HollowFleet(self._options.nodes, self._options.agents)
            nodes = HollowNodes(
                self._client("hollow-nodes"),
                fleet,
                HollowConfig(first_report_s=FIRST_REPORT_S, pod_events=True, topology=True),
                rng=new_rng(self._rng),
            )
            self._start(group, nodes.run(), "hollow nodes")
        if self.kubelet is not None:
            self._start(group, self.kubelet.run(), "process node")
        self._start_controllers(group)

    def _start_descheduler(self, group: asyncio.TaskGroup, descheduler: Descheduler) -> None:
        election: LeaderElector | None = None
        lease = descheduler.config.leader_election
        if lease.leader_elect:  # another one may be started beside this
            config = ElectionConfig(
                name=lease.resource_name, namespace=lease.resource_namespace, identity=IDENTITY
            )
            client = self._client("koord-descheduler")
            election = LeaderElector(client, config, rng=new_rng(self._rng))
        self._start(group, descheduler.run(election, stays=True), "koord-descheduler")

    def _start_controllers(self, group: asyncio.TaskGroup) -> None:
        cluster = self._client("kube-controller-manager")
        factory = InformerFactory(cluster, new_rng(self._rng))
        recorders: list[EventRecorder] = []
        events = _recorders(cluster, new_rng(self._rng), recorders)
        resources = self.registry.resources
        tls = self._options.tls
        controllers = [
            *workloads(cluster, factory, new_rng(self._rng)),
            NamespaceContentsController(cluster, factory, tls.ca_certificate.decode() if tls else ""),
            EndpointsController(cluster, factory, events("endpoint-slice-controller")),
            LoadBalancerController(cluster, factory, events("service-controller")),
            PodAutoscalerController(cluster, factory, events("horizontal-pod-autoscaler"), resources),
            GarbageCollector(cluster, factory, resources),
            NamespaceController(cluster, factory, resources),
            NodeLifecycleController(cluster, factory, events("node-controller"), new_rng(self._rng)),
            TaintEvictionController(cluster, factory, events("taint-eviction-controller")),
            PodGarbageCollector(cluster, factory),
            DisruptionController(cluster, factory, events("controllermanager")),
            VolumeController(cluster, factory, events("persistentvolume-controller")),
            VolumeProtectionController(cluster, factory),
            EphemeralVolumeController(cluster, factory, events("ephemeral_volume")),
            ResourceClaimController(cluster, factory, events("resource_claim")),
            RoleAggregationController(cluster, factory),
            ResourceQuotaController(factory, resources, self.registry.recount_quota),
        ]
        factory.start(group)
        for recorder in recorders:
            self._start(group, recorder.run(), "events")
        for controller in controllers:
            self._start(group, controller.run(), type(controller).__name__)


async def quieten_webhooks(cluster: MemoryCluster) -> None:
    """Both webhook configurations as this version knows them, asking nobody until the manager fills them in."""
    for wanted in configuration.configurations(configuration.WebhookService()):
        body = configuration.with_template(wanted, is_dormant=True)
        view, metadata = kinds.view_of(kinds.resource_of(body)), body["metadata"]
        try:
            await cluster.create(view, body)
        except errors.AlreadyExists:
            patch = {"metadata": {"annotations": metadata["annotations"]}, "webhooks": body["webhooks"]}
            await cluster.patch(view, metadata["name"], patch)


async def install(cluster: Cluster) -> None:
    """CRDs, priority classes, the default configuration and storage class; what exists already is left as
    it is, except CRDs, which follow this version."""
    for manifest in crd.manifests():
        view = kinds.view_of(kinds.resource_of(manifest))
        try:
            await cluster.create(view, manifest)
        except errors.AlreadyExists:
            await cluster.patch(view, manifest["metadata"]["name"], {"spec": manifest["spec"]})
    for body in (*defaults.objects(), volumes.standard_class()):
        view, namespace = kinds.view_of(kinds.resource_of(body)), body["metadata"].get("namespace", "")
        with contextlib.suppress(errors.AlreadyExists):
            await cluster.create(view, body, namespace)


def scheduler_config(
    own: SchedulerConfig | None = None, *, network_topology: bool = False
) -> SchedulerConfig:
    """Return the shipped profile under both names: here one scheduler places everybody's pods. Users' `own`
    configuration gets a profile of the stock scheduler, unless it has one: nobody else would place the pods that
    ask for it. It is as the one that they have changed, the shipped one where they have another.
    """
    shipped = default_plugins.shipped_profile()
    if own is not None:
        by_name = {profile.scheduler_name: profile for profile in own.profiles}
        if DEFAULT_SCHEDULER in by_name:
            return own
        model = by_name.get(shipped.scheduler_name, shipped)
        stock = msgspec.structs.replace(model, scheduler_name=DEFAULT_SCHEDULER)
        return msgspec.structs.replace(own, profiles=[*own.profiles, stock])
    if network_topology:
        aware = PluginConfig(name="Coscheduling", args={"awareNetworkTopology": True})
        shipped = msgspec.structs.replace(shipped, plugin_config=[*shipped.plugin_config, aware])
    stock = msgspec.structs.replace(shipped, scheduler_name=DEFAULT_SCHEDULER)
    return SchedulerConfig(profiles=[shipped, stock])


class Runs(Protocol):
    """Something that works until it is cancelled."""

    async def run(self) -> None: ...


def _recorders(
    cluster: Cluster, rng: random.Random, made: list[EventRecorder]
) -> Callable[[str], EventRecorder]:
    """Return a function that makes recorders, each of which tells events under a name of its own; `made` gets them."""

    def recorder(component: str) -> EventRecorder:
        made.append(EventRecorder(cluster, component, rng=new_rng(rng)))
        return made[-1]

    return recorder


def workloads(cluster: Cluster, factory: InformerFactory, rng: random.Random) -> list[Runs]:
    """Controllers of all built-in workload kinds, to be run side by side with the recorders of their events.

    Each tells its events under its own name, as `kubectl describe` shows it.
    """
    recorders: list[EventRecorder] = []
    events = _recorders(cluster, rng, recorders)
    controllers: list[Runs] = [
        DeploymentController(cluster, factory, events("deployment-controller")),
        ReplicaSetController(cluster, factory, events("replicaset-controller"), ReplicaSet),
        ReplicaSetController(cluster, factory, events("replication-controller"), ReplicationController),
        StatefulSetController(cluster, factory, events("statefulset-controller")),
        DaemonSetController(cluster, factory, events("daemonset-controller")),
        JobController(cluster, factory, events("job-controller")),
        CronJobController(cluster, factory, events("cronjob-controller")),
    ]
    return [*recorders, *controllers]


HOST = "127.0.0.1"


@contextlib.asynccontextmanager
async def served(app: web.Application, port: int = 0, tls: ServerTls | None = None) -> AsyncIterator[str]:
    """Serve; the address is `http://127.0.0.1:<port>` (https with `tls`), a free port for 0. Raises: OSError."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, auto_decompress=False)
    await runner.setup()
    try:
        context = None if tls is None else tls.context()
        await web.TCPSite(runner, HOST, port, ssl_context=context).start()
        _, chosen = runner.addresses[0][:2]
        yield f"{'http' if tls is None else 'https'}://{HOST}:{chosen}"
    finally:
        await runner.cleanup()
