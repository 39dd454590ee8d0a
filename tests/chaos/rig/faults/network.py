"""F6 and F7: the way between one worker and the lease server."""

from __future__ import annotations

import socket
from random import Random

from rig.faults.fault import Fault
from rig.world import Post


class Partition(Fault):
    """
    F6: one worker can't reach the lease server, or isn't heard, or doesn't hear.

    A *reply to* a question that is lost comes after the server has acted; several are lost, one after the other.
    """

    post: Post

    def strike(self) -> bool:
        """Partition the worker."""
        post = self.pick([post for post in self.world.posts if post.ready])
        if post is None:
            return False
        self.post, self.target = post, post.plan.name
        self._digest = self._script()
        self._end_of_connections()
        return True

    def tick(self) -> None:
        """Lose the next reply, too."""
        if self._digest:
            self.post.proxy.cut_reply_to(self._digest)

    def heal(self) -> None:
        """Heal the proxy."""
        self.post.proxy.heal()

    def _script(self) -> bytes:
        question = self.plan.how.removeprefix("reply to ")
        return self.world.holders.digests.get(question, "").encode()

    def _end_of_connections(self) -> None:
        proxy = self.post.proxy
        acts = {
            "down": proxy.go_down,
            "drop": proxy.hold,
            "requests": proxy.hold_requests,
            "replies": proxy.hold_replies,
            "half-open": proxy.deafen,
        }
        acts.get(self.plan.how, self.tick)()


class Slowness(Fault):
    """F7: the server pauses or sleeps for all, or the way of one worker is slow, evenly or by chance."""

    post: Post | None = None

    def strike(self) -> bool:
        """Slow things down."""
        milliseconds = max(int(self.plan.lasts * 1000), 1)
        match self.plan.how:
            case "client pause":
                self._tell_server("CLIENT", "PAUSE", str(milliseconds), "ALL")
            case "sleep":
                self._tell_server("DEBUG", "SLEEP", f"{self.plan.lasts:.3f}")
            case _:
                return self._slow_down_proxy()
        return True

    def tick(self) -> None:
        """Another delay for the next replies."""
        if self.post is not None and self.plan.how == "jitter":
            self.post.proxy.delay = self._dice.uniform(0.0, 2.0) * self.world.plan.ttl

    def heal(self) -> None:
        """Heal the proxy, or wait for a server that wakes by itself: it acts on what it was asked meanwhile then."""
        if self.post is not None:
            self.post.proxy.heal()
        else:
            self.world.client.ping()

    def _slow_down_proxy(self) -> bool:
        self.post = self.pick([post for post in self.world.posts if post.ready])
        if self.post is None:
            return False
        self._dice = Random(self.plan.roll)
        self.target = self.post.plan.name
        self.post.proxy.delay = self._dice.uniform(0.0, 1.0) * self.world.plan.ttl
        return True

    def _tell_server(self, *words: str) -> None:
        """Say it without waiting for the answer, which comes when the server goes on."""
        leases = self.world.leases
        with socket.create_connection((leases.host, leases.port), timeout=5) as connection:
            connection.sendall(" ".join(words).encode() + b"\r\n")
