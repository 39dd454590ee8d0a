"""The embedded server of the test kit is there when it says so."""

from __future__ import annotations

import redis

from celery_fence.testing.servers import embedded_server

KEYS = 20_000
"""Each of which the server is told to take 50 microseconds for; every thousandth time it looks who asks."""


def test_a_server_that_still_reads_its_data_has_not_started():
    with embedded_server(persistent=True) as server, redis.Redis.from_url(server.url) as client:
        with client.pipeline(transaction=False) as written:
            for number in range(KEYS):
                written.set(f"key {number}", "value")
            written.execute()
        server.stop()
        server.options |= {"key-load-delay": "50", "loading-process-events-interval-bytes": "1024"}
        server.start()

        assert client.info("persistence")["loading"] == 0
