"""Call one HTTP extender: the protocol, TLS, and what its answers may be.

Members of requests are written as Go servers name them (`NodeNames`); of answers, upper and lower case count the
same, as they do in Go. Source: behaviour/scheduler B3 (7) and B8.
"""

import base64
import binascii
import pathlib
import ssl
import tempfile
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import aiohttp
import msgspec

from koordinator.api.errors import SubjectError
from koordinator.scheduler.config.config import Extender, ExtenderTls, SchedulerConfigError
from koordinator.scheduler.plugin.capabilities import ReviewedVictims

SCORE_MAX = 10
"""Highest score of an extender; our scale is ten times as much."""

Json = dict[str, Any]
T = TypeVar("T")
_NOTHING: Json = {}


class ExtenderError(SubjectError):
    """An extender did not answer, or not as it should."""

    kind = "extender "


class FilterAnswer(msgspec.Struct, frozen=True):
    """Nodes that pass, and why others do not; `hopeless` are those that no eviction can help."""

    passing: list[str]
    failed: dict[str, str]
    hopeless: dict[str, str]


class _FilterResult(msgspec.Struct, frozen=True):
    """An answer to `filter` as it comes, members in lower case (as of all answers here)."""

    error: str | None = None
    nodenames: list[str] | None = None
    nodes: Json | None = None
    failednodes: dict[str, str] | None = None
    failedandunresolvablenodes: dict[str, str] | None = None


class _HostScore(msgspec.Struct, frozen=True):
    host: str
    score: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]


class _MetaPod(msgspec.Struct, frozen=True):
    uid: str


class _MetaVictims(msgspec.Struct, frozen=True):
    pods: list[Json] | None = None
    numpdbviolations: int | None = None


class _PreemptResult(msgspec.Struct, frozen=True):
    nodenametometavictims: dict[str, Json | None] | None = None


class _BindResult(msgspec.Struct, frozen=True):
    error: str | None = None


class ExtenderClient:
    """Calls one extender. `session` makes connections; it belongs to the caller."""

    def __init__(self, config: Extender, index: int) -> None:
        """Raises: SchedulerConfigError when a certificate cannot be read."""
        self.config = config
        self.managed = frozenset(resource.name for resource in config.managed_resources)
        self.name = config.url_prefix.rstrip("/")
        self._tls = tls_context(config, f"extenders[{index}].tlsConfig")

    async def filter(self, session: aiohttp.ClientSession, args: Json, names: list[str]) -> FilterAnswer:
        """Raises: ExtenderError."""
        verb = self.config.filter_verb
        found = self._read(verb, await self._post(session, verb, args), _FilterResult)
        if found.error:
            raise ExtenderError(self.name, found.error)
        passing = found.nodenames if self.config.node_cache_capable else None
        if passing is None:
            items = _members(found.nodes or {}).get("items") or []
            passing = [str(_members(_members(item).get("metadata")).get("name")) for item in items]
        known = set(names)
        for name in passing:
            if name not in known:
                reason = f'claims a filtered node "{name}" which is not found in the input node list'
                raise ExtenderError(self.name, reason)
        return FilterAnswer(passing, found.failednodes or {}, found.failedandunresolvablenodes or {})

    async def prioritize(self, session: aiohttp.ClientSession, args: Json) -> dict[str, int]:
        """Scores on our scale, times the weight. Raises: ExtenderError."""
        verb = self.config.prioritize_verb
        answer = await self._post(session, verb, args)
        if not isinstance(answer, list | None):
            raise ExtenderError(self.name, "prioritize: expected a list of {Host, Score}")
        factor = self.config.weight * (100 // SCORE_MAX)
        sums: dict[str, int] = {}
        for each in answer or ():
            found = self._read(verb, each, _HostScore)
            sums[found.host] = sums.get(found.host, 0) + found.score * factor
        return sums

    async def preempt(self, session: aiohttp.ClientSession, args: Json) -> dict[str, ReviewedVictims]:
        """By node, what is left to evict. Raises: ExtenderError."""
        verb = self.config.preempt_verb
        found = self._read(verb, await self._post(session, verb, args), _PreemptResult)
        answer = {}
        for node, raw in (found.nodenametometavictims or {}).items():
            victims = self._read(verb, raw, _MetaVictims)
            uids = [self._read(verb, pod, _MetaPod).uid for pod in victims.pods or ()]
            answer[node] = ReviewedVictims(uids, victims.numpdbviolations or 0)
        return answer

    async def bind(self, session: aiohttp.ClientSession, args: Json) -> None:
        """Raises: ExtenderError."""
        verb = self.config.bind_verb
        found = self._read(verb, await self._post(session, verb, args), _BindResult)
        if found.error:
            raise ExtenderError(self.name, found.error)

    def _read(self, verb: str, value: Any, kind: type[T]) -> T:
        """Return a JSON object of an answer, null as one without members. Raises: ExtenderError."""
        try:
            return msgspec.convert({} if value is None else _members(value, value), kind)
        except msgspec.ValidationError as error:
            raise ExtenderError(self.name, f"{verb}: {error}") from error

    async def _post(self, session: aiohttp.ClientSession, verb: str, body: Json) -> Any:
        url = f"{self.name}/{verb}"
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
                    raise ExtenderError(self.name, f"{verb} was answered with code {response.status}")
        except TimeoutError as error:
            raise ExtenderError(self.name, f"no answer to {verb} in {self.config.timeout_s:g}s") from error
        except aiohttp.ClientError as error:
            raise ExtenderError(self.name, f"{verb}: {error}") from error
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise ExtenderError(self.name, f"{verb}: no JSON in the answer: {error}") from error


def _members(value: Any, otherwise: Any = _NOTHING) -> Any:
    """Return a JSON object with its members in lower case; `otherwise` for anything else."""
    return {key.lower(): each for key, each in value.items()} if isinstance(value, Mapping) else otherwise


def tls_context(config: Extender, field: str) -> ssl.SSLContext | None:
    """Return how to speak TLS with an extender, None for plain HTTP. As upstream, without a CA the server is not
    verified. Raises: SchedulerConfigError."""
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
