"""Accelerators of other makers, as small daemons describe them in files. Source: behaviour/koordlet-observe 10.3."""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from koordinator.api import decode
from koordinator.api.errors import ProtocolError
from koordinator.api.meta import ViewPart
from koordinator.api.quantity import ResourceList
from koordinator.host.files import Files

log = logging.getLogger(__name__)


class P2PLink(ViewPart, frozen=True, kw_only=True):
    """Cards that are linked with this one; `peer_minor` is a list with commas."""

    peer_minor: str = ""
    type: str = ""


class XPUTopology(ViewPart, frozen=True, kw_only=True):
    """The place where the card is plugged in, and what it is linked with."""

    p2p_links: list[P2PLink] | None = None
    must_honor_partition: bool = False
    socket_id: str = ""
    node_id: str = ""
    pcie_id: str = ""
    bus_id: str = ""


class XPUStatus(ViewPart, frozen=True, kw_only=True):
    """Health of a card."""

    healthy: bool = False
    err_code: str = ""
    err_message: str = ""


class XPUDevice(ViewPart, frozen=True, kw_only=True):
    """One card."""

    vendor: str = ""
    model: str = ""
    uuid: str = ""
    minor: str = ""
    resources: ResourceList = {}
    topology: XPUTopology | None = None
    status: XPUStatus | None = None


_DEVICES: Any = list[XPUDevice] | None


def parse_files(texts: Mapping[str, str]) -> list[XPUDevice]:
    """Return the cards in all files, by file name; a null is a field that is not set, as writers in Go leave lists.

    Raises: ProtocolError naming the file that is malformed.
    """
    found: list[XPUDevice] = []
    for name in sorted(texts):
        try:
            found += decode.from_json(texts[name], _DEVICES) or []
        except msgspec.MsgspecError as error:
            raise ProtocolError(name, "devices", str(error)) from error
    return found


class XPUFiles:
    """The files of one directory, parsed again when their text changes.

    A file that cannot be read costs only updates: its cards keep their last values, and those of other files
    are reported all the same.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory.rstrip("/")
        self._texts: dict[str, str] = {}
        self._devices: dict[str, list[XPUDevice]] = {}
        self._reported: dict[str, str] = {}

    def read(self) -> list[XPUDevice]:
        """Return all cards, by file name; a directory that does not exist has none. Hidden files are being written."""
        directories = self._files.directories(self._directory) or ()
        names = [
            name
            for name in self._files.names(self._directory) or ()
            if name not in directories and not name.startswith(".")
        ]
        for gone in self._texts.keys() - set(names):
            del self._texts[gone]
            self._devices.pop(gone, None)
        found: list[XPUDevice] = []
        for name in names:
            self._read_one(name)
            found += self._devices.get(name, [])
        return found

    def _read_one(self, name: str) -> None:
        path = f"{self._directory}/{name}"
        text = self._files.read(path)
        if text is None:
            self._report_problem(name, str(self._files.why(path) or f"{path} cannot be read"))
            return
        if text == self._texts.get(name):
            return
        self._texts[name] = text
        try:
            self._devices[name] = parse_files({name: text})
        except ProtocolError as error:
            self._report_problem(name, str(error))
            return
        self._reported.pop(name, None)

    def _report_problem(self, name: str, problem: str) -> None:
        if self._reported.get(name) != problem:
            self._reported[name] = problem
            log.warning("accelerators of a file keep their last values", extra={"problem": problem})
