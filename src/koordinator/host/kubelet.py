"""The kubelet: its pods and its configuration over HTTP, and what it leaves on the host, its processes' arguments, its
configuration and its CPU manager's state.

Source: behaviour/koordlet-observe 3.1, 7.2 and 9.3.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import aiohttp
import msgspec

from koordinator.api import decode, yaml_text
from koordinator.api.core import Pod
from koordinator.api.errors import SubjectError
from koordinator.host.cgroup_layout import Driver
from koordinator.host.cgroups import Cgroups
from koordinator.host.errors import HostError
from koordinator.host.files import Files, HostRoots
from koordinator.host.machine import Processes

log = logging.getLogger(__name__)

TIMEOUT_S = 3.0
ANSWER_BYTES_MAX = 256 * 1024 * 1024
PODS, CONFIG = "/pods/", "/configz"
_CONFIG_KEY = "kubeletconfig"
_NO_ANSWER = "<error>"


class KubeletError(SubjectError, HostError):
    """The kubelet did not answer as it should; the caller keeps what it knew."""


class KubeletAccess(msgspec.Struct, frozen=True, kw_only=True):
    """The way to reach a kubelet. Files are read again for each connection or request, since they rotate."""

    address: str
    port: int
    is_plain: bool = False
    """Plain HTTP, for the read-only port: no token is sent."""
    token_file: str = ""
    client_certificate: str = ""
    client_key: str = ""
    ca_file: str = ""
    """Verifies the kubelet's certificate. Kubelets sign their own by default, so without it none is verified."""

    @property
    def url(self) -> str:
        """Everything before the path; IPv6 addresses in brackets."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{'http' if self.is_plain else 'https'}://{host}:{self.port}"


class KubeletClient:
    """Asks one kubelet. `on_answer` hears of each request: verb, path, status (`<error>` without), seconds.

    `authorization` gives the header of that name for each request, where a token file does not.
    """

    def __init__(
        self,
        access: KubeletAccess,
        *,
        timeout_s: float = TIMEOUT_S,
        on_answer: Callable[[str, str, str, float], None] | None = None,
        authorization: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        self._access = access
        self._authorization = authorization
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._on_answer = on_answer
        self._session: aiohttp.ClientSession | None = None
        self._skipped: set[str] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def pods(self) -> list[Pod]:
        """Return all pods of the node. Pods that do not fit the view are left out, and logged once each.

        Raises: KubeletError.
        """
        data = await self._get(PODS)
        try:
            items = msgspec.json.decode(data, type=_PodItems).items or []
        except msgspec.MsgspecError as error:
            raise KubeletError(self._access.url + PODS, f"not a list of pods: {error}") from error
        pods: list[Pod] = []
        for number, item in enumerate(items, start=1):
            if (pod := self._pod(item)) is not None:
                pods.append(pod)
            if number % _IN_ONE_GO == 0:
                await asyncio.sleep(0)  # a container runtime may wait for an answer
        return pods

    async def config(self) -> dict[str, Any]:
        """Return the kubelet's configuration in use; without its logging section, which some versions write
        wrongly.

        Raises: KubeletError.
        """
        data = await self._get(CONFIG)
        try:
            config = msgspec.json.decode(data, type=dict[str, dict[str, Any]])[_CONFIG_KEY]
        except (msgspec.MsgspecError, KeyError) as error:
            raise KubeletError(self._access.url + CONFIG, f"no {_CONFIG_KEY}: {error}") from error
        config.pop("logging", None)
        return config

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _pod(self, item: msgspec.Raw) -> Pod | None:
        try:
            return decode.from_json(bytes(item), Pod)
        except msgspec.MsgspecError as error:
            problem = str(error)
            if problem not in self._skipped and len(self._skipped) < _SKIPPED_MAX:
                self._skipped.add(problem)
                log.warning("pod of the kubelet skipped", extra={"problem": problem})
            return None

    async def _get(self, path: str) -> bytes:
        url = self._access.url + path
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        status = 0
        try:
            session = self._opened()
            async with session.get(url, headers=await self._headers(), timeout=self._timeout) as answer:
                status = answer.status
                data = await answer.content.read(ANSWER_BYTES_MAX)
                while not answer.content.at_eof() and len(data) < ANSWER_BYTES_MAX:
                    data += await answer.content.read(ANSWER_BYTES_MAX - len(data))
        except (aiohttp.ClientError, TimeoutError, OSError, ssl.SSLError) as error:
            await self.close()  # certificates may have been renewed
            raise KubeletError(url, f"no answer: {type(error).__name__}: {error}") from error
        finally:
            if self._on_answer is not None:
                self._on_answer("get", path, str(status) if status else _NO_ANSWER, loop.time() - begun_s)
        if status != 200:
            raise KubeletError(url, f"status {status}: {data[:200].decode(errors='replace').strip()}")
        return data

    async def _headers(self) -> dict[str, str]:
        if self._access.is_plain:
            return {}
        if self._authorization is not None and (value := await self._authorization()):
            return {"Authorization": value}
        if not self._access.token_file:
            return {}
        token = Path(self._access.token_file).read_text(encoding="utf-8").strip()
        return {"Authorization": f"Bearer {token}"}

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=2, ssl=False if self._access.is_plain else self._tls())
            self._session = aiohttp.ClientSession(connector=connector)
        return self._session

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._access.ca_file or None)
        if not self._access.ca_file:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self._access.client_certificate:
            context.load_cert_chain(self._access.client_certificate, self._access.client_key or None)
        return context


class _PodItems(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


_SKIPPED_MAX = 256
_IN_ONE_GO = 32
"""Pods decoded before others have their turn: about half a millisecond."""


_STATE = "cpu_manager_state"
_DRIVER_FLAG, _CONFIG_FLAG = "--cgroup-driver", "--config"
_NAME = "kubelet"


class FoundDriver(msgspec.Struct, frozen=True):
    """The kubelet's cgroup driver, and what told so; None while nothing does."""

    driver: Driver | None
    source: str


def cpu_manager_state(files: Files, roots: HostRoots) -> str | None:
    """Return text of the CPU manager's checkpoint; None when there is none."""
    return files.read(f"{roots.kubelet}/{_STATE}")


def cgroup_driver(cgroups: Cgroups, processes: Processes, roots: HostRoots) -> FoundDriver:
    """Return the driver by the directories that exist, else by the kubelet's arguments and its configuration file."""
    found = cgroups.driver()
    if found is not None:
        return FoundDriver(found, "directories of pods")
    pid = kubelet_pid(processes)
    if pid is None:
        return FoundDriver(None, "no directories of pods and no kubelet process yet")
    arguments = processes.command(pid) or []
    stated = flag(arguments, _DRIVER_FLAG)
    if stated is not None:
        return FoundDriver(_driver(stated), f"{_DRIVER_FLAG} of the kubelet")
    config = flag(arguments, _CONFIG_FLAG)
    if config is None:
        return FoundDriver(Driver.CGROUPFS, "the kubelet has neither flag nor configuration file")
    path = os.path.normpath(f"{roots.proc}/{pid}/root/{config}")
    text = cgroups.files.read(path)
    if text is None:
        return FoundDriver(None, f"{path} cannot be read")
    stated = config_value(text, "cgroupDriver")
    return FoundDriver(_driver(stated or Driver.CGROUPFS), f"{config} of the kubelet")


def kubelet_pid(processes: Processes) -> int | None:
    """Return the process of the kubelet, by its name; the oldest of several."""
    return next((pid for pid in processes.pids() if processes.name(pid) == _NAME), None)


def flag(arguments: list[str], name: str) -> str | None:
    """Value of a flag among arguments, as `--name=value` or `--name value`; the last one counts."""
    found = None
    for index, argument in enumerate(arguments):
        if argument.startswith(f"{name}="):
            found = argument.partition("=")[2]
        elif argument == name and index + 1 < len(arguments):
            found = arguments[index + 1]
    return found


def config_value(text: str, key: str) -> str | None:
    """Return a text at the top of the kubelet's configuration file; None when it is missing or the file is
    malformed."""
    try:
        config = yaml_text.load(text)
    except yaml_text.YamlError:
        return None
    value = config.get(key) if isinstance(config, dict) else None
    return value if isinstance(value, str) and value else None


def _driver(text: str) -> Driver | None:
    return Driver(text) if text in (Driver.SYSTEMD, Driver.CGROUPFS) else None
