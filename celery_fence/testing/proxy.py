"""
A TCP proxy on loopback that does to a connection what networks do.

```python
with Proxy(server.host, server.port) as proxy:
    store = from_url(f"redis://{proxy.host}:{proxy.port}/0")
    proxy.cut_reply_to(b"EVALSHA")
    store.acquire(claim)  # the server granted it, the client never heard, and asks again
```

Threads and the standard library only. What is held back is not lost, as on a real
network, where TCP sends it again: it arrives after `heal()`.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Self

CHUNK = 65536


class Proxy:
    """Forwards to *host* and *port* until told otherwise; use it as a context manager."""

    host = "127.0.0.1"

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.delay = 0.0
        """Seconds that each chunk of a reply is late."""
        self.cuts = 0
        """Replies cut so far."""
        self.accepted = 0
        """Connections accepted so far."""
        self._victim: bytes | None = None
        self._requests_pass = _opened()
        self._replies_pass = _opened()
        self._down = False
        self._links: list[_Link] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server((self.host, 0))
        self.port = int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="fence-proxy", daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def cut_reply_to(self, request: bytes) -> None:
        """Let the next request that contains *request* through, then reset its connection, not the reply."""
        self._victim = request

    def hold_requests(self) -> None:
        """One-way partition: the server hears nothing more; connections stay open."""
        self._requests_pass.clear()

    def hold_replies(self) -> None:
        """One-way partition: the server hears and acts, the client hears nothing."""
        self._replies_pass.clear()

    def hold(self) -> None:
        """Full partition, both ways."""
        self.hold_requests()
        self.hold_replies()

    def deafen(self) -> None:
        """Silence the connections that are open now, for good; new ones work: a firewall that forgot them."""
        with self._lock:
            for link in self._links:
                link.deaf = True

    def go_down(self) -> None:
        """Reset all connections, and each new one at once."""
        self._down = True
        self.reset()

    def heal(self) -> None:
        """No more faults; what was held back arrives now."""
        self._down = False
        self._victim = None
        self.delay = 0.0
        self._requests_pass.set()
        self._replies_pass.set()

    def reset(self) -> None:
        """Reset all connections."""
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            link.reset()

    def close(self) -> None:
        """End the proxy and all its connections."""
        with suppress(OSError):
            # Wakes the thread in accept(), which closing alone does not.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.go_down()
        self._requests_pass.set()
        self._replies_pass.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            self.accepted += 1
            self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        if self._down:
            _reset(client)
            return
        try:
            server = socket.create_connection(self.target, timeout=5)
        except OSError:
            _reset(client)
            return
        server.settimeout(None)
        link = _Link(client, server)
        with self._lock:
            self._links.append(link)
        for pump in (self._pump_requests, self._pump_replies):
            threading.Thread(target=pump, args=(link,), name="fence-proxy-link", daemon=True).start()

    def _pump_requests(self, link: _Link) -> None:
        while chunk := link.read(link.client):
            self._requests_pass.wait()
            if link.deaf:
                continue
            victim = self._victim
            if victim is not None and victim in chunk:
                self._victim, link.doomed = None, True
            link.write(link.server, chunk)
        link.reset()

    def _pump_replies(self, link: _Link) -> None:
        while chunk := link.read(link.server):
            # The server has answered, so it has acted: now the reply can get lost.
            if link.doomed:
                self.cuts += 1
                break
            self._replies_pass.wait()
            time.sleep(self.delay)
            link.write(link.client, chunk)
        link.reset()


class _Link:
    """One connection through the proxy."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.doomed = False
        self.deaf = False

    def read(self, end: socket.socket) -> bytes:
        try:
            return end.recv(CHUNK)
        except OSError:
            return b""

    def write(self, end: socket.socket, chunk: bytes) -> None:
        with suppress(OSError):  # the other side has gone: the next read says so
            end.sendall(chunk)

    def reset(self) -> None:
        _reset(self.client)
        _reset(self.server)


def _opened() -> threading.Event:
    gate = threading.Event()
    gate.set()
    return gate


def _reset(end: socket.socket) -> None:
    """Close with RST: the peer sees a broken connection, not an orderly end."""
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with suppress(OSError):
        # Wakes the other pump, which is blocked in recv().
        end.shutdown(socket.SHUT_RD)
    end.close()
