"""Run `koord-yarn-copilot` once its command line is read."""

import contextlib
import logging
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from koordinator.api import duration
from koordinator.api.qos import KubeQoS
from koordinator.cli import component, flag_settings, logs, running
from koordinator.cli.flag_settings import FlagError
from koordinator.clock import SystemClock
from koordinator.host import cgroup_layout
from koordinator.host.cgroup_layout import Driver
from koordinator.host.errors import LayoutError
from koordinator.host.files import HostRoots
from koordinator.host.host import Host, open_host
from koordinator.host.kubelet import KubeletAccess, KubeletClient
from koordinator.yarn.copilot import http
from koordinator.yarn.copilot.agent import YarnCopilot
from koordinator.yarn.copilot.groups import ContainerGroups
from koordinator.yarn.copilot.memory_groups import MemoryGroups
from koordinator.yarn.copilot.node_manager import NodeManager

log = logging.getLogger(__name__)

READ_ONLY_PORT = 10_255
YARN_GROUP = "hadoop-yarn"


def start(asked: Mapping[str, Any]) -> None:
    """Answer for the node's YARN containers until a signal asks to stop. Raises: KoordinatorError, OSError."""
    logs.set_up_by_flags(asked, {})
    if asked["node_manager_endpoint"]:
        flag_settings.host_and_port("node-manager-endpoint", asked["node_manager_endpoint"])
    running.run(_main(asked))


async def _main(asked: Mapping[str, Any]) -> None:
    roots = msgspec.structs.replace(
        HostRoots.below(""), cgroup=asked["cgroup_root_dir"].rstrip("/"), proc=asked["proc_root_dir"]
    )
    host = open_host(roots, hot_files_max=0)
    path = _path(host, asked["yarn_container_cgroup_path"])
    log.info("YARN's containers are looked for", extra={"group": path, "cgroups": f"v{host.cgroups.version}"})
    manager = NodeManager(asked["node_manager_endpoint"], KubeletClient(_kubelet(asked)))
    agent = YarnCopilot(manager, ContainerGroups(host, path), SystemClock())
    memory = _memory(host, path, asked)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(manager.close)
        component.add_to(agent.metrics.registry, SystemClock().now())
        where = flag_settings.served_at("metrics-addr", asked["metrics_addr"])
        await stack.enter_async_context(component.all_served((where, http.metrics_application(agent))))
        socket = Path(asked["server_endpoint"])
        await stack.enter_async_context(http.served_on_socket(http.application(agent), socket))
        await agent.run(random.Random(), memory)


def _path(host: Host, stated: str) -> str:
    """Return YARN's group: as stated, else below the kubelet's best-effort pods. Raises: FlagError."""
    try:
        if stated:
            return cgroup_layout.join(stated)
    except LayoutError as error:
        raise FlagError("--yarn-container-cgroup-path", str(error)) from error
    driver = host.cgroups.driver() or Driver.CGROUPFS
    return cgroup_layout.join(cgroup_layout.class_dir(driver, KubeQoS.BEST_EFFORT), YARN_GROUP)


def _memory(host: Host, path: str, asked: Mapping[str, Any]) -> MemoryGroups | None:
    if not asked["sync_memory_cgroup"]:
        return None
    groups = MemoryGroups(host, path, max(duration.parse(asked["sync_cgroup_period"]), 1.0))
    if not groups.is_needed:
        log.warning("--sync-memory-cgroup has no effect: groups of cgroup v2 have memory and CPU together")
        return None
    return groups


def _kubelet(asked: Mapping[str, Any]) -> KubeletAccess:
    token = asked["kubelet_token_file"]
    return KubeletAccess(
        address=asked["kubelet_address"],
        port=asked["kubelet_port"],
        is_plain=asked["kubelet_port"] == READ_ONLY_PORT,
        token_file=token if Path(token).is_file() else "",
    )
