"""What is measured on the benchmark's node, each as a process of its own: bare reads, collectors, the whole agent."""

import asyncio
import contextlib
import os
import random
import sys
import time
from typing import Any, cast

import msgspec
import uvloop

from koordinator.api.core import Pod
from koordinator.api.slo import NodeSLOSpec
from koordinator.clock import SystemClock
from koordinator.host.files import HostRoots, raise_open_files_limit
from koordinator.host.host import open_host

HOT_FILES_MAX = 8_192
PROFILE_AFTER_S = 15.0
_OFF = ("SystemConfig", "TCNetworkQoS", "TerwayQoS", "PodResourcesProxy", "BECPUManager")
"""What would change the machine beyond our groups, wants a kubelet's socket, or excludes the CPU suppression."""
GATES = ",".join(("AllAlpha=true", "AllBeta=true", *(f"{gate}=false" for gate in _OFF)))


class RoleSpec(msgspec.Struct, frozen=True):
    """What a role is told."""

    role: str
    roots: HostRoots
    pods_url: str
    files: list[str] = []
    """Of the bare reads."""
    kubeconfig: str = ""
    directory: str = ""
    """For what the agent keeps: audit log, checkpoints."""
    gates: str = ""
    """More gates of the agent, such as `,Interference=false`."""
    profile: str = ""
    """Where to leave a profile; empty for none."""


def baseline(spec: RoleSpec) -> None:
    """Reads the files each second with kept descriptors, and nothing else."""
    raise_open_files_limit(len(spec.files) + 64)
    descriptors = [os.open(path, os.O_RDONLY) for path in spec.files]
    pread = os.pread
    while True:
        for fd in descriptors:
            with contextlib.suppress(OSError):  # its pod has ended
                pread(fd, 4096, 0)
        time.sleep(1.0)


async def collectors(spec: RoleSpec) -> None:
    """All collectors, with a pod list that is replaced each 10 s as the informer does."""
    import aiohttp

    from koordinator.host.cgroup_layout import Driver
    from koordinator.koordlet import gates as koordlet_gates
    from koordinator.koordlet import node_pods
    from koordinator.koordlet.audit import AuditLog
    from koordinator.koordlet.collect.all import CollectorRunner
    from koordinator.koordlet.collect.all import collectors as all_collectors
    from koordinator.koordlet.config import AgentConfig
    from koordinator.koordlet.metrics import AgentMetrics
    from koordinator.koordlet.parts import Shared
    from koordinator.koordlet.series import Readings, SeriesStore
    from koordinator.koordlet.states.node import with_defaults
    from koordinator.koordlet.view import NodeView
    from koordinator.koordlet.writing.executor import Executor
    from koordinator.koordlet.writing.restore_log import RestoreLog

    clock = SystemClock()
    host = open_host(spec.roots, HOT_FILES_MAX)
    view = NodeView(Driver.CGROUPFS)
    view.slo = with_defaults(NodeSLOSpec())
    store = SeriesStore()
    audit = AuditLog(clock)
    nobody = cast(Any, None)
    config = AgentConfig(node_name="bench")
    shared = Shared(
        config=config,
        gates=koordlet_gates.of(),
        clock=clock,
        rng=random.Random(0),
        host=host,
        view=view,
        store=store,
        readings=Readings(store, clock, config.collect.used_interval_s),
        executor=Executor(host.cgroups, clock, audit, RestoreLog()),
        audit=audit,
        metrics=AgentMetrics("bench", clock),
        cluster=nobody,
        events=nobody,
    )

    async def follow() -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                async with session.get(spec.pods_url) as response:
                    text = await response.read()
                pods = msgspec.convert(msgspec.json.decode(text)["items"], list[Pod])
                view.pods = {pod.metadata.uid: node_pods.record(pod, view.driver) for pod in pods}
                view.has_pods = True
                await asyncio.sleep(10.0)

    runner = CollectorRunner(all_collectors(shared), config.collect.used_interval_s)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follow())
        tasks.create_task(runner.run())


async def agent(spec: RoleSpec) -> None:
    """All of it, as the command runs it, with every strategy and hook that changes nothing but groups and processes."""
    from koordinator.cli import koordlet as command
    from koordinator.cli import koordlet_flags, koordlet_process, logs
    from koordinator.cluster import connect

    port = spec.pods_url.rsplit(":", 1)[1].split("/", 1)[0]
    flags = {
        "addr": "127.0.0.1:0",
        "feature-gates": f"{GATES}{spec.gates}",
        "kubelet-insecure-tls": "true",
        "kubelet-read-only-port": port,
        "disable-query-kubelet-config": "true",
        "only-evict-by-api": "true",
        "audit-log-dir": f"{spec.directory}/audit",
        "prediction-checkpoint-filepath": f"{spec.directory}/checkpoints",
        "pod-resources-proxy-path": f"{spec.directory}/pod-resources",
        "run-root-dir": f"{spec.directory}/run",
    }
    arguments = [f"--{name}={value}" for name, value in flags.items()]
    context = command.main.make_context("koordlet", arguments)
    environment = {"NODE_NAME": "bench", "agent_mode": "hostMode"}
    settings = koordlet_flags.of(context.params, environment)
    roots = msgspec.structs.replace(settings.roots, kubepods_below=spec.roots.kubepods_below)
    settings = msgspec.structs.replace(settings, roots=roots)
    logs.set_up(logs.level_of(0), as_json=False, modules={})
    await koordlet_process._main(settings, connect.load(kubeconfig_file=spec.kubeconfig))


def main() -> None:
    spec = msgspec.json.decode(sys.stdin.buffer.readline(), type=RoleSpec)
    if spec.role == "baseline":
        baseline(spec)
    elif spec.profile:
        _profiled(spec)
    else:
        uvloop.run(_role(spec))  # as the command does


async def _role(spec: RoleSpec) -> None:
    await {"collectors": collectors, "agent": agent}[spec.role](spec)


def _profiled(spec: RoleSpec) -> None:
    """CPU time by function once everything has started."""
    import cProfile
    import signal

    profile = cProfile.Profile(time.process_time)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(PROFILE_AFTER_S, profile.enable)
        task = asyncio.current_task()
        assert task is not None
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
        await _role(spec)

    try:
        uvloop.run(main())
    except asyncio.CancelledError:
        pass
    finally:
        profile.disable()
        profile.dump_stats(spec.profile)


if __name__ == "__main__":
    main()
