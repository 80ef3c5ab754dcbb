"""The NodeManager of this node: where it answers, and which containers it has.

Source: behaviour/yarn 8.4 and 8.5.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

import aiohttp
import msgspec

from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError, SubjectError
from koordinator.api.meta import is_condition_true
from koordinator.host.kubelet import KubeletClient, KubeletError
from koordinator.yarn import eviction
from koordinator.yarn.amounts import COMPONENT_LABEL, NODE_MANAGER
from koordinator.yarn.eviction import NMContainer

log = logging.getLogger(__name__)

PORT = 8042
ENDPOINT = f"localhost:{PORT}"
ANSWER_S_MAX = 0.7
"""Less than koordlet waits for us: while the NodeManager hangs, it must get an answer by groups."""
ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""A container takes some 600 bytes; a node has hundreds at most."""
_CONTAINERS = "/ws/v1/node/containers"


class NodeManagerError(SubjectError):
    """The NodeManager did not answer as it should."""

    kind = "NodeManager at "


def endpoint_of(pods: Iterable[Pod]) -> str | None:
    """Return `host:port` of the node's NodeManager pod; None when none runs here.

    Of several the running and ready ones, then the youngest.
    """
    found = [
        pod
        for pod in pods
        if pod.metadata.labels.get(COMPONENT_LABEL) == NODE_MANAGER
        and pod.status.phase == "Running"
        and pod.metadata.deletion_timestamp is None
        and (pod.spec.host_network or pod.status.pod_ip)
    ]
    if not found:
        return None
    ready = [pod for pod in found if is_condition_true(pod.status.conditions, "Ready")]
    best = max(ready or found, key=lambda pod: pod.metadata.creation_timestamp or "")
    if best.spec.host_network:
        return ENDPOINT
    ip = best.status.pod_ip
    return f"[{ip}]:{PORT}" if ":" in ip else f"{ip}:{PORT}"


class NodeManager:
    """Asks one NodeManager at a time. Without an `endpoint` its pod is looked for at the kubelet (`find`)."""

    def __init__(self, endpoint: str, kubelet: KubeletClient | None) -> None:
        self.endpoint = endpoint or ENDPOINT
        self._kubelet = None if endpoint else kubelet
        self._session: aiohttp.ClientSession | None = None
        self._problem = ""

    async def find(self) -> None:
        """Follow the NodeManager's pod; the last place counts while none is found."""
        if self._kubelet is None:
            return
        try:
            found = endpoint_of(await self._kubelet.pods())
            problem = ""
        except KubeletError as error:
            found, problem = None, str(error)
        if problem and problem != self._problem:
            log.warning("NodeManager's pod not looked for", extra={"problem": problem})
        self._problem = problem
        if found is not None and found != self.endpoint:
            log.info("NodeManager found", extra={"endpoint": found, "was": self.endpoint})
            self.endpoint = found

    async def containers(self) -> list[NMContainer]:
        """Return its containers, those that end included; without any whose id could be no group.

        Raises: NodeManagerError.
        """
        url = f"http://{self.endpoint}{_CONTAINERS}"
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                answer = await self._get(url)
            found = eviction.parse(answer)
        except TimeoutError as error:
            raise NodeManagerError(url, f"no answer within {ANSWER_S_MAX:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise NodeManagerError(url, f"{type(error).__name__}: {error}") from error
        except ProtocolError as error:
            raise NodeManagerError(url, f"{error.field}: {error.reason}") from error
        return found

    async def close(self) -> None:
        """Close connections."""
        for each in (self._session, self._kubelet):
            if each is not None:
                await each.close()
        self._session = None

    async def _get(self, url: str) -> Any:
        if self._session is None:
            self._session = aiohttp.ClientSession(trust_env=False)
        async with self._session.get(url, headers={"Accept": "application/json"}) as answer:
            data = await answer.content.read(ANSWER_BYTES_MAX)
            while not answer.content.at_eof():
                if len(data) >= ANSWER_BYTES_MAX:
                    raise NodeManagerError(url, f"the answer has more than {ANSWER_BYTES_MAX} bytes")
                data += await answer.content.read(ANSWER_BYTES_MAX - len(data))
            if answer.status // 100 != 2:
                raise NodeManagerError(url, f"status {answer.status}")
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NodeManagerError(url, f"no JSON: {error}") from error
