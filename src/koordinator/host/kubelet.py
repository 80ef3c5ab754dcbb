"""The kubelet's HTTP interface: its pods and its configuration. Source: behaviour/koordlet-observe 7.2."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import aiohttp
import msgspec

from koordinator.api import decode
from koordinator.api.core import Pod
from koordinator.host.errors import HostError

log = logging.getLogger(__name__)

TIMEOUT_S = 3.0
ANSWER_BYTES_MAX = 256 * 1024 * 1024
PODS, CONFIG = "/pods/", "/configz"
_CONFIG_KEY = "kubeletconfig"
_NO_ANSWER = "<error>"


class KubeletError(HostError):
    """The kubelet did not answer as it should; the caller keeps what it knew. `status` is 0 without an answer."""

    def __init__(self, url: str, status: int, reason: str) -> None:
        super().__init__(url, status, reason)
        self.url, self.status, self.reason = url, status, reason

    def __str__(self) -> str:
        return f"{self.url}: {self.reason}"


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
            raise KubeletError(self._access.url + PODS, 200, f"not a list of pods: {error}") from error
        return [pod for item in items if (pod := self._pod(item)) is not None]

    async def config(self) -> dict[str, Any]:
        """Return the kubelet's configuration in use; without its logging section, which some versions write
        wrongly.

        Raises: KubeletError.
        """
        data = await self._get(CONFIG)
        try:
            config = msgspec.json.decode(data, type=dict[str, dict[str, Any]])[_CONFIG_KEY]
        except (msgspec.MsgspecError, KeyError) as error:
            raise KubeletError(self._access.url + CONFIG, 200, f"no {_CONFIG_KEY}: {error}") from error
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
            raise KubeletError(url, 0, f"no answer: {type(error).__name__}: {error}") from error
        finally:
            if self._on_answer is not None:
                self._on_answer("get", path, str(status) if status else _NO_ANSWER, loop.time() - begun_s)
        if status != 200:
            raise KubeletError(url, status, f"status {status}: {data[:200].decode(errors='replace').strip()}")
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
