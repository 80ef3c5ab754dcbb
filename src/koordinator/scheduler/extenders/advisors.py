"""Ask HTTP extenders: the protocol, TLS and answers of one, and what all together say about a pod (nodes that they
refuse, scores, victims, bindings).

Members of requests are written as Go servers name them (`NodeNames`); of answers, upper and lower case count the
same, as they do in Go. Only pods in which some extender has an interest cost anything. Source: behaviour/scheduler
B3 (7) and B8.
"""

import asyncio
import base64
import binascii
import logging
import pathlib
import ssl
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import aiohttp
import msgspec

from koordinator.api.core import Node, Pod
from koordinator.api.errors import KoordinatorError
from koordinator.api.meta import Object, to_wire
from koordinator.cluster.protocol import Cluster
from koordinator.scheduler.config.config import Extender, ExtenderTls, SchedulerConfigError
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.results import ExtenderAdvice
from koordinator.scheduler.plugin.capabilities import ReviewedPreemption
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.framework import BindPlugin, Handle, Plugin, Watch
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, Status, error, unresolvable, unschedulable
from koordinator.scheduler.table.pod_info import PodInfo

log = logging.getLogger(__name__)

SCORE_MAX = 10
"""Highest score of an extender; our scale is ten times as much."""

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
        self.name = config.url_prefix.rstrip("/")
        self._tls = tls_context(config, f"extenders[{index}].tlsConfig")

    async def filter(self, session: aiohttp.ClientSession, args: Json, names: list[str]) -> FilterAnswer:
        """Raises: ExtenderError."""
        answer = await self._post(session, self.config.filter_verb, args)
        found = _members(answer)
        if found.get("error"):
            raise ExtenderError(self.name, str(found["error"]))
        passing = found.get("nodenames") if self.config.node_cache_capable else None
        if passing is None:
            items = _members(found.get("nodes") or {}).get("items") or []
            passing = [str(_members(_members(item).get("metadata")).get("name")) for item in items]
        known = set(names)
        for name in passing:
            if name not in known:
                reason = f'claims a filtered node "{name}" which is not found in the input node list'
                raise ExtenderError(self.name, reason)
        return FilterAnswer(
            list(passing),
            dict(found.get("failednodes") or {}),
            dict(found.get("failedandunresolvablenodes") or {}),
        )

    async def prioritize(self, session: aiohttp.ClientSession, args: Json) -> dict[str, int]:
        """Scores on our scale, times the weight. Raises: ExtenderError."""
        answer = await self._post(session, self.config.prioritize_verb, args)
        if not isinstance(answer, list):
            raise ExtenderError(self.name, "prioritize: expected a list of {Host, Score}")
        pairs = [_members(each) for each in answer]
        factor = self.config.weight * (100 // SCORE_MAX)
        try:
            return {str(each["host"]): int(each["score"]) * factor for each in pairs}
        except (KeyError, TypeError, ValueError) as error:
            raise ExtenderError(self.name, f"prioritize: {error!r}") from error

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
            raise ExtenderError(self.name, f"preempt: {error!r}") from error

    async def bind(self, session: aiohttp.ClientSession, args: Json) -> None:
        """Raises: ExtenderError."""
        found = _members(await self._post(session, self.config.bind_verb, args))
        if found.get("error"):
            raise ExtenderError(self.name, str(found["error"]))

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


def _members(value: Any) -> Json:
    """Return a JSON object with its members in lower case; nothing for anything else."""
    return {key.lower(): each for key, each in value.items()} if isinstance(value, Mapping) else {}


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


EXTENDER = "Extender"
"""Stands for all of them where plugins are named. Nobody knows what they look at, so any event may help."""


class WholePod(Object, frozen=True, kw_only=True):
    """A pod with all of its members, for others to read."""

    resource = Pod.resource

    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


class WholeNode(Object, frozen=True, kw_only=True):
    """A node with all of its members."""

    resource = Node.resource

    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


class Advisors:
    """The extenders of a configuration. `cluster` is where whole pods are read."""

    def __init__(self, clients: Sequence[ExtenderClient], cluster: Cluster) -> None:
        self._clients = clients
        self._cluster = cluster
        self._nodes: dict[str, Json] = {}
        self._session: aiohttp.ClientSession | None = None

    def watches(self) -> list[Watch[Any]]:
        """Whole nodes are needed only by extenders that do not keep their own."""
        if all(client.config.node_cache_capable for client in self._clients):
            return []
        return [
            Watch.newest(WholeNode, self._set_node, lambda node: self._nodes.pop(node.metadata.name, None))
        ]

    def _set_node(self, node: WholeNode) -> None:
        self._nodes[node.metadata.name] = to_wire(node)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    # Who is asked

    def is_concerned(self, pod: PodInfo) -> bool:
        """Return whether the pod's attempts have to wait for answers."""
        return self.advises(pod) or self.preempts(pod)

    def advises(self, pod: PodInfo) -> bool:
        """Return whether nodes of the pod have to be shown to somebody."""
        return any(each.config.filter_verb or each.config.prioritize_verb for each in self._interested(pod))

    def preempts(self, pod: PodInfo) -> bool:
        return any(each.config.preempt_verb for each in self._interested(pod))

    def _interested(self, pod: PodInfo) -> list[ExtenderClient]:
        return [each for each in self._clients if not each.managed or each.managed & _named(pod.pod)]

    # Filter and prioritize

    async def advise(self, pod: PodInfo, names: list[str]) -> ExtenderAdvice:
        """About the nodes that passed all filters."""
        whole = await self._whole(pod)
        refused: dict[str, Status] = {}
        left = names
        for client in self._interested(pod):
            if not client.config.filter_verb or not left:
                continue
            try:
                answer = await client.filter(self._http(), self._args(client, whole, left), left)
            except ExtenderError as failure:
                if client.config.ignorable:
                    log.warning("extender skipped: %s", failure)
                    continue
                return ExtenderAdvice(frozenset(names), failure=error(str(failure)))
            passing = set(answer.passing)
            for name in left:
                if name in answer.hopeless:
                    refused[name] = unresolvable(answer.hopeless[name]).by(EXTENDER)
                elif name not in passing:
                    reason = answer.failed.get(name, f"node(s) didn't pass extender {client.name}")
                    refused[name] = unschedulable(reason).by(EXTENDER)
            left = [name for name in left if name not in refused]
        scores = await self._scores(pod, whole, left) if len(left) > 1 else {}
        return ExtenderAdvice(frozenset(names), refused, scores)

    async def _scores(self, pod: PodInfo, whole: Json, names: list[str]) -> dict[str, int]:
        """Sums over all extenders; the opinion of one that fails is not missed."""
        asked = [each for each in self._interested(pod) if each.config.prioritize_verb]
        answers = await asyncio.gather(
            *(each.prioritize(self._http(), self._args(each, whole, names)) for each in asked),
            return_exceptions=True,
        )
        sums: dict[str, int] = {}
        for answer in answers:
            if isinstance(answer, ExtenderError):
                log.warning("extender's scores skipped: %s", answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                for name, score in answer.items():
                    sums[name] = sums.get(name, 0) + score
        return sums

    def _args(self, client: ExtenderClient, whole: Json, names: list[str]) -> Json:
        if client.config.node_cache_capable:
            return {"Pod": whole, "Nodes": None, "NodeNames": names}
        items = [self._nodes[name] for name in names if name in self._nodes]
        return {
            "Pod": whole,
            "Nodes": {"apiVersion": "v1", "kind": "NodeList", "items": items},
            "NodeNames": None,
        }

    # Preempt

    async def reconsider(
        self, pod: PodInfo, victims: dict[str, tuple[list[PodInfo], int]]
    ) -> dict[str, ExtenderVictims] | Status:
        """Return what is left of proposals (node → pods to evict, budgets violated), or why nobody can tell."""
        pods = {each.uid: each for chosen, _ in victims.values() for each in chosen}
        left = {
            name: ExtenderVictims([each.uid for each in chosen], count)
            for name, (chosen, count) in victims.items()
        }
        whole = await self._whole(pod)
        for client in self._interested(pod):
            if not client.config.preempt_verb or not left:
                continue
            try:
                answer = await client.preempt(self._http(), _preemption_args(client, whole, left, pods))
                for name, chosen in list(answer.items()):
                    if not chosen.uids and not client.config.ignorable:
                        reason = f'expected at least one victim pod on node "{name}"'
                        raise ExtenderError(client.name, reason)
                    if not chosen.uids or name not in left:
                        del answer[name]
            except ExtenderError as failure:
                if client.config.ignorable:
                    log.warning("extender skipped: %s", failure)
                    continue
                return error(str(failure))
            left = answer
        return left

    # Bind

    async def bind(self, pod: PodInfo, node_name: str) -> Status:
        """Skip when no extender binds this pod."""
        binder = next((each for each in self._interested(pod) if each.config.bind_verb), None)
        if binder is None:
            return SKIP
        meta = pod.pod.metadata
        args = {"PodName": meta.name, "PodNamespace": meta.namespace, "PodUID": meta.uid, "Node": node_name}
        try:
            await binder.bind(self._http(), args)
        except ExtenderError as failure:
            return error(str(failure))
        return SUCCESS

    async def _whole(self, pod: PodInfo) -> Json:
        meta = pod.pod.metadata
        return to_wire(await self._cluster.get(WholePod, meta.name, meta.namespace))

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        return self._session


class ExtenderBinder(BindPlugin[None]):
    """Lets the extender that binds do so, before all Bind plugins."""

    name = EXTENDER

    def __init__(self, bind: Callable[[PodInfo, str], Any], handle: Handle) -> None:
        super().__init__(None, handle)
        self._bind = bind

    async def bind(self, pod: PodInfo, node_name: str) -> Status:
        status: Status = await self._bind(pod, node_name)
        return status


class ExtenderWakeUps(Plugin[None]):
    """The events that wake pods that extenders refused: all."""

    name = EXTENDER
    wakes_on = tuple(ClusterEvent)

    def wakes(self, event: QueueingEvent, pod: PodInfo) -> bool:
        return True

    def is_relevant_update(self, old: PodInfo, new: PodInfo) -> bool:
        return old.pod.spec != new.pod.spec or old.pod.metadata.labels != new.pod.metadata.labels


def connect(configs: Sequence[Extender], engine: Engine, cluster: Cluster) -> Advisors | None:
    """Return the configured extenders, made known to the profiles of an engine; None when there are none."""
    if not configs:
        return None
    advisors = Advisors([ExtenderClient(each, index) for index, each in enumerate(configs)], cluster)
    binder = ExtenderBinder(advisors.bind, engine.handles[0])
    for profile in engine.profiles.values():
        profile.binds = (binder, *profile.binds)
        for plugin in profile.post_filters:
            if isinstance(plugin, ReviewedPreemption):
                plugin.review_by(advisors)
    return advisors


def _preemption_args(
    client: ExtenderClient, whole: Json, left: dict[str, ExtenderVictims], pods: dict[str, PodInfo]
) -> Json:
    if client.config.node_cache_capable:
        meta = {
            name: {"Pods": [{"UID": uid} for uid in each.uids], "NumPDBViolations": each.violations}
            for name, each in left.items()
        }
        return {"Pod": whole, "NodeNameToVictims": None, "NodeNameToMetaVictims": meta}
    full = {
        name: {"Pods": [to_wire(pods[uid].pod) for uid in each.uids], "NumPDBViolations": each.violations}
        for name, each in left.items()
    }
    return {"Pod": whole, "NodeNameToVictims": full, "NodeNameToMetaVictims": None}


def _named(pod: Pod) -> set[str]:
    """Resources that some container names."""
    found: set[str] = set()
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        found.update(container.resources.requests, container.resources.limits)
    return found
