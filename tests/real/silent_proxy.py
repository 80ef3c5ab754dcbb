"""A proxy before an API server that can go deaf and dumb: connections stay open, and nothing gets through."""

import contextlib
import socket
import threading

_BLOCK = 65_536
_POLL_S = 0.2


class SilentProxy:
    """Forwards bytes of TCP connections to a port of loopback from the start until `close`."""

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._hushed: set[int] = set()
        self._connections: dict[int, tuple[socket.socket, socket.socket]] = {}
        self._is_closed = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def hush(self) -> int:
        """From now on nothing gets through the connections that are open; new ones work. How many are open."""
        self._hushed.update(self._connections)
        return len(self._hushed)

    def close(self) -> None:
        self._is_closed.set()
        self._listener.close()
        for pair in list(self._connections.values()):
            for each in pair:
                each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                number = len(self._connections)
                self._connections[number] = (client, server)
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=(number, source, target), daemon=True).start()

    def _pump(self, number: int, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while block := source.recv(_BLOCK):
                while number in self._hushed:
                    if self._is_closed.wait(_POLL_S):
                        return
                target.sendall(block)
        if number not in self._hushed:
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)
