"""Find out how the kubelet names its groups: by what is there, by the kubelet's process, or by asking it.

Source: behaviour/koordlet-observe 3.1.
"""

import asyncio
import logging

from koordinator.host import kubelet_files
from koordinator.host.cgroup_layout import Driver
from koordinator.host.host import Host
from koordinator.host.kubelet import KubeletError
from koordinator.koordlet.parts import Kubelet, Shared

log = logging.getLogger(__name__)

RETRY_S = 10.0
WAIT_S = 60.0
FALLBACK = Driver.SYSTEMD


async def settle(shared: Shared) -> None:
    """Find the driver and put it into the view; without any sign within a minute it is systemd's."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + WAIT_S
    while True:
        found = await find(shared.host, None if shared.config.kubelet.no_config else shared.kubelet)
        if found is not None or loop.time() >= until_s:
            break
        log.info("cgroup driver of the kubelet not found yet", extra={"again_s": RETRY_S})
        await asyncio.sleep(RETRY_S)
    shared.view.driver = found or FALLBACK
    if found is None:
        log.warning("cgroup driver of the kubelet not found: taken for systemd", extra={"waited_s": WAIT_S})


async def find(host: Host, kubelet: Kubelet | None) -> Driver | None:
    """Return the driver by directories, by the kubelet's command line and file, else as the kubelet tells; None: no
    sign.
    """
    found = kubelet_files.cgroup_driver(host.cgroups, host.processes, host.roots)
    if found.driver is not None:
        log.info("cgroup driver found", extra={"driver": found.driver, "by": found.source})
        return found.driver
    if kubelet is None:
        return None
    try:
        told = (await kubelet.config()).get("cgroupDriver") or Driver.CGROUPFS
    except KubeletError as error:
        log.debug("kubelet did not tell its cgroup driver", extra={"problem": str(error)})
        return None
    if told not in (Driver.CGROUPFS, Driver.SYSTEMD):
        return None
    log.info("cgroup driver found", extra={"driver": told, "by": "the kubelet's configuration"})
    return Driver(told)


def corrected(host: Host, driver: Driver) -> Driver:
    """Return the driver by the directories that there are now, the known one while there are none: a guess may be
    wrong.
    """
    return host.cgroups.driver() or driver
