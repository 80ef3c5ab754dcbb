"""Reading the files of small vendor daemons. Source: behaviour/koordlet-observe 10.3.

A file that cannot be read costs nothing but news: its cards stay as it last told them, and those of other files are
reported all the same.
"""

import logging

from koordinator.api.errors import ProtocolError
from koordinator.host.files import Files
from koordinator.koordlet.report import xpu
from koordinator.koordlet.report.xpu import XPUDevice

log = logging.getLogger(__name__)


class XPUFiles:
    """The files of one directory, parsed again when their text changes."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory.rstrip("/")
        self._texts: dict[str, str] = {}
        self._devices: dict[str, list[XPUDevice]] = {}
        self._told: dict[str, str] = {}

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
            self._tell(name, str(self._files.why(path) or f"{path} cannot be read"))
            return
        if text == self._texts.get(name):
            return
        self._texts[name] = text
        try:
            self._devices[name] = xpu.parse_files({name: text})
        except ProtocolError as error:
            self._tell(name, str(error))
            return
        self._told.pop(name, None)

    def _tell(self, name: str, problem: str) -> None:
        if self._told.get(name) != problem:
            self._told[name] = problem
            log.warning("accelerators of a file stay as it told them before", extra={"problem": problem})
