"""The kubelet's pod-resources socket, with the devices that our scheduler allocated.

Source: behaviour/koordlet-observe 10.5.

Exporters of GPU metrics ask this socket in place of the kubelet's own, which knows nothing of such devices. gRPC is
loaded when the proxy starts, since it costs 17 MB.
"""

import asyncio
import contextlib
import importlib
import logging
import os
from typing import Any

from koordinator.host.errors import ContentError
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.report import pod_resources
from koordinator.koordlet.report.outage import Outage

log = logging.getLogger(__name__)

GATE = "PodResourcesProxy"
SERVICE = "v1.PodResourcesLister"
AUGMENTED, FORWARDED = ("List", "Get"), ("GetAllocatableResources",)
SOCKET = "kubelet.sock"
CALL_S_MAX = 10.0
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""As the kubelet's clients have it."""
CHECK_S = 10.0
_STOP_S = 1.0
_GRPC = "grpc"


class PodResourcesProxy:
    """Serves until its `run` is cancelled; what fails is tried again after `interval_s`."""

    name = "podresources"
    interval_s = CHECK_S
    informers = ()

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._outage = Outage("pod-resources proxy")
        self.path = os.path.join(shared.config.kubelet.pod_resources_proxy, SOCKET)
        self._kubelet = f"{shared.host.roots.kubelet}/pod-resources/{SOCKET}"
        self._grpc: Any = None

    async def run(self) -> None:
        """Serve as long as the socket is there: who removes it (a cleaned /run, say) gets a new one."""
        try:
            self._grpc = importlib.import_module(_GRPC)
            importlib.import_module(f"{_GRPC}.aio")
        except ImportError:
            self._outage.failed("grpcio is not installed (pip install '.[node]')")
            return
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)  # left by a killed agent
        except OSError as error:
            self._outage.failed(error)
            return
        options = [("grpc.max_receive_message_length", MESSAGE_BYTES_MAX)]
        server = self._grpc.aio.server(options=options)
        async with self._grpc.aio.insecure_channel(f"unix://{self._kubelet}", options=options) as channel:
            server.add_generic_rpc_handlers((self._handlers(channel),))
            try:
                server.add_insecure_port(f"unix://{self.path}")
            except RuntimeError as error:
                self._outage.failed(str(error))
                return
            await server.start()
            self._outage.ended()
            log.info("pod-resources proxy listens", extra={"path": self.path})
            try:
                while os.path.exists(self.path):  # noqa: ASYNC110 - nobody tells us of its end
                    await asyncio.sleep(CHECK_S)
            finally:
                await server.stop(_STOP_S)

    def _handlers(self, channel: Any) -> Any:
        def handler(method: str) -> Any:
            call = channel.unary_unary(f"/{SERVICE}/{method}")

            async def answer(request: bytes, context: Any) -> bytes:
                return await self._answer(call, method, request, context)

            return self._grpc.unary_unary_rpc_method_handler(answer)

        methods = {method: handler(method) for method in (*AUGMENTED, *FORWARDED)}
        return self._grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _answer(self, call: Any, method: str, request: bytes, context: Any) -> bytes:
        """Return the kubelet's answer; its refusals are passed on as they are."""
        try:
            answer: bytes = await call(request, timeout=CALL_S_MAX)
        except self._grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details())
            raise AssertionError("abort raises") from error
        if method not in AUGMENTED:
            return answer
        annotations = {
            (record.pod.metadata.namespace, record.pod.metadata.name): record.pod.metadata.annotations
            for record in self._shared.view.pods.values()
        }
        try:
            return pod_resources.with_allocated(answer, annotations)
        except ContentError as error:
            self._outage.failed(f"the kubelet's answer is passed on as it is: {error}")
            return answer
