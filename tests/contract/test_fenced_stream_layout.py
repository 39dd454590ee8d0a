"""What a fenced stream leaves in Redis: where, and for how long; and what it refuses to leave there."""

from __future__ import annotations

import time

import pytest
import redis

from celery_fence.errors import ConfigError, FenceError
from celery_fence.fencing.streams import FencedStream, Stamp

STREAM = "payouts"
SCOPE = "payout:7"


def held(token, owner="o1", key=SCOPE):
    return Stamp(key, token, owner)


@pytest.fixture
def stream(client):
    return FencedStream(client, STREAM)


class TestNames:
    @pytest.mark.parametrize("name", ["payouts", "{payouts}:events", "a{b", "x{t}y{u}"])
    def test_everything_of_a_stream_lies_in_one_cluster_slot(self, client, name):
        stream = FencedStream(client, name)
        stream.append("order:{7}:a%b", {}, held(5, key="order:{7}:a%b"), event_id="{e}")

        keys = client.keys()
        assert len(keys) == 3
        assert len({redis.crc.key_slot(key) for key in keys}) == 1

    @pytest.mark.parametrize("name", ["", "a}b", "{}x", "}{"])
    def test_a_name_that_can_have_no_companions_in_its_slot_is_refused(self, client, name):
        with pytest.raises(ConfigError, match="hash tag"):
            FencedStream(client, name)

    def test_no_two_streams_and_aggregates_share_a_mark(self, client):
        FencedStream(client, "{t}a").append("b:c", {}, held(9, key="b:c"))
        FencedStream(client, "{t}a:b").append("c", {}, held(5, key="c"))
        FencedStream(client, "{t}a").append("b%3Ac", {}, held(5, key="b%3Ac"))

        assert len(client.keys("*:mark:*")) == 3

    def test_no_two_events_share_a_memory(self, client, stream):
        stream.append("a:b", {}, held(5, key="a:b"), event_id="c")

        assert not stream.append("a", {}, held(5, key="a"), event_id="b:c").repeated

    def test_a_prefix_with_braces_is_refused(self, client):
        with pytest.raises(ConfigError, match="braces"):
            FencedStream(client, STREAM, prefix="a{b}")

    def test_a_client_that_has_to_be_awaited_is_refused(self):
        with pytest.raises(ConfigError, match=r"redis\.Redis"):
            FencedStream(redis.asyncio.Redis(), STREAM)

    @pytest.mark.parametrize("wrong", [0, -1, float("inf"), float("nan"), True])
    def test_a_retention_that_is_no_time_is_refused(self, client, wrong):
        with pytest.raises(ConfigError, match="retention"):
            FencedStream(client, STREAM, retention=wrong)

    @pytest.mark.parametrize("event", [{"fencing_token": "9"}, {"a": None}, {"a": [1]}, {"a": True}])
    def test_an_event_that_cannot_be_an_entry_is_refused(self, stream, client, event):
        with pytest.raises(FenceError, match="field"):
            stream.append(SCOPE, event, held(5))

        assert client.keys() == []

    def test_an_event_of_too_many_fields_is_refused(self, stream, client):
        stream.append(SCOPE, {f"f{number}": "x" for number in range(1000)}, held(5))
        with pytest.raises(FenceError, match="1000"):
            stream.append(SCOPE, {f"f{number}": "x" for number in range(1001)}, held(5))


class TestLifetimes:
    def test_marks_and_memories_expire_and_the_stream_does_not(self, client):
        stream = FencedStream(client, STREAM, retention=1000, event_retention=100)
        stream.append(SCOPE, {}, held(5), event_id="e")

        (mark,), (memory,) = client.keys("*:mark:*"), client.keys("*:event:*")
        assert 990 < client.ttl(mark) <= 1000
        assert 90 < client.ttl(memory) <= 100
        assert client.ttl(STREAM) == -1

    def test_a_mark_may_stay_for_good(self, client):
        FencedStream(client, STREAM, retention=10).append(SCOPE, {}, held(5))
        FencedStream(client, STREAM, retention=None).append(SCOPE, {}, held(6))

        assert client.ttl(client.keys("*:mark:*")[0]) == -1

    def test_each_event_prolongs_the_mark(self, client, stream):
        stream.append(SCOPE, {}, held(5))
        (mark,) = client.keys("*:mark:*")
        client.expire(mark, 5)
        stream.append(SCOPE, {}, held(5))

        assert client.ttl(mark) > 1000

    def test_nothing_but_the_stream_is_left_once_they_are_over(self, client):
        stream = FencedStream(client, STREAM, retention=0.05, event_retention=0.05)
        for number in range(5):
            stream.append(f"p:{number}", {}, held(5, key=f"p:{number}"), event_id="e")

        deadline = time.monotonic() + 20
        while client.keys() != [STREAM.encode()] and time.monotonic() < deadline:
            time.sleep(0.02)
        assert client.keys() == [STREAM.encode()]
