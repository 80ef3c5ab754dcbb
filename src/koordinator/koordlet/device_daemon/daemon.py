"""`koord-device-daemon`: writes what vendors' tools tell of accelerators into a file that the node agent reads.

It is a process of its own since the tools live on the host, not in the agent's container.
Source: behaviour/koordlet-observe 10.6.
"""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence

import msgspec

from koordinator.api.errors import KoordinatorError
from koordinator.host import sysfs
from koordinator.host.errors import ContentError
from koordinator.host.files import Files
from koordinator.koordlet.device_daemon import vendors
from koordinator.koordlet.device_daemon.vendors import PCIDevice, ToolError, Vendor
from koordinator.koordlet.report.xpu import XPUDevice

log = logging.getLogger(__name__)

OUTPUT = "/var/run/koordlet/xpu-device-infos/ic-device"
HOST_ROOT = "/hostfs"
SLEEP_S = 900.0
TOOL_S_MAX = 60.0
"""A driver that hangs hangs its tool; asking all chips of a node takes seconds."""
OUTPUT_BYTES_MAX = 4 * 1024 * 1024


class DaemonConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the daemon."""

    oneshot: bool = False
    sleep_s: float = SLEEP_S
    output: str = OUTPUT
    """Path of the file; empty: standard output, and no file."""
    host_root: str = HOST_ROOT
    """Directory on which the host's file system is mounted; `/` runs tools without changing the root."""


class DeviceDaemon:
    """Cycles until cancelled. `configure` is asked at the start and again after `reload`."""

    def __init__(self, configure: Callable[[], DaemonConfig]) -> None:
        self._configure = configure
        self._files = Files()
        self._config = configure()
        self._woken = asyncio.Event()
        self._found: dict[str, list[XPUDevice]] = {}
        self._written = ""

    def reload(self) -> None:
        """Read the configuration again and have a cycle now."""
        try:
            config = self._configure()
        except KoordinatorError as error:
            log.warning("configuration not reloaded", extra={"problem": str(error)})
        else:
            if config.output != self._config.output:
                self._remove()
            self._config = config
        self._woken.set()

    async def run(self) -> None:
        """Write the file in each cycle; it is removed at the end, unless there was only one cycle."""
        try:
            while True:
                await self.cycle()
                if self._config.oneshot:
                    return
                self._woken.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._config.sleep_s):
                        await self._woken.wait()
        finally:
            if not self._config.oneshot:
                self._remove()

    async def cycle(self) -> None:
        """Look at the bus, ask the tools of the vendors that are there, write what they tell."""
        devices = self.pci_devices()
        for vendor in vendors.VENDORS:
            cards = vendor.cards(devices)
            if not cards:
                self._found.pop(vendor.name, None)
                continue
            await self._ask(vendor, cards)
        everything = [xpu for found in self._found.values() for xpu in found]
        self._write(msgspec.json.encode(everything).decode())

    def pci_devices(self) -> list[PCIDevice]:
        """Return all devices on the bus, by address."""
        base = f"{self._config.host_root.rstrip('/')}/sys/bus/pci/devices"
        return [
            PCIDevice(
                bus_id=name.lower(),
                vendor=self._hex(f"{base}/{name}/vendor"),
                product=self._hex(f"{base}/{name}/device"),
                numa_node=self._numa_node(f"{base}/{name}/numa_node"),
                root_complex=sysfs.root_complex(self._files.link(f"{base}/{name}") or ""),
            )
            for name in self._files.names(base) or ()
        ]

    async def _ask(self, vendor: Vendor, cards: list[PCIDevice]) -> None:
        """Run the vendor's tool; if it fails, keep its last values."""
        try:
            self._found[vendor.name] = await vendor.read(self._run_tool, cards)
        except ToolError as error:
            log.warning("%s cards keep their last values", vendor.name, extra={"problem": str(error)})

    async def _run_tool(self, command: Sequence[str]) -> str:
        root = self._config.host_root.rstrip("/")
        full = ("chroot", root, *command) if root else tuple(command)
        try:
            process = await asyncio.create_subprocess_exec(
                *full,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                limit=OUTPUT_BYTES_MAX,
            )
        except OSError as error:
            raise ToolError(command[0], f"cannot be started: {error.strerror}") from error
        try:
            async with asyncio.timeout(TOOL_S_MAX):
                output, _ = await process.communicate()
        except TimeoutError as error:
            raise ToolError(command[0], f"no answer within {TOOL_S_MAX:.0f} s") from error
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        text = output.decode(errors="replace")
        if process.returncode:
            raise ToolError(" ".join(command), f"exit status {process.returncode}: {text.strip()[-200:]}")
        return text

    def _write(self, text: str) -> None:
        """Replace the file as a whole; the agent does not look at hidden ones."""
        path = self._config.output
        if not path:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
            return
        if text == self._written and self._files.exists(path):
            return
        temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.tmp")
        try:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(temporary, path)
        except OSError as error:
            log.warning("devices not written", extra={"path": path, "problem": str(error)})
            return
        self._written = text
        log.info("devices written", extra={"path": path, "devices": sum(map(len, self._found.values()))})

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._config.output)
        self._written = ""

    def _hex(self, path: str) -> str:
        return (self._files.read(path) or "").strip().lower().removeprefix("0x")

    def _numa_node(self, path: str) -> int:
        try:
            return sysfs.numa_node((self._files.read(path) or "-1").strip())
        except ContentError:
            return 0
