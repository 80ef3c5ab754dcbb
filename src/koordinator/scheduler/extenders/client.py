"""One extender: its protocol, its TLS, its answers.

Members of requests are written as Go servers name them (`NodeNames`); of answers, upper and lower case count the
same, as they do in Go. Source: behaviour/scheduler B8.
"""

import base64
import binascii
import pathlib
import ssl
import tempfile
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec

from koordinator.api.errors import KoordinatorError
from koordinator.scheduler.config.config import Extender, ExtenderTls, SchedulerConfigError

SCORE_MAX = 10
"""What an extender gives at most; ten times as much is our scale."""

Json = dict[str, Any]


class ExtenderError(KoordinatorError):
    """An extender did not answer, or not as it should."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url, self.reason = url, reason

    def __str__(self) -> str:
        return f"extender {self.url}: {self.reason}"


class FilterAnswer(msgspec.Struct, frozen=True):
    """Nodes that pass, and why others do not; `hopeless` are those that no eviction can help."""

    passing: list[str]
    failed: dict[str, str]
    hopeless: dict[str, str]


class ExtenderVictims(msgspec.Struct, frozen=True):
    """Uids of the pods to evict from a node, and how many budgets forbid it."""

    uids: list[str]
    violations: int


class ExtenderClient:
    """Calls one extender. `session` makes connections; it belongs to the caller."""

    def __init__(self, config: Extender, index: int) -> None:
        """Raises: SchedulerConfigError when a certificate cannot be read."""
        self.config = config
        self.managed = frozenset(resource.name for resource in config.managed_resources)
        self._prefix = config.url_prefix.rstrip("/")
        self._tls = tls_context(config, f"extenders[{index}].tlsConfig")

    @property
    def name(self) -> str:
        return self._prefix

    async def filter(self, session: aiohttp.ClientSession, args: Json, names: list[str]) -> FilterAnswer:
        """Raises: ExtenderError."""
        answer = await self._post(session, self.config.filter_verb, args)
        found = _members(answer)
        if found.get("error"):
            raise ExtenderError(self._prefix, str(found["error"]))
        passing = found.get("nodenames") if self.config.node_cache_capable else None
        if passing is None:
            items = _members(found.get("nodes") or {}).get("items") or []
            passing = [str(_members(_members(item).get("metadata")).get("name")) for item in items]
        known = set(names)
        for name in passing:
            if name not in known:
                reason = f'claims a filtered node "{name}" which is not found in the input node list'
                raise ExtenderError(self._prefix, reason)
        return FilterAnswer(
            list(passing),
            dict(found.get("failednodes") or {}),
            dict(found.get("failedandunresolvablenodes") or {}),
        )

    async def prioritize(self, session: aiohttp.ClientSession, args: Json) -> dict[str, int]:
        """Scores on our scale, times the weight. Raises: ExtenderError."""
        answer = await self._post(session, self.config.prioritize_verb, args)
        if not isinstance(answer, list):
            raise ExtenderError(self._prefix, "prioritize: expected a list of {Host, Score}")
        pairs = [_members(each) for each in answer]
        factor = self.config.weight * (100 // SCORE_MAX)
        try:
            return {str(each["host"]): int(each["score"]) * factor for each in pairs}
        except (KeyError, TypeError, ValueError) as error:
            raise ExtenderError(self._prefix, f"prioritize: {error!r}") from error

    async def preempt(self, session: aiohttp.ClientSession, args: Json) -> dict[str, ExtenderVictims]:
        """By node, what is left to evict. Raises: ExtenderError."""
        found = _members(await self._post(session, self.config.preempt_verb, args))
        try:
            return {
                str(node): ExtenderVictims(
                    [str(_members(pod)["uid"]) for pod in _members(victims).get("pods") or []],
                    int(_members(victims).get("numpdbviolations") or 0),
                )
                for node, victims in (found.get("nodenametometavictims") or {}).items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ExtenderError(self._prefix, f"preempt: {error!r}") from error

    async def bind(self, session: aiohttp.ClientSession, args: Json) -> None:
        """Raises: ExtenderError."""
        found = _members(await self._post(session, self.config.bind_verb, args))
        if found.get("error"):
            raise ExtenderError(self._prefix, str(found["error"]))

    async def _post(self, session: aiohttp.ClientSession, verb: str, body: Json) -> Any:
        url = f"{self._prefix}/{verb}"
        options: Json = {}
        if self._tls is not None:
            options["ssl"] = self._tls
            if self.config.tls_config is not None and self.config.tls_config.server_name:
                options["server_hostname"] = self.config.tls_config.server_name
        try:
            async with session.post(
                url,
                data=msgspec.json.encode(body),
                headers={"Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=self.config.timeout_s),
                **options,
            ) as response:
                text = await response.read()
                if response.status != 200:
                    reason = f"{verb} was answered with code {response.status}"
                    raise ExtenderError(self._prefix, reason)
        except TimeoutError as error:
            raise ExtenderError(self._prefix, f"no answer to {verb} in {self.config.timeout_s:g}s") from error
        except aiohttp.ClientError as error:
            raise ExtenderError(self._prefix, f"{verb}: {error}") from error
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise ExtenderError(self._prefix, f"{verb}: no JSON in the answer: {error}") from error


def _members(value: Any) -> Json:
    """Return a JSON object with its members in lower case; nothing for anything else."""
    return {key.lower(): each for key, each in value.items()} if isinstance(value, Mapping) else {}


def tls_context(config: Extender, field: str) -> ssl.SSLContext | None:
    """Return how to speak TLS with an extender, None for plain HTTP. As upstream, without a CA the server is not
    verified.

    Raises: SchedulerConfigError.
    """
    if not (config.enable_https or config.url_prefix.startswith("https://")):
        return None
    tls = config.tls_config or ExtenderTls()
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    try:
        if tls.ca_data:
            context = ssl.create_default_context(cadata=_decoded(tls.ca_data).decode())
        elif tls.ca_file:
            context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.insecure or (config.enable_https and not (tls.ca_data or tls.ca_file)):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        _load_identity(context, tls)
    except (OSError, ssl.SSLError, ValueError, binascii.Error) as error:
        raise SchedulerConfigError(field, str(error)) from error
    return context


def _load_identity(context: ssl.SSLContext, tls: ExtenderTls) -> None:
    if not (tls.cert_data or tls.cert_file):
        return
    # The library reads certificates from files only.
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, data, file in (("cert", tls.cert_data, tls.cert_file), ("key", tls.key_data, tls.key_file)):
            path = pathlib.Path(folder, name)
            if data:
                path.write_bytes(_decoded(data))
            paths.append(str(path) if data else file)
        context.load_cert_chain(paths[0], paths[1] or None)


def _decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
