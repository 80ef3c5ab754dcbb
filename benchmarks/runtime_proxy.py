"""How much later a container is made, and other calls are answered, because the runtime proxy is in between.

A runtime that answers at once, the proxy and koordlet's hook server are processes of their own. Calls come at an even
pace, one to the runtime itself for each one through the proxy, so that a busy machine is in both. Goals at 50 calls a
second: less than 2 ms added to a creation at the 99th percentile, less than 1 ms to other calls.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from tests.runtime_proxy.endpoints import HOOKS, PROXY, REGISTRY, RUNTIME
from tests.runtime_proxy.fake_runtime import Caller, container_request, sandbox_config

from koordinator.host import protobuf_messages
from koordinator.host.cri_messages import ListContainersResponse, RunPodSandboxRequest

CALLS_PER_S = 50
CALLS = 500
"""Of each kind and way."""
LISTED = 100
"""Containers in an answer of ListContainers: what the runtime echoes here is as long as that."""
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_MODULES = {
    "runtime": ("tests.runtime_proxy.endpoints", "runtime", "{folder}"),
    "hooks": ("tests.runtime_proxy.endpoints", "hooks", "{folder}"),
    "proxy": (
        "koordinator.cli.runtime_proxy",
        f"--koord-runtimeproxy-endpoint={{folder}}/{PROXY}",
        f"--remote-runtime-service-endpoint={{folder}}/{RUNTIME}",
        f"--hook-server-directory={{folder}}/{REGISTRY}",
    ),
}


class Way(msgspec.Struct):
    """Calls that went one way, in ms."""

    caller: Caller
    took_ms: list[float] = []


@contextlib.contextmanager
def processes(folder: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Runtime, hook server and proxy, once all of them answer."""
    found: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, socket in (("runtime", RUNTIME), ("hooks", HOOKS), ("proxy", PROXY)):
            words = [word.format(folder=folder) for word in _MODULES[name]]
            found[name] = subprocess.Popen([sys.executable, "-m", *words], stderr=subprocess.DEVNULL)
            while not (folder / socket).exists():
                assert found[name].poll() is None, f"{name} ended"
                time.sleep(0.05)
        yield found
    finally:
        for each in found.values():
            each.terminate()
            each.wait(10)


def cpu_s(process: subprocess.Popen[bytes]) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


async def measure(
    name: str, method: str, request: bytes, folder: Path, proxy: subprocess.Popen[bytes]
) -> None:
    """Call both ways in turn, and print how long it took."""
    ways = {"runtime": Way(Caller(folder / RUNTIME)), "proxy": Way(Caller(folder / PROXY))}
    for way in ways.values():
        for _ in range(20):
            await way.caller.call(method, request)
    loop = asyncio.get_running_loop()
    begun_s, used_s = loop.time(), cpu_s(proxy)
    for index in range(CALLS):
        for offset, way in enumerate(ways.values()):
            await asyncio.sleep(begun_s + (index + offset / 2) / CALLS_PER_S - loop.time())
            called_s = time.perf_counter()
            await way.caller.call(method, request)
            way.took_ms.append((time.perf_counter() - called_s) * 1e3)
    used_ms = (cpu_s(proxy) - used_s) / CALLS * 1e3
    p50, p99 = (
        {way: float(np.percentile(each.took_ms, share)) for way, each in ways.items()} for share in (50, 99)
    )
    print(
        f"{name}: runtime p50 {p50['runtime']:.2f} p99 {p99['runtime']:.2f} ms,"
        f" through the proxy p50 {p50['proxy']:.2f} p99 {p99['proxy']:.2f} ms;"
        f" added p50 {p50['proxy'] - p50['runtime']:.2f} p99 {p99['proxy'] - p99['runtime']:.2f} ms;"
        f" the proxy's CPU {used_ms:.2f} ms per call"
    )
    for way in ways.values():
        await way.caller.channel.close()


async def run(folder: Path, proxy: subprocess.Popen[bytes]) -> None:
    """Make a sandbox, then measure."""
    encode = protobuf_messages.encode
    caller = Caller(folder / PROXY)
    await caller.call("RunPodSandbox", RunPodSandboxRequest(sandbox_config()))
    await caller.call("CreateContainer", container_request())
    listed = protobuf_messages.decode(
        ListContainersResponse, await caller.call("ListContainers", b"")
    ).containers
    await caller.channel.close()
    answer = encode(ListContainersResponse(listed * LISTED))
    await measure("CreateContainer with hooks", "CreateContainer", encode(container_request()), folder, proxy)
    await measure("a call without hooks, 1 byte", "ListImages", b"\0", folder, proxy)
    size = len(answer) // 1024
    await measure(f"a call without hooks, {size} KiB", "ListImages", answer, folder, proxy)
    memory_kib = next(
        line.split()[1]
        for line in Path(f"/proc/{proxy.pid}/status").read_text().splitlines()
        if line.startswith("VmRSS")
    )
    print(
        f"the proxy's memory {int(memory_kib) / 1024:.0f} MiB; load of the machine {os.getloadavg()[0]:.1f}"
    )


def main() -> None:
    """Measure all."""
    with tempfile.TemporaryDirectory(prefix="proxy-") as directory, processes(Path(directory)) as found:
        asyncio.run(run(Path(directory), found["proxy"]))


if __name__ == "__main__":
    main()
