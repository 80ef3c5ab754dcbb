"""The way from a real API server to the addresses of pods, where all of them live on loopback.

An API server reaches webhooks behind a Service (and kubelets) through its `cluster` egress. That is this proxy: HTTP
CONNECT over a Unix socket. Whatever the address of the pod or node, the connection goes to the port of loopback that
the port of the pod stands for. So EndpointSlices hold addresses that an API server accepts, and nothing of ours
listens to more than loopback.
"""

import contextlib
import socket
import socketserver
import threading
from pathlib import Path

CONFIGURATION = """\
apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: HTTPConnect
    transport:
      uds: {{udsName: {path}}}
"""
_BLOCK = 65_536


class PodNetwork:
    """Listens from the start until `close`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "egress.sock"
        self.ports: dict[int, int] = {}
        """Port of a pod or kubelet → the port of loopback that it stands for."""
        self.asked: list[str] = []
        """The addresses that the API server wanted to reach."""
        ports, asked = self.ports, self.asked

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                _serve(self.request, ports, asked)

        self._server = socketserver.ThreadingUnixStreamServer(str(self.path), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def configuration(self) -> str:
        """What the API server is to read."""
        return CONFIGURATION.format(path=self.path)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _serve(client: socket.socket, ports: dict[int, int], asked: list[str]) -> None:
    head = b""
    while b"\r\n\r\n" not in head:
        block = client.recv(_BLOCK)
        if not block:
            return
        head += block
    address = head.split(b" ", 2)[1].decode()
    asked.append(address)
    port = int(address.rpartition(":")[2])
    try:
        server = socket.create_connection(("127.0.0.1", ports.get(port, port)), timeout=5)
    except OSError as error:
        client.sendall(f"HTTP/1.1 502 {error}\r\nContent-Length: 0\r\n\r\n".encode())
        return
    with server:
        server.settimeout(None)
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        back = threading.Thread(target=pump, args=(server, client), daemon=True)
        back.start()
        pump(client, server)
        back.join()


def pump(source: socket.socket, target: socket.socket) -> None:
    """Forward bytes until one side ends; then the other is told."""
    with contextlib.suppress(OSError):
        while block := source.recv(_BLOCK):
            target.sendall(block)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
