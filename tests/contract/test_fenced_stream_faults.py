"""A fenced stream over what happens to servers and to those who write."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
import redis
from celery import Celery

from celery_fence import StaleToken, hold
from celery_fence.fencing.streams import FencedStream, Mark, Stamp
from celery_fence.testing.servers import embedded_server

STREAM = "payouts"
SCOPE = "payout:7"

# Takes the key, says so, and writes once it is told to: by then it was frozen for longer than its TTL.
STRAGGLER = """
import sys
import redis
from celery import Celery
from celery_fence import StaleToken, hold
from celery_fence.fencing.streams import FencedStream

app = Celery("straggler", broker="memory://")
app.conf.update(fence_url=sys.argv[1], fence_ttl=1.0)
with redis.Redis.from_url(sys.argv[1]) as client, hold("payout:7", ttl=1.0, app=app) as lease:
    print(lease.token, flush=True)
    sys.stdin.readline()
    try:
        FencedStream(client, "payouts").append("payout:7", {"by": "straggler"})
    except StaleToken as refused:
        print("refused", refused.token, refused.seen, flush=True)
    else:
        print("appended", flush=True)
"""


def held(token, owner="o1"):
    return Stamp(SCOPE, token, owner)


def tokens(client):
    return [int(fields[b"fencing_token"]) for _, fields in client.xrange(STREAM)]


@pytest.fixture
def straggler(server, client):
    process = subprocess.Popen(
        [sys.executable, "-c", STRAGGLER, server.url],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    yield process
    process.kill()
    process.communicate(timeout=20)


def test_a_holder_that_was_frozen_beyond_its_ttl_appends_nothing(straggler, server, client):
    first = int(straggler.stdout.readline())
    straggler.send_signal(signal.SIGSTOP)
    app = Celery("successor", broker="memory://", set_as_current=False)
    app.conf.update(fence_url=server.url, fence_ttl=30.0)
    with hold("payout:7", ttl=30.0, wait=30, app=app) as lease:
        FencedStream(client, STREAM).append(SCOPE, {"by": "successor"})
    straggler.send_signal(signal.SIGCONT)
    said, _ = straggler.communicate("go on\n", timeout=30)

    assert said.split() == ["refused", str(first), str(lease.token)]
    assert [fields[b"by"] for _, fields in client.xrange(STREAM)] == [b"successor"]
    app.close()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_server_that_keeps_its_data_knows_the_mark_and_the_events_after_a_restart(end):
    with embedded_server(persistent=True) as server, redis.Redis.from_url(server.url) as client:
        stream = FencedStream(client, STREAM)
        stream.append(SCOPE, {}, held(6, "o2"), event_id="e6")
        getattr(server, end)()
        server.start()

        assert stream.mark(SCOPE) == Mark(6, "o2")
        with pytest.raises(StaleToken):
            stream.append(SCOPE, {}, held(5))
        assert stream.append(SCOPE, {}, held(7), event_id="e6").repeated
        assert tokens(client) == [6]


def test_after_a_flush_what_is_in_the_stream_is_in_order_all_the_same(client):
    stream = FencedStream(client, STREAM)
    stream.append(SCOPE, {}, held(6, "o2"))
    client.flushall()
    stream.append(SCOPE, {}, held(5))
    stream.append(SCOPE, {}, held(7, "o3"))
    with pytest.raises(StaleToken):
        stream.append(SCOPE, {}, held(5))

    assert tokens(client) == [5, 7]


def test_a_server_that_is_away_appends_nothing_and_says_so(server, client, proxy):
    retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    with redis.Redis.from_url(f"redis://127.0.0.1:{proxy.port}/0", retry=retry) as shaky:
        stream = FencedStream(shaky, STREAM)
        stream.append(SCOPE, {}, held(5))
        proxy.go_down()
        with pytest.raises(redis.ConnectionError):
            stream.append(SCOPE, {}, held(6))
        proxy.heal()
        stream.append(SCOPE, {}, held(7))

    assert tokens(client) == [5, 7]


@pytest.fixture(scope="module")
def cluster():
    """A Cluster of one node, which is as strict about slots as one of six."""
    with embedded_server(options={"cluster-enabled": "yes"}) as server:
        with redis.Redis.from_url(server.url) as node:
            node.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            deadline = time.monotonic() + 30
            while node.cluster("info")["cluster_state"] != "ok":
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield server


@pytest.mark.parametrize("name", [STREAM, "{t}:payouts"])
def test_a_stream_lives_in_a_cluster(cluster, name):
    with redis.RedisCluster.from_url(cluster.url) as client:
        stream = FencedStream(client, name)
        stream.append(SCOPE, {}, held(6, "o2"), event_id="e6")
        with pytest.raises(StaleToken):
            stream.append(SCOPE, {}, held(5))
        client.script_flush()

        assert stream.append(SCOPE, {}, held(7), event_id="e6").repeated
        assert stream.mark(SCOPE) == Mark(7, "o1")
        assert client.xlen(name) == 1
        stream.forget(SCOPE)
        assert stream.mark(SCOPE) is None
