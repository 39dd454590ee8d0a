"""A fork has connections of its own."""

from __future__ import annotations

import os

from celery_fence.locking.store import Claim
from celery_fence.stores import from_url


class TestForks:
    def test_parent_and_child_never_share_a_connection(self, store, client):
        store.acquire(Claim("parent", "parent", 30.0))
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            os.write(writer, ask_many_times(store, "child").encode())
            os._exit(0)
        os.close(writer)
        mine = ask_many_times(store, "parent")
        with os.fdopen(reader, "rb") as pipe:
            theirs = pipe.read().decode()
        assert os.waitpid(child, 0)[1] == 0

        assert (mine, theirs) == ("parent", "child")

    def test_a_child_forked_while_all_connections_are_busy_has_its_own(self, client, server, prefix):
        store = from_url(server.url, prefix=prefix, timeout=0.5).for_heartbeat()
        busy = store._client._connections.take()
        child = os.fork()
        if child == 0:
            os._exit(0 if ask_many_times(store, "child") == "child" else 1)
        assert os.waitpid(child, 0)[1] == 0
        store._client._connections.give_back(busy, healthy=True)


def ask_many_times(store, name):
    """The owners that the store named for our own keys: ours alone, unless replies got mixed up."""
    seen = set()
    try:
        for number in range(200):
            claim = Claim(f"{name}:{number}", name, 30.0)
            store.acquire(claim)
            seen.add(store.holder(claim.key).owner)
    except Exception as error:  # noqa: BLE001 - the other process has to hear of it
        return repr(error)
    return ",".join(seen)
