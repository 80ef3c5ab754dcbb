"""`koordinator up --process-node`: the node of real processes, and the node agent beside it."""

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from koordinator.api import quantity
from koordinator.api.quantity import QuantityError
from koordinator.clock import Clock
from koordinator.host.files import HOST_MODE

if TYPE_CHECKING:
    from koordinator.local.processes.server import KubeletOptions

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


def options(
    folder: Path, parent: str, reserved: str, tokens: tuple[str, ...], clock: Clock
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
    return KubeletOptions(node=node, tls=tls.self_signed(folder / "tls", clock), tokens=tokens)


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
