"""`koordinator up`: a whole cluster in this process; --process-node adds a node of real processes and its agent."""

import asyncio
import contextlib
import ctypes
import errno
import logging
import os
import re
import secrets
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from koordinator.api import quantity
from koordinator.api.quantity import QuantityError
from koordinator.cli import logs, options, running
from koordinator.cli.up_cards import cards
from koordinator.clock import Clock, SystemClock
from koordinator.host.files import HOST_MODE

if TYPE_CHECKING:  # read when a cluster is really started: --help answers at once
    from koordinator.descheduler.configuration import DeschedulerConfig
    from koordinator.local.cluster import ClusterOptions
    from koordinator.local.nodes.fleet import NodeShape
    from koordinator.local.processes.server import KubeletOptions

NODES = 10
NODES_MAX = 20_000
CPU_CORES_MAX = 1_024


@click.command(context_settings={"show_default": True})
@click.option(
    "--nodes",
    show_default="10, or 0 with --process-node",
    type=click.IntRange(0, NODES_MAX),
    help="Hollow nodes: simulated kubelets whose pods start, use CPU and end, without processes.",
)
@click.option("--node-cpu", default=32, type=click.IntRange(1, CPU_CORES_MAX), help="Cores of each node.")
@click.option("--node-memory-gib", default=128, type=click.IntRange(1, 65_536), help="Memory of each node.")
@cards
@click.option(
    "--kubeconfig",
    default="kubeconfig",
    type=options.FILE,
    help="The file for the kubeconfig, written once the cluster answers.",
)
@click.option(
    "--data-dir",
    type=options.FOLDER,
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
    "--host", default="127.0.0.1", help="Address to listen on; other than loopback needs --tls and a token."
)
@click.option(
    "--tls", is_flag=True, help="Serve HTTPS with a certificate of our own; the kubeconfig holds the CA."
)
@click.option(
    "--token",
    is_flag=True,
    help="Ask for a bearer token; a new one is written into the kubeconfig. Implies --tls.",
)
@click.option(
    "--token-file",
    type=options.EXISTING_FILE,
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
@options.text_option(
    "--process-node-reserved",
    words="The amounts that pods of this machine may not request, such as cpu=500m,memory=1Gi.",
    metavar="AMOUNTS",
)
@click.option(
    "--process-node-cri-socket",
    type=click.Path(path_type=Path),
    help="Socket at which the node of this machine speaks CRI, so that the runtime proxy and crictl can be tried.",
)
@options.text_option(
    "--manager-feature-gates",
    words="Feature gates of the manager, such as NodeMutatingWebhook=true,MultiQuotaTree=true.",
    metavar="GATES",
)
@click.option(
    "--without-manager",
    is_flag=True,
    help="Leave the manager out: run koord-manager as a process of its own (docs/webhooks.md).",
)
@click.option(
    "--scheduler-config",
    type=options.EXISTING_FILE,
    help="Configuration of the scheduler instead of the shipped one; koord-scheduler --write-config-to FILE writes "
    "the shipped one.",
)
@options.text_option(
    "--scheduler-feature-gates",
    words="Feature gates of the scheduler, such as MultiQuotaTree=true,EnableInlineBatchSchedule=true.",
    metavar="GATES",
)
@click.option(
    "--descheduler",
    is_flag=True,
    help="Run the descheduler, too; without --descheduler-config it carries out PodMigrationJobs only.",
)
@click.option(
    "--descheduler-config",
    type=options.EXISTING_FILE,
    help="Run the descheduler with this configuration (DeschedulerConfiguration; docs/descheduler.md).",
)
@click.option(
    "--enable-network-topology-manager",
    is_flag=True,
    help="Follow ClusterNetworkTopology `default` and place gangs by it (docs/network-topology.md).",
)
@click.option("--seed", default=0, help="Seed of everything that is drawn by chance.")
@click.option("-v", "--verbose", is_flag=True, help="Log what the components do.")
def up(**values: Any) -> None:
    """Run a whole cluster in this process until Ctrl-C: API server, controllers, the Koordinator scheduler
    and manager, and hollow nodes. No containers, and no root without --process-node.

    \b
    In another terminal:
      export KUBECONFIG=$PWD/kubeconfig
      kubectl get nodes
      kubectl create deployment web --image=web --replicas=5
    """
    asked = UpOptions(**values)
    if asked.without_manager and asked.manager_feature_gates:
        raise click.UsageError("--manager-feature-gates is for the manager that --without-manager leaves out")
    running_at = running.live_server(asked.kubeconfig)
    if running_at:
        raise click.ClickException(
            f"{asked.kubeconfig}: the cluster at {running_at} that this kubeconfig is for is running; stop it first "
            "(Ctrl-C where it runs), or give this one a file of its own with --kubeconfig"
        )
    logs.set_up(logging.INFO if asked.verbose else logging.ERROR)
    clock = SystemClock()
    if asked.process_node:
        check_privileges()
    try:
        _run(clock, _cluster_options(asked, clock), asked.kubeconfig)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        message = f"{error.strerror}; choose another with --port or --scheduler-port, 0 for a free one"
        raise click.ClickException(message) from error


class UpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The command line, parsed."""

    nodes: int | None
    node_cpu: int
    node_memory_gib: int
    gpus: tuple[int, str]
    rdma: int
    partitions: bool
    lend_gpus: float | None
    kubeconfig: Path
    data_dir: Path | None
    port: int
    scheduler_port: int
    host: str
    tls: bool
    token: bool
    token_file: Path | None
    process_node: bool
    process_node_parent: str
    process_node_reserved: str
    process_node_cri_socket: Path | None
    manager_feature_gates: str
    without_manager: bool
    scheduler_config: Path | None
    scheduler_feature_gates: str
    descheduler: bool
    descheduler_config: Path | None
    enable_network_topology_manager: bool
    seed: int
    verbose: bool


def _cluster_options(asked: UpOptions, clock: SystemClock) -> "ClusterOptions":
    """Return the cluster that is asked for, with its credentials. Raises: TokenFileError, HostError, FeatureGateError,
    ConfigError, OSError."""
    from koordinator.api.feature_gates import Component, FeatureGates
    from koordinator.cli import scheduler_process
    from koordinator.local.apiserver import auth
    from koordinator.local.apiserver import tls as certificates
    from koordinator.local.cluster import ClusterOptions
    from koordinator.local.nodes.lent_gpus import agents_of
    from koordinator.scheduler.config import config

    tokens = tuple(auth.read_token_file(asked.token_file)) if asked.token_file is not None else ()
    # Without a token any user of this machine could run commands as root on a process node.
    if asked.token or (asked.process_node and not tokens):
        tokens = (auth.StaticToken(secrets.token_urlsafe(24)), *tokens)
    process_node = None
    if asked.process_node:
        process_node = node_options(
            _beside(asked, "node"),
            asked.process_node_parent,
            asked.process_node_reserved,
            tuple(each.secret for each in tokens),
            clock,
            asked.process_node_cri_socket,
        )
    is_secure = asked.tls or bool(tokens)  # kubectl sends tokens over TLS only
    written = asked.scheduler_config
    return ClusterOptions(
        nodes=_node_shapes(asked),
        agents=agents_of(asked.lend_gpus),
        host=asked.host,
        port=asked.port,
        data_dir=asked.data_dir,
        tokens=tokens,
        tls=certificates.self_signed(_beside(asked, "tls"), clock, [asked.host]) if is_secure else None,
        hosts=(asked.host,),
        process_node=process_node,
        scheduler_port=asked.scheduler_port,
        manager=not asked.without_manager,
        manager_gates=FeatureGates.of(Component.MANAGER, asked.manager_feature_gates),
        scheduler=config.read(written) if written is not None else None,
        scheduler_gates=scheduler_process.read_gates(asked.scheduler_feature_gates),
        descheduler=_descheduler(asked),
        network_topology=asked.enable_network_topology_manager,
        seed=asked.seed,
    )


def _descheduler(asked: UpOptions) -> "DeschedulerConfig | None":
    """Return the descheduler's configuration, None to run none. Raises: DeschedulerConfigError, OSError."""
    if not asked.descheduler and asked.descheduler_config is None:
        return None
    from koordinator.descheduler import configuration
    from koordinator.descheduler.plugins.built_in import installed_plugins

    if asked.descheduler_config is None:
        return configuration.DeschedulerConfig()
    return configuration.read(asked.descheduler_config, installed_plugins())


def _node_shapes(asked: UpOptions) -> "tuple[NodeShape, ...]":
    from koordinator.local.nodes.fleet import alike

    count = (0 if asked.process_node else NODES) if asked.nodes is None else asked.nodes
    gpus, model = asked.gpus
    return alike(
        count,
        asked.node_cpu,
        asked.node_memory_gib,
        gpus=gpus,
        gpu_model=model,
        rdma_cards=asked.rdma,
        has_partitions=asked.partitions,
    )


def _beside(asked: UpOptions, what: str) -> Path:
    """Certificates (`tls`), or logs and volumes of pods on this machine (`node`), live beside the data, or beside the
    kubeconfig of a cluster that keeps none."""
    if asked.data_dir is not None:
        return asked.data_dir / what
    return asked.kubeconfig.absolute().with_suffix(f".{what}")


def _run(clock: SystemClock, options: "ClusterOptions", kubeconfig: Path) -> None:
    from koordinator.cluster import garbage
    from koordinator.local.cluster import LocalCluster

    async def main() -> None:
        cluster = LocalCluster(clock, options)
        everything = asyncio.create_task(cluster.run(), name="cluster")
        ready = asyncio.create_task(cluster.up(), name="ready")
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopping.set)
        stop = asyncio.create_task(stopping.wait(), name="stop")
        await asyncio.wait((everything, ready, stop), return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        agent: asyncio.Task[None] | None = None
        if ready.done() and not everything.done():
            cluster.write_kubeconfig(kubeconfig)
            nodes = len(options.nodes) + (options.process_node is not None)
            _greet(cluster.server.url, kubeconfig, nodes)
            if options.process_node is not None:
                agent = start_agent(options.process_node, kubeconfig)
        with garbage.collected_rarely():
            tidying = asyncio.create_task(garbage.giving_back(), name="memory given back")
            await asyncio.wait((everything, stop), return_when=asyncio.FIRST_COMPLETED)
            tidying.cancel()
        if agent is not None:  # before its API server goes
            agent.cancel()
            await asyncio.gather(agent, return_exceptions=True)
        everything.cancel()
        stop.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await everything
        click.echo("Stopped.", err=True)

    running.run_to_its_end(main())


def _greet(url: str, kubeconfig: Path, nodes: int) -> None:
    size = "1 node" if nodes == 1 else f"{nodes} nodes"
    click.secho(
        f"A cluster of {size} is up at {url}. Ctrl-C stops it. In another terminal:", bold=True, err=True
    )
    click.echo(f"  export KUBECONFIG={kubeconfig.absolute()}")
    click.echo("  kubectl get nodes")
    click.echo("  koordinator explain pod NAME    # why a pod is pending, or where it is")
    click.echo("  koordinator doctor              # what is wrong with the installation, if anything")
    sys.stdout.flush()


_NOT_IN_NAMES = re.compile(r"[^a-z0-9.-]+")
_NAME_CHARS_MAX = 63
_RESTART_S, _RESTART_S_MAX = 1.0, 30.0
_STOP_S = 5.0
_HOST = "127.0.0.1"
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def check_privileges() -> None:
    """Raises: UsageError without root."""
    if os.geteuid() != 0:
        raise click.UsageError("--process-node makes cgroups and so needs root: run it with sudo")


def node_options(
    folder: Path,
    parent: str,
    reserved: str,
    tokens: tuple[str, ...],
    clock: Clock,
    cri_socket: Path | None = None,
) -> "KubeletOptions":
    """Return the options of the node. Raises: UsageError (reserved amounts); OSError (certificates)."""
    from koordinator.local.apiserver import tls
    from koordinator.local.processes.process_node import ProcessNodeConfig
    from koordinator.local.processes.server import KubeletOptions

    amounts = _reserved(reserved)
    node = ProcessNodeConfig(
        name=node_name(),
        folder=folder / "node",
        parent=parent,
        reserved_milli=amounts["cpu"],
        reserved_bytes=amounts["memory"],
    )
    return KubeletOptions(
        node=node, tls=tls.self_signed(folder / "tls", clock), tokens=tokens, cri_socket=cri_socket
    )


def node_name() -> str:
    """This machine's name as a node's: lower case, nothing but letters, digits, dots and dashes."""
    name = _NOT_IN_NAMES.sub("-", socket.gethostname().lower())[:_NAME_CHARS_MAX].strip("-.")
    return name or "process-node"


def _reserved(text: str) -> dict[str, int]:
    """`cpu=500m,memory=1Gi`, as the kubelet's --system-reserved. Raises: UsageError."""
    amounts = {"cpu": 0, "memory": 0}
    for part in filter(None, text.split(",")):
        name, _, amount = part.partition("=")
        if name not in amounts:
            raise click.UsageError(f"--process-node-reserved: {part!r}: expected cpu=AMOUNT or memory=AMOUNT")
        try:
            amounts[name] = quantity.milli(amount) if name == "cpu" else quantity.value(amount)
        except QuantityError as error:
            raise click.UsageError(f"--process-node-reserved: {part!r}: {error}") from error
    return amounts


def start_agent(options: "KubeletOptions", kubeconfig: Path) -> "asyncio.Task[None] | None":
    """Run the node agent beside the node, as a process of its own that knows no more than on any other node."""
    node = options.node
    if node.parent:
        click.echo(
            "The node agent looks for kubepods in the root group, so it is not started here.", err=True
        )
        return None
    folder = node.folder.parent / "agent"
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    arguments = [
        *("-m", "koordinator.cli.koordlet", f"--kubeconfig={kubeconfig.absolute()}"),
        *(f"--addr={_HOST}:{port}", f"--prediction-checkpoint-filepath={folder / 'checkpoints'}"),
        *(f"--audit-log-dir={folder / 'audit'}", "--only-evict-by-api=true", "--restore-on-exit=true"),
    ]
    environment = {"NODE_NAME": node.name, "agent_mode": HOST_MODE}
    log_file = folder / "koordlet.log"
    click.echo(
        f"The node agent of {node.name} says what it does in {log_file}; its metrics: http://{_HOST}:{port}/metrics"
    )
    return asyncio.create_task(_agent(arguments, environment, log_file), name="node agent")


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind((_HOST, 0))
        port: int = taken.getsockname()[1]
        return port


async def _agent(arguments: list[str], environment: dict[str, str], log_file: Path) -> None:
    """Keep a node agent running until cancelled; what it says goes to a file."""
    pause_s = _RESTART_S
    loop = asyncio.get_running_loop()
    with log_file.open("ab", buffering=0) as log:
        while True:
            begun_s = loop.time()
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                env={**os.environ, **environment},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_us,
            )
            try:
                code = await process.wait()
            except asyncio.CancelledError:
                await _end(process)
                raise
            pause_s = (
                _RESTART_S if loop.time() - begun_s > _RESTART_S_MAX else min(2 * pause_s, _RESTART_S_MAX)
            )
            click.echo(
                f"The node agent ended with {code} (see {log_file}); it is started again in {pause_s:g} s.",
                err=True,
            )
            await asyncio.sleep(pause_s)


def _end_with_us() -> None:
    """In the agent, before it begins: when we are killed, the kernel ends it, so that no two ever run."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), _STOP_S)
    except TimeoutError:
        process.kill()
        await process.wait()
