"""Servers for the stores under contract; each test has a prefix of its own."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack

import pytest

pytest.register_assert_rewrite("celery_fence.testing.contract")

from itertools import count  # noqa: E402 - the contract must not be imported before its asserts are rewritten

import redis  # noqa: E402

from celery_fence.stores import from_url  # noqa: E402
from celery_fence.testing.proxy import Proxy  # noqa: E402
from celery_fence.testing.servers import NoServerError, embedded_server  # noqa: E402

prefixes = count()


@pytest.fixture(scope="session")
def server():
    try:
        with embedded_server() as running:
            yield running
    except NoServerError as error:
        pytest.skip(str(error))


@pytest.fixture
def prefix():
    return f"fence-test-{next(prefixes)}"


@pytest.fixture
def client(server):
    """A plain client, to look at what the store left behind, and to harm it."""
    with redis.Redis.from_url(server.url) as found:
        found.flushall()
        yield found


@pytest.fixture
def store(client, server, prefix):
    made = from_url(server.url, prefix=prefix, timeout=5)
    yield made
    made.close()


@pytest.fixture
def proxy(server):
    with Proxy(server.host, server.port) as running:
        yield running


@pytest.fixture
def store_behind_proxy(client, proxy, prefix):
    made = from_url(f"redis://127.0.0.1:{proxy.port}/0", prefix=prefix, timeout=1)
    yield made
    made.close()


@pytest.fixture(scope="session")
def rounds():
    """How often each of twenty writers writes; ``FENCE_ROUNDS`` says more than a push has time for."""
    return int(os.environ.get("FENCE_ROUNDS", "100"))


@pytest.fixture
def deaf_port():
    """A port to which no connection is made, nor refused."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf, ExitStack() as waiting:
        port = deaf.getsockname()[1]
        fill_the_backlog(waiting, port)
        yield port


def fill_the_backlog(stack, port):
    """Connect to a server that accepts nobody, until the system doesn't let anybody wait any more."""
    for _ in range(16):
        client = stack.enter_context(socket.socket())
        client.settimeout(0.2)
        try:
            client.connect(("127.0.0.1", port))
        except TimeoutError:
            return
    pytest.skip("also on CI: this system lets any number of connections wait")
