"""Run `koordlet` once its command line is read: the node agent as a process."""

import asyncio
import contextlib
import random

from koordinator import profiling
from koordinator.cli import component, flag_settings, running
from koordinator.cli.koordlet_flags import KoordletSettings
from koordinator.clock import SystemClock
from koordinator.cluster import connect, garbage
from koordinator.cluster.backoff import Rate, new_rng
from koordinator.cluster.config import ClientConfig
from koordinator.cluster.kube import KubeCluster
from koordinator.host.host import Host, open_host
from koordinator.koordlet import http
from koordinator.koordlet.agent import Agent
from koordinator.koordlet.audit import AuditQuery
from koordinator.koordlet.degradation import INTERFERENCE
from koordinator.koordlet.hook_server import HookServer
from koordinator.koordlet.nri.plugin import NRIPlugin
from koordinator.koordlet.states.kubelet import KubeletIdentity, NodeKubelet

HOT_FILES_MAX = 8_192
"""Files of groups that stay open: 250 pods with 5 containers each, and room."""


def start(settings: KoordletSettings) -> None:
    """Watch and protect until a signal asks to stop. Raises: KoordinatorError, OSError, ExceptionGroup."""
    client = connect.load(server=settings.server, kubeconfig_file=settings.kubeconfig)
    running.run(_main(settings, client))


async def _main(settings: KoordletSettings, client: ClientConfig) -> None:
    # Jitter and tokens must differ between nodes.
    rng = random.Random()
    async with KubeCluster(
        client,
        rng=new_rng(rng),
        component="koordlet",
        rate=Rate(per_s=settings.qps, burst=settings.burst),
    ) as cluster:
        agent = Agent(
            settings.config,
            gates=settings.gates,
            host=_host(settings),
            cluster=cluster,
            clock=SystemClock(),
            rng=rng,
            kubelet=lambda view, metrics: NodeKubelet(
                settings.config.kubelet, view, metrics, _identity(settings, client)
            ),
            on_dry_run=(lambda line: print(line, flush=True)) if settings.is_dry_run else None,
        )
        agent.shared.metrics.client.count(cluster.transport, client.server)
        async with _served(agent, settings), asyncio.TaskGroup() as group:
            beside = [group.create_task(_tidy(agent), name="garbage")]
            if settings.config.hook_server.address and not settings.is_dry_run:
                beside.append(group.create_task(_serve_hooks(agent), name="hook server"))
            if settings.config.nri.is_enabled and not settings.is_dry_run:
                beside.append(group.create_task(_join_runtime(agent), name="NRI plugin"))
            try:
                await agent.run()
            finally:
                for task in beside:
                    task.cancel()


async def _tidy(agent: Agent) -> None:
    """Modules, pods and series are no garbage: once they are there, the collector need not go through them again."""
    await agent.is_started.wait()
    garbage.set_aside()


async def _serve_hooks(agent: Agent) -> None:
    """Answer the runtime proxy as soon as hooks can."""
    await agent.are_hooks_started.wait()
    shared = agent.shared
    await HookServer(shared.config.hook_server, agent.hooks, shared.view).run()


async def _join_runtime(agent: Agent) -> None:
    """Be a plugin of the container runtime as soon as hooks can answer."""
    await agent.are_hooks_started.wait()
    shared = agent.shared
    await NRIPlugin(
        shared.config.nri,
        agent.hooks,
        var_run=shared.host.roots.var_run,
        disabled_stages=shared.config.hook_server.disabled_stages,
        rng=new_rng(shared.rng),
    ).run()


def _host(settings: KoordletSettings) -> Host:
    host = open_host(settings.roots, HOT_FILES_MAX)
    if host.cgroups.children("") is None:
        path = host.cgroups.directory("")
        raise flag_settings.FlagError("cgroup-root-dir", f"{path} is no cgroup file system that can be read")
    return host


def _identity(settings: KoordletSettings, client: ClientConfig) -> KubeletIdentity:
    """The kubelet knows us as the API server does, unless a certificate of its own is given."""
    authority = settings.kubelet_authority
    return KubeletIdentity(
        authorization=None if settings.client_certificate is not None else client.credentials.authorization,
        client_certificate=str(settings.client_certificate or ""),
        client_key=str(settings.client_key or ""),
        ca_file=str(authority or ""),
    )


def _served(agent: Agent, settings: KoordletSettings) -> contextlib.AbstractAsyncContextManager[None]:
    """Serve metrics, health and the audit log, and profiles where that is asked for."""
    shared, options = agent.shared, settings.config.http
    component.add_to(shared.metrics.internal, shared.clock.now())
    component.add_gates(shared.metrics.internal, shared.gates)
    events = None
    if shared.gates.is_on("AuditEventsHTTPHandler"):
        limits = settings.config.audit
        events = AuditQuery(
            shared.audit,
            shared.clock,
            new_rng(shared.rng),
            size_max=limits.events_max,
            readers_max=limits.readers_max,
        )
    interference = agent.interference if shared.gates.is_on(INTERFERENCE) else None
    app = http.application(
        shared.metrics.internal,
        shared.metrics.external,
        events,
        agent.troubles,
        interference,
        agent.shadow.body,
    )
    profiled_at = flag_settings.host_and_port("pprof-addr", options.profiling_address)
    return component.all_served(
        (flag_settings.host_and_port("addr", options.address), app),
        (profiled_at if options.profiling else None, profiling.application()),
    )
