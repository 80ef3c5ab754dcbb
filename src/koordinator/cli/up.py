"""`koordinator up`: a whole cluster in this process."""

import asyncio
import contextlib
import logging
import secrets
import signal
import sys
from pathlib import Path

import click

from koordinator.cli import logs
from koordinator.cli import process_node as process_nodes
from koordinator.clock import SystemClock

NODES = 10
NODES_MAX = 20_000
CPU_CORES_MAX = 1_024


@click.command()
@click.option(
    "--nodes",
    show_default="10, or 0 with --process-node",
    type=click.IntRange(0, NODES_MAX),
    help="Hollow nodes: simulated kubelets whose pods start, use CPU and end, without processes.",
)
@click.option(
    "--node-cpu",
    default=32,
    show_default=True,
    type=click.IntRange(1, CPU_CORES_MAX),
    help="Cores of each node.",
)
@click.option(
    "--node-memory-gib",
    default=128,
    show_default=True,
    type=click.IntRange(1, 65_536),
    help="Memory of each node.",
)
@click.option(
    "--kubeconfig",
    default="kubeconfig",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where to write the kubeconfig once the cluster answers.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep all objects here (SQLite); without it they are gone when the cluster stops.",
)
@click.option(
    "--port",
    default=0,
    show_default="a free one",
    type=click.IntRange(0, 65_535),
    help="Port of the API server.",
)
@click.option(
    "--scheduler-port",
    default=0,
    show_default="a free one",
    type=click.IntRange(0, 65_535),
    help="Port of the scheduler's own API (health, metrics, explanations), on 127.0.0.1 only.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; other than loopback needs --tls and a token.",
)
@click.option(
    "--tls", is_flag=True, help="Serve HTTPS with a certificate of our own; the kubeconfig holds the CA."
)
@click.option(
    "--token", is_flag=True, help="Ask for a bearer token; a new one is written into the kubeconfig."
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Accept the tokens of this file (lines: token,user,uid,groups); the kubeconfig gets the first.",
)
@click.option(
    "--process-node",
    is_flag=True,
    help="Make this machine a node whose pods are real processes in real cgroups, with the node agent beside it. "
    "Needs root; implies --tls and --token.",
)
@click.option(
    "--process-node-parent",
    default="",
    show_default="the root group",
    help="Cgroup below which kubepods is made.",
)
@click.option(
    "--process-node-reserved",
    default="",
    metavar="AMOUNTS",
    help="What pods of this machine may not request, such as cpu=500m,memory=1Gi.",
)
@click.option(
    "--manager-feature-gates",
    default="",
    metavar="GATES",
    help="Feature gates of the manager, such as NodeMutatingWebhook=true,MultiQuotaTree=true.",
)
@click.option(
    "--without-manager",
    is_flag=True,
    help="Leave the manager out: run koord-manager as a process of its own (docs/webhooks.md).",
)
@click.option(
    "--scheduler-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Configuration of the scheduler instead of the shipped one; koord-scheduler --write-config-to FILE writes "
    "the shipped one.",
)
@click.option(
    "--scheduler-feature-gates",
    default="",
    metavar="GATES",
    help="Feature gates of the scheduler, such as MultiQuotaTree=true,EnableInlineBatchSchedule=true.",
)
@click.option(
    "--enable-network-topology-manager",
    is_flag=True,
    help="Follow ClusterNetworkTopology `default` and place gangs by it (docs/network-topology.md).",
)
@click.option("--seed", default=0, show_default=True, help="Seed of everything that is drawn by chance.")
@click.option("-v", "--verbose", is_flag=True, help="Log what the components do.")
def up(
    nodes: int | None,
    node_cpu: int,
    node_memory_gib: int,
    kubeconfig: Path,
    data_dir: Path | None,
    port: int,
    scheduler_port: int,
    host: str,
    tls: bool,
    token: bool,
    token_file: Path | None,
    process_node: bool,
    process_node_parent: str,
    process_node_reserved: str,
    manager_feature_gates: str,
    without_manager: bool,
    scheduler_config: Path | None,
    scheduler_feature_gates: str,
    enable_network_topology_manager: bool,
    seed: int,
    verbose: bool,
) -> None:
    """Run a whole cluster in this process until Ctrl-C: API server, controllers, the Koordinator scheduler
    and manager, and hollow nodes. No containers, and no root without --process-node.

    \b
    In another terminal:
      export KUBECONFIG=$PWD/kubeconfig
      kubectl get nodes
      kubectl create deployment web --image=web --replicas=5
    """
    from koordinator.api.feature_gates import Component, FeatureGateError, FeatureGates
    from koordinator.cli import scheduler
    from koordinator.host.errors import HostError
    from koordinator.local import cluster as local
    from koordinator.local.apiserver import auth
    from koordinator.local.apiserver import tls as certificates
    from koordinator.local.apiserver.server import UnsafeBind
    from koordinator.local.nodes.fleet import NodeShape
    from koordinator.local.persistence import StorageError
    from koordinator.scheduler import config

    if without_manager and manager_feature_gates:
        raise click.UsageError("--manager-feature-gates is for the manager that --without-manager leaves out")
    logs.set_up(logging.INFO if verbose else logging.ERROR)
    clock = SystemClock()
    nodes = (0 if process_node else NODES) if nodes is None else nodes
    if process_node:
        process_nodes.check_privileges()
        tls = True  # kubectl sends tokens over TLS only
    width = len(str(max(nodes - 1, 0)))
    memory_bytes = node_memory_gib * 2**30
    try:
        tokens = tuple(auth.read_token_file(token_file)) if token_file is not None else ()
        if token or (process_node and not tokens):  # else any user of this machine could run commands as root
            tokens = (auth.Token(secrets.token_urlsafe(24)), *tokens)
        secure = certificates.self_signed(_tls_dir(data_dir, kubeconfig), clock, [host]) if tls else None
        folder = _node_dir(data_dir, kubeconfig)
        options = local.ClusterOptions(
            nodes=tuple(
                NodeShape(
                    name=f"node-{number:0{width}d}",
                    cpu_milli=node_cpu * 1000,
                    memory_bytes=memory_bytes,
                    reserved_bytes=min(2 * 2**30, memory_bytes // 16),
                    zone=f"zone-{'abc'[number % 3]}",
                )
                for number in range(nodes)
            ),
            host=host,
            port=port,
            data_dir=data_dir,
            tokens=tokens,
            tls=secure,
            hosts=(host,),
            process_node=process_nodes.options(
                folder,
                process_node_parent,
                process_node_reserved,
                tuple(each.secret for each in tokens),
                clock,
            )
            if process_node
            else None,
            scheduler_port=scheduler_port,
            manager=not without_manager,
            manager_gates=FeatureGates.of(Component.MANAGER, manager_feature_gates),
            scheduler=config.parse(scheduler_config.read_bytes()) if scheduler_config is not None else None,
            scheduler_gates=scheduler.read_gates(scheduler_feature_gates),
            network_topology=enable_network_topology_manager,
            seed=seed,
        )
        _run(clock, options, kubeconfig)
    except (
        UnsafeBind,
        StorageError,
        auth.TokenFileError,
        HostError,
        FeatureGateError,
        config.ConfigError,
    ) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        hint = "; choose another with --port, or 0 for a free one" if error.errno in (98, 48) else ""
        raise click.ClickException(f"{error}{hint}") from error


def _tls_dir(data_dir: Path | None, kubeconfig: Path) -> Path:
    """Certificates live beside the data, or beside the kubeconfig of a cluster that keeps none."""
    return (data_dir / "tls") if data_dir is not None else kubeconfig.absolute().with_suffix(".tls")


def _node_dir(data_dir: Path | None, kubeconfig: Path) -> Path:
    """Logs and volumes of pods on this machine, beside the data or the kubeconfig."""
    return (data_dir / "node") if data_dir is not None else kubeconfig.absolute().with_suffix(".node")


def _run(clock: SystemClock, options: "local.ClusterOptions", kubeconfig: Path) -> None:  # type: ignore[name-defined]  # noqa: F821
    from koordinator.cluster import garbage
    from koordinator.local.cluster import LocalCluster

    async def main() -> None:
        cluster = LocalCluster(clock, options)
        running = asyncio.create_task(cluster.run(), name="cluster")
        ready = asyncio.create_task(cluster.ready.wait(), name="ready")
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopping.set)
        stop = asyncio.create_task(stopping.wait(), name="stop")
        await asyncio.wait((running, ready, stop), return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        agent: asyncio.Task[None] | None = None
        if ready.done() and not running.done():
            cluster.write_kubeconfig(kubeconfig)
            nodes = len(options.nodes) + (options.process_node is not None)
            _greet(cluster.server.url, kubeconfig, nodes)
            if options.process_node is not None:
                agent = process_nodes.start_agent(options.process_node, kubeconfig)
        with garbage.collected_rarely():
            await asyncio.wait((running, stop), return_when=asyncio.FIRST_COMPLETED)
        await _ended(agent)  # before its API server goes
        running.cancel()
        stop.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        click.echo("Stopped.", err=True)

    try:
        import uvloop

        uvloop.run(main())
    except ImportError:
        asyncio.run(main())


async def _ended(task: "asyncio.Task[None] | None") -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _greet(url: str, kubeconfig: Path, nodes: int) -> None:
    size = "1 node" if nodes == 1 else f"{nodes} nodes"
    click.secho(
        f"A cluster of {size} is up at {url}. Ctrl-C stops it. In another terminal:",
        bold=True,
        err=True,
    )
    click.echo(f"  export KUBECONFIG={kubeconfig.absolute()}")
    click.echo("  kubectl get nodes")
    click.echo("  koordinator explain pod NAME    # why a pod is pending, or where it is")
    click.echo("  koordinator doctor              # what is wrong with the installation, if anything")
    sys.stdout.flush()
