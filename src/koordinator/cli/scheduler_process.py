"""Run `koord-scheduler` once its command line is read: the scheduler as a process."""

import contextlib
import functools
import logging
import random
import socket

import msgspec

from koordinator.api import config_text, duration, upstream_gates
from koordinator.api.errors import KoordinatorError
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.cli import component, logs, running, serving
from koordinator.cli.scheduler_flags import Flags
from koordinator.clock import SystemClock
from koordinator.cluster import connect, garbage
from koordinator.cluster.backoff import Rate, new_rng
from koordinator.cluster.config import ClientConfig
from koordinator.cluster.kube import KubeCluster
from koordinator.cluster.leader import LeaderElector
from koordinator.scheduler.auditor.auditor import AuditOptions, LabelClash, label_names
from koordinator.scheduler.auditor.history import AuditLimits
from koordinator.scheduler.config import config, default_plugins
from koordinator.scheduler.config.config import SchedulerConfig, SchedulerConfigError
from koordinator.scheduler.loop import caches
from koordinator.scheduler.observe.debugging import DebugOptions, DumpOptions
from koordinator.scheduler.observe.observer import MonitorOptions, ObserverOptions
from koordinator.scheduler.plugin.capabilities import ControllerFilter
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.scheduler import Scheduler
from koordinator.scheduler.serve import http
from koordinator.scheduler.serve.http import HttpOptions

log = logging.getLogger(__name__)


class Refused(KoordinatorError, ValueError):
    """Flags that cannot be used."""


def start(flags: Flags) -> None:
    """Schedule until a signal asks to stop, or write the configuration where that is asked for.

    Raises: KoordinatorError, OSError, ExceptionGroup.
    """
    settings = read_config(flags)
    gates = read_gates(flags.feature_gates)
    if flags.write_config_to is not None:
        flags.write_config_to.write_text(http.as_yaml(settings, installed_plugins()))
        return
    auditing(flags)
    connection = settings.client_connection
    client = connect.load(server=flags.master, kubeconfig_file=connection.kubeconfig or flags.kubeconfig)
    running.run(_main(flags, settings, gates, client))


def read_config(flags: Flags) -> SchedulerConfig:
    """Return the configuration file (or the shipped configuration) with what flags say besides.

    As upstream, leader election by flags wins over the file; the deprecated flags count without a file only.

    Raises: SchedulerConfigError.
    """
    settings = default_plugins.shipped_config()
    old = {
        "kube-api-qps": flags.kube_api_qps,
        "kube-api-burst": flags.kube_api_burst,
        "profiling": flags.profiling,
    }
    if flags.config is not None:
        settings = config.read(flags.config)
        for name in (name for name, value in old.items() if value is not None):
            log.warning("flag ignored: the configuration file has this setting", extra={"flag": f"--{name}"})
    else:
        connection = settings.client_connection
        settings = msgspec.structs.replace(
            settings,
            client_connection=msgspec.structs.replace(
                connection,
                qps=connection.qps if flags.kube_api_qps is None else flags.kube_api_qps,
                burst=connection.burst if flags.kube_api_burst is None else flags.kube_api_burst,
            ),
            enable_profiling=settings.enable_profiling if flags.profiling is None else flags.profiling,
        )
    elected = msgspec.structs.replace(settings.leader_election, **flags.elected())
    if problems := list(config_text.election_problems(elected)):
        raise SchedulerConfigError.of(problems)
    return msgspec.structs.replace(settings, leader_election=elected)


def read_gates(text: str) -> FeatureGates:
    """Return the values of Koordinator's gates, and log those of upstream's gates, which are fixed.

    Raises: FeatureGateError for unknown names, and for upstream's gates that are not implemented and affect placement.
    """
    ours, asked = upstream_gates.split(text)
    for each in asked:
        facts = {"gate": each.name, "asked": each.is_on, "built_in": each.gate.is_built_in}
        if each.is_as_asked:
            log.info("gate of kube-scheduler already has this value", extra=facts)
        elif each.gate.is_built_in:
            log.warning("gate of kube-scheduler cannot be switched off", extra=facts)
        else:
            log.warning("gate of kube-scheduler is not implemented: %s", each.gate.lack, extra=facts)
    return FeatureGates.of(Component.SCHEDULER, ours)


def auditing(flags: Flags) -> AuditOptions | None:
    """Return what the flags say about the workload auditor; None when it is off. Raises: Refused."""
    if not flags.enable_workload_auditor:
        return None
    try:
        label_names(flags.workload_auditor_metric_labels)
    except LabelClash as error:
        raise Refused(f"--workload-auditor-metric-labels: {error}") from error
    return AuditOptions(
        limits=AuditLimits(
            victim_reschedule_s=duration.parse(flags.workload_auditor_victim_reschedule_duration),
            victim_deletion_s=duration.parse(flags.workload_auditor_victim_deletion_duration),
            deleting_retries=flags.workload_auditor_victim_deleting_retries,
            event_interval_s=duration.parse(flags.workload_auditor_scheduling_event_interval),
        ),
        metric_labels=flags.workload_auditor_metric_labels,
    )


def observing(flags: Flags) -> ObserverOptions:
    """Return what the flags say about the monitor and debugging."""
    return ObserverOptions(
        monitor=MonitorOptions(
            period_s=duration.parse(flags.scheduler_monitor_period),
            timeout_s=duration.parse(flags.scheduling_timeout),
            drop_unhandled_s=duration.parse(flags.scheduling_drop_unhandled_timeout),
        ),
        debug=DebugOptions(
            top_scores=flags.debug_scores,
            filters=flags.debug_filters,
            diagnosis=flags.debug_diagnosis,
            diagnosis_blocking=flags.debug_diagnosis_blocking,
        ),
        dump=DumpOptions(
            queue_size=flags.debug_diagnosis_queue_size, worker_count=flags.debug_diagnosis_worker_count
        ),
    )


async def _main(flags: Flags, settings: SchedulerConfig, gates: FeatureGates, client: ClientConfig) -> None:
    clock = SystemClock()
    # Ties are decided by --seed; jitter of retries and names must differ between instances.
    rng = random.Random()
    plugins = installed_plugins()  # once: it reads what every installed package offers
    limit = settings.client_connection.requests_per_s
    burst = max(1, settings.client_connection.burst)
    async with KubeCluster(
        client,
        rng=new_rng(rng),
        component="koord-scheduler",
        rate=None if limit is None else Rate(per_s=limit, burst=burst),
    ) as cluster:
        scheduler = Scheduler(
            cluster,
            settings,
            clock=clock,
            seed=flags.seed,
            plugins=plugins,
            gates=gates,
            controller_filter=ControllerFilter.of(flags.controller_plugins, plugins),
            observing=observing(flags),
            auditing=auditing(flags),
            unschedulable_s_max=duration.parse(flags.pod_max_in_unschedulable_pods_duration),
            network_topology=flags.enable_network_topology_manager,
            instance=socket.gethostname(),
        )
        metrics = scheduler.metrics
        metrics.client.count(cluster.transport, client.server)
        component.add_to(metrics.registry, clock.now())
        component.add_gates(metrics.registry, gates)
        for name in flags.disabled_metrics:
            if not metrics.registry.remove(name):
                log.warning("unknown metric in --disabled-metrics", extra={"metric": name})
        await serve_and_schedule(scheduler, cluster, rng, flags, gates)


async def serve_and_schedule(
    scheduler: Scheduler, cluster: KubeCluster, rng: random.Random, flags: Flags, gates: FeatureGates
) -> None:
    """Serve HTTP, fill the caches, wait to lead if that is asked for, schedule."""
    elected = scheduler.config.leader_election
    lease = elected.resource_name
    barrier = caches.BarrierOptions(
        namespace=flags.sync_barrier_pod_namespace,
        name=flags.sync_barrier_pod_name,
        lease=lease,
        timeout_s=duration.parse(flags.sync_hard_timeout),
    )

    async def lead() -> None:
        scheduler.metrics.master.set(1, lease)
        try:
            if gates.is_on("SyncBarrier"):
                await caches.pass_barrier(cluster, scheduler.caches, scheduler.table, barrier)
            await scheduler.schedule()
        finally:
            scheduler.metrics.master.set(0, lease)

    async def fill_and_lead() -> None:
        async with scheduler.following():
            garbage.set_aside()
            await lead()

    if not elected.leader_elect:
        async with _served(scheduler, HttpOptions(), flags), scheduler.following():
            garbage.set_aside()
            await scheduler.schedule()
        return
    election = LeaderElector(
        cluster,
        serving.election_config(elected, rng),
        rng=new_rng(rng),
        on_slow_path=lambda: scheduler.metrics.slow_paths.inc(lease),
    )
    scheduler.may_write = lambda: election.may_act
    scheduler.metrics.master.set(0, lease)
    options = HttpOptions(
        is_leader=lambda: election.is_leader, leader=lambda: election.leader, lease=lambda: election.trouble
    )
    async with _served(scheduler, options, flags):
        if scheduler.config.delay_cache_until_active:
            await election.run(fill_and_lead)
            return
        async with scheduler.following():
            garbage.set_aside()
            await election.run(lead)


def _served(
    scheduler: Scheduler, options: HttpOptions, flags: Flags
) -> contextlib.AbstractAsyncContextManager[None]:
    """Serve the insecure and the secure port, where they are on."""
    options = msgspec.structs.replace(
        options, set_verbosity=logs.set_verbosity, profiling=scheduler.config.enable_profiling
    )
    application = functools.partial(http.application, scheduler, options)
    plain = [(flags.address, flags.port)]
    return serving.ports(flags, plain, application, scheduler.clock, "koord-scheduler")
