"""Serve HTTP in the process of every component, and tell what it costs under the names that every Prometheus client
uses."""

import contextlib
import logging
import os
import random
import resource
import ssl
import sys
from collections.abc import AsyncIterator, Callable

from aiohttp import web

from koordinator import __version__
from koordinator.api.feature_gates import FeatureGates, FeatureStage
from koordinator.cluster.backoff import Rate, new_rng
from koordinator.cluster.config import ClientConfig
from koordinator.cluster.kube import KubeCluster
from koordinator.prometheus import Gauge, GaugeReading, MetricsRegistry

log = logging.getLogger(__name__)


PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def add_to(registry: MetricsRegistry, started_s: float) -> None:
    """`started_s`: seconds since 1970."""

    def add(name: str, description: str, read: Callable[[], float], kind: str = "gauge") -> None:
        registry.add(GaugeReading(f"process_{name}", description, (), lambda: {(): read()}, kind=kind))

    def cpu_s() -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return round(used.ru_utime + used.ru_stime, 3)

    add("cpu_seconds_total", "Total user and system CPU time in seconds.", cpu_s, "counter")
    add("resident_memory_bytes", "Resident memory size in bytes.", lambda: _memory_bytes()[1])
    add("virtual_memory_bytes", "Virtual memory size in bytes.", lambda: _memory_bytes()[0])
    if os.path.isdir("/proc/self/fd"):
        add("open_fds", "Number of open file descriptors.", lambda: len(os.listdir("/proc/self/fd")))
    add(
        "max_fds",
        "Maximum number of open file descriptors.",
        lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )
    add("start_time_seconds", "Start time of the process since unix epoch in seconds.", lambda: started_s)


def add_gates(registry: MetricsRegistry, gates: FeatureGates) -> None:
    """Add a metric for each feature gate, and one for the version."""
    # As upstream: features that are generally available have no stage.
    stages = {name: "" if stage is FeatureStage.GA else stage.name for name, stage in gates.stages.items()}
    states = {(name, stages[name]): float(is_on) for name, is_on in gates.states.items()}
    build = Gauge(
        "kubernetes_build_info",
        "[ALPHA] A metric with a constant '1' value labeled by version and platform.",
        ("git_version", "platform"),
    )
    build.set(1, __version__, f"{sys.platform}/python{sys.version_info.major}.{sys.version_info.minor}")
    registry.add(
        build,
        GaugeReading(
            "kubernetes_feature_enabled",
            "[BETA] This metric records the data about the stage and enablement of a k8s feature.",
            ("name", "stage"),
            lambda: states,
        ),
    )


def _memory_bytes() -> tuple[int, int]:
    """(virtual, resident); zeros where there is no /proc."""
    try:
        with open("/proc/self/statm") as file:
            total, resident, *_ = file.read().split()
    except OSError:
        return 0, 0
    return int(total) * PAGE_BYTES, int(resident) * PAGE_BYTES


@contextlib.asynccontextmanager
async def clients(
    config: ClientConfig, rng: random.Random, user_agent: str, rate: Rate | None
) -> AsyncIterator[tuple[KubeCluster, KubeCluster]]:
    """Connect twice: a lease has a client of its own, since behind a thousand writes that wait for their turn (`rate`)
    it would be lost."""
    async with (
        KubeCluster(config, rng=new_rng(rng), component=user_agent, rate=rate) as cluster,
        KubeCluster(config, rng=new_rng(rng), component=user_agent) as lease_cluster,
    ):
        yield cluster, lease_cluster


Served = tuple[tuple[str, int] | None, web.Application]
"""Address and port, None where it is not asked for."""


@contextlib.asynccontextmanager
async def all_served(*apps: Served) -> AsyncIterator[None]:
    """Serve each where it is asked for; an empty address is all of the machine. Raises: OSError for one that is
    taken."""
    async with contextlib.AsyncExitStack() as stack:
        for where, app in apps:
            if where is not None:
                address, port = where
                await stack.enter_async_context(served(app, address or None, port))
        yield


@contextlib.asynccontextmanager
async def served(
    app: web.Application,
    address: str | None,
    port: int,
    tls: ssl.SSLContext | None = None,
    *,
    share_address: bool = False,
    share_port: bool = False,
) -> AsyncIterator[int]:
    """Serve inside; the port. Raises: OSError when the address is taken."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, auto_decompress=False)
    await runner.setup()
    try:
        site = web.TCPSite(
            runner,
            address,
            port,
            ssl_context=tls,
            reuse_address=share_address or None,
            reuse_port=share_port or None,
        )
        await site.start()
        bound: int = runner.addresses[0][1]
        log.info("serving HTTP", extra={"address": address, "port": bound, "tls": tls is not None})
        yield bound
    finally:
        await runner.cleanup()
