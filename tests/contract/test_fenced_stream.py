"""What is in a fenced stream is in the order of its tokens, once, and says whose it is."""

from __future__ import annotations

import pytest
import redis
from celery import Celery

from celery_fence import FencedTask, signals
from celery_fence.errors import ScopeMismatch, StaleToken, UnfencedWrite
from celery_fence.fencing.streams import Appended, FencedStream, Mark, MemoryMarks, Stamp, TokenGate
from celery_fence.fencing.writer import Writer
from celery_fence.locking.null_lease import NullLease

STREAM = "payouts"
SCOPE = "payout:7"


def held(token, owner="o1", key=SCOPE):
    return Stamp(key, token, owner)


@pytest.fixture
def stream(client):
    return FencedStream(client, STREAM)


def entries(client, name=STREAM):
    """Each entry's fields as text."""
    return [
        {field.decode(): value.decode() for field, value in fields.items()}
        for _, fields in client.xrange(name)
    ]


def tokens(client):
    return [int(entry["fencing_token"]) for entry in entries(client)]


class TestAppending:
    def test_an_entry_carries_the_event_and_whose_it_is(self, stream, client):
        done = stream.append(SCOPE, {"type": "paid", "cents": 1250}, held(5), event_id="e1")

        (entry,) = client.xrange(STREAM)
        assert (done, entry[0].decode()) == (Appended(done.entry), done.entry)
        assert entries(client) == [
            {
                "type": "paid",
                "cents": "1250",
                "fencing_token": "5",
                "fencing_scope": SCOPE,
                "fencing_owner": "o1",
                "fencing_event": "e1",
            }
        ]
        assert Stamp.read(entry[1]) == held(5)

    def test_a_token_of_sixteen_digits_arrives_whole(self, stream, client):
        token = 2**53 - 1
        stream.append(SCOPE, {}, held(token))
        with pytest.raises(StaleToken) as refused:
            stream.append(SCOPE, {}, held(token - 1))

        assert tokens(client) == [token]
        assert refused.value.seen == token

    def test_a_client_that_decodes_replies_will_do(self, server, client):
        with redis.Redis.from_url(server.url, decode_responses=True) as decoding:
            stream = FencedStream(decoding, STREAM)
            done = stream.append(SCOPE, {"a": "ü"}, held(5))
            assert isinstance(done.entry, str)
            assert stream.mark(SCOPE) == Mark(5, "o1")
            assert Stamp.read(decoding.xrange(STREAM)[0][1]) == held(5)
            with pytest.raises(StaleToken):
                stream.append(SCOPE, {}, held(4))

    def test_binary_values_arrive_byte_by_byte(self, stream, client):
        stream.append(SCOPE, {"raw": b"\x00\xff\r\n"}, held(5))

        assert client.xrange(STREAM)[0][1][b"raw"] == b"\x00\xff\r\n"

    def test_the_stream_is_kept_short_if_asked(self, client):
        stream = FencedStream(client, STREAM, maxlen=100)
        for number in range(1, 400):
            stream.append(SCOPE, {"n": number}, held(number))

        assert client.xlen(STREAM) < 300
        assert tokens(client)[-1] == 399

    def test_it_costs_one_round_trip(self, stream, client, monkeypatch):
        stream.append(SCOPE, {}, held(5))
        commands = []
        send = client.execute_command
        monkeypatch.setattr(
            client, "execute_command", lambda *words, **how: commands.append(words[0]) or send(*words, **how)
        )
        for number in range(6, 16):
            stream.append(SCOPE, {}, held(number))

        assert commands == ["EVALSHA"] * 10

    def test_a_server_that_has_forgotten_the_script_is_told_it_again(self, stream, client):
        stream.append(SCOPE, {}, held(5))
        client.script_flush()
        stream.append(SCOPE, {}, held(6))

        assert tokens(client) == [5, 6]


class TestRefusing:
    def test_a_lower_token_is_refused_and_nothing_is_appended(self, stream, client):
        stream.append(SCOPE, {"by": "successor"}, held(6, "o2"))
        before = client.dump(STREAM)

        with pytest.raises(StaleToken) as refused:
            stream.append(SCOPE, {"by": "straggler"}, held(5))

        assert (refused.value.scope, refused.value.token, refused.value.seen) == (SCOPE, 5, 6)
        assert client.dump(STREAM) == before
        assert stream.mark(SCOPE) == Mark(6, "o2")

    def test_an_equal_token_of_another_owner_is_refused(self, stream, client):
        stream.append(SCOPE, {}, held(5, "o1"))
        with pytest.raises(StaleToken, match="another owner"):
            stream.append(SCOPE, {}, held(5, "o2"))

        assert len(entries(client)) == 1

    def test_an_owner_that_is_not_known_passes_at_an_equal_token_and_makes_nobody_forgotten(
        self, stream, client
    ):
        stream.append(SCOPE, {}, held(5, "o1"))
        stream.append(SCOPE, {}, held(5, None))
        assert stream.mark(SCOPE) == Mark(5, "o1")
        with pytest.raises(StaleToken):
            stream.append(SCOPE, {}, held(4, None))

        assert tokens(client) == [5, 5]

    def test_one_run_appends_as_often_as_it_likes(self, stream, client):
        for _ in range(3):
            stream.append(SCOPE, {}, held(5))

        assert tokens(client) == [5, 5, 5]

    def test_aggregates_are_compared_apart(self, stream, client):
        stream.append("payout:8", {}, held(9, key="payout:8"))
        stream.append(SCOPE, {}, held(5))

        assert tokens(client) == [9, 5]

    def test_streams_are_compared_apart(self, client, stream):
        FencedStream(client, "refunds").append(SCOPE, {}, held(9))
        stream.append(SCOPE, {}, held(5))

        assert tokens(client) == [5]

    def test_a_mark_that_cannot_be_read_lets_nobody_pass(self, stream, client):
        stream.append(SCOPE, {}, held(5))
        (mark,) = client.keys("*:mark:*")
        client.hset(mark, "token", "junk")
        with pytest.raises(redis.ResponseError, match="no fencing token"):
            stream.append(SCOPE, {}, held(6))

        assert tokens(client) == [5]

    def test_a_full_server_refuses_the_whole_and_the_next_try_succeeds(self, stream, client):
        stream.append(SCOPE, {}, held(5))
        client.config_set("maxmemory", 1)
        try:
            with pytest.raises(redis.exceptions.OutOfMemoryError):
                stream.append(SCOPE, {}, held(6), event_id="e")
            assert stream.mark(SCOPE) == Mark(5, "o1")
        finally:
            client.config_set("maxmemory", 0)

        assert not stream.append(SCOPE, {}, held(6), event_id="e").repeated
        assert tokens(client) == [5, 6]


class TestKeys:
    def test_a_lease_on_another_key_is_an_error_and_nothing_is_appended(self, stream, client):
        with pytest.raises(ScopeMismatch, match="payout:8"):
            stream.append("payout:8", {}, held(5, key=SCOPE))

        assert client.keys() == []

    def test_one_key_may_cover_many_aggregates(self, stream, client):
        for aggregate in ("payout:7", "payout:8"):
            stream.append(aggregate, {}, held(5, key="tenant:1"), key="tenant:1")

        assert [entry["fencing_scope"] for entry in entries(client)] == ["payout:7", "payout:8"]

    @pytest.mark.parametrize("mode", ["enforce", "shadow"])
    def test_an_aggregate_stays_with_the_key_it_was_written_under(self, stream, client, mode):
        stream.append(SCOPE, {}, held(5, key="tenant:1"), key="tenant:1")

        with pytest.raises(ScopeMismatch) as refused:
            stream.append(SCOPE, {}, held(9, key="tenant:2"), key="tenant:2", mode=mode)

        assert (refused.value.scope, refused.value.key) == (SCOPE, "tenant:2")
        assert tokens(client) == [5]
        assert stream.mark(SCOPE) == Mark(5, "o1")

    def test_a_mark_that_was_forgotten_lets_another_key_begin(self, stream, client):
        stream.append(SCOPE, {}, held(5, key="tenant:1"), key="tenant:1")
        stream.forget(SCOPE)
        assert stream.mark(SCOPE) is None
        stream.append(SCOPE, {}, held(4))

        assert tokens(client) == [5, 4]


class TestRepeats:
    def test_an_event_with_an_id_is_appended_once_whoever_repeats_it(self, stream, client):
        first = stream.append(SCOPE, {"n": 1}, held(5), event_id="e1")
        again = stream.append(SCOPE, {"n": 1}, held(5), event_id="e1")
        successor = stream.append(SCOPE, {"n": 1}, held(6, "o2"), event_id="e1")

        assert not first.repeated
        assert again == successor == Appended(first.entry, repeated=True)
        assert tokens(client) == [5]

    def test_a_repeat_by_a_successor_still_closes_the_door_to_the_first(self, stream, client):
        stream.append(SCOPE, {}, held(5), event_id="e1")
        stream.append(SCOPE, {}, held(6, "o2"), event_id="e1")
        with pytest.raises(StaleToken):
            stream.append(SCOPE, {}, held(5), event_id="e2")

        assert stream.mark(SCOPE) == Mark(6, "o2")

    def test_a_straggler_hears_of_its_own_event_although_a_successor_wrote(self, stream, client):
        first = stream.append(SCOPE, {}, held(5), event_id="e1")
        stream.append(SCOPE, {}, held(6, "o2"))

        assert stream.append(SCOPE, {}, held(5), event_id="e1") == Appended(first.entry, repeated=True)
        assert stream.mark(SCOPE) == Mark(6, "o2")

    def test_a_straggler_is_refused_an_event_of_somebody_else(self, stream, client):
        stream.append(SCOPE, {}, held(6, "o2"), event_id="e1")
        with pytest.raises(StaleToken):
            stream.append(SCOPE, {}, held(5), event_id="e1")

    def test_the_same_id_of_another_aggregate_is_another_event(self, stream, client):
        stream.append(SCOPE, {}, held(5), event_id="e1")
        stream.append("payout:8", {}, held(6, key="payout:8"), event_id="e1")

        assert tokens(client) == [5, 6]

    def test_a_call_whose_reply_is_lost_appends_once(self, server, client, proxy):
        retry = redis.retry.Retry(redis.backoff.NoBackoff(), 2)
        url = f"redis://127.0.0.1:{proxy.port}/0"
        with redis.Redis.from_url(url, retry=retry, retry_on_error=[redis.ConnectionError]) as shaky:
            stream = FencedStream(shaky, STREAM)
            stream.append(SCOPE, {}, held(5))
            proxy.cut_reply_to(b"EVALSHA")
            done = stream.append(SCOPE, {}, held(6))

        assert proxy.cuts == 1
        assert done.repeated
        assert tokens(client) == [5, 6]

    def test_a_lost_reply_that_reached_the_caller_is_repeated_by_event_id(self, server, client, proxy):
        retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        with redis.Redis.from_url(f"redis://127.0.0.1:{proxy.port}/0", retry=retry) as shaky:
            stream = FencedStream(shaky, STREAM)
            stream.append(SCOPE, {}, held(5))
            proxy.cut_reply_to(b"EVALSHA")
            with pytest.raises(redis.ConnectionError):
                stream.append(SCOPE, {}, held(6), event_id="e6")
            assert stream.append(SCOPE, {}, held(7, "o2"), event_id="e6").repeated

        assert tokens(client) == [5, 6]


class TestModes:
    def test_shadow_appends_what_is_stale_and_tells(self, stream, client):
        told = []
        stream.append(SCOPE, {}, held(6, "o2"))

        done = stream.append(SCOPE, {}, Writer(SCOPE, 5, "o1", "shadow", emit=told.append))

        assert tokens(client) == [6, 5]
        assert client.xrange(STREAM)[-1][0].decode() == done.entry
        assert stream.mark(SCOPE) == Mark(6, "o2")
        assert [(event.refused, event.seen, event.what) for event in told] == [(False, 6, "XADD payouts")]

    def test_enforce_tells_as_well(self, stream):
        told = []
        stream.append(SCOPE, {}, held(6, "o2"))
        with pytest.raises(StaleToken):
            stream.append(SCOPE, {}, Writer(SCOPE, 5, "o1", emit=told.append))

        assert [(event.refused, event.scope, event.seen_owner) for event in told] == [(True, SCOPE, "o2")]

    def test_inside_a_task_a_refusal_is_told_to_the_observers_of_its_app(self, server, stream):
        """As a signal, here; the gate of a consumer likewise."""
        app = Celery("stream", broker="memory://", backend="cache+memory://", set_as_current=False)
        app.conf.fence_url = server.url
        marks = MemoryMarks()
        stream.append(SCOPE, {}, held(2**53 - 1))
        marks.raise_mark(SCOPE, Mark(2**53 - 1))

        @app.task(base=FencedTask, bind=True, lock_key=SCOPE, name="straggler", shared=False)
        def straggler(self):
            assert not TokenGate(marks).admits(Stamp.of())
            stream.append(SCOPE, {})

        def note(sender, key, what, refused, **_):
            told.append((sender.name, key, what, refused))

        told = []
        signals.stale_write_refused.connect(note)
        try:
            with pytest.raises(StaleToken):
                straggler()
        finally:
            signals.stale_write_refused.disconnect(note)
            app.close()

        assert told == [
            ("straggler", SCOPE, "a message", True),
            ("straggler", SCOPE, f"XADD {STREAM}", True),
        ]

    def test_off_neither_compares_nor_raises_the_mark(self, stream, client):
        stream.append(SCOPE, {}, held(6, "o2"))
        stream.append(SCOPE, {}, held(5), mode="off")
        stream.append(SCOPE, {}, held(9), mode="off")

        assert tokens(client) == [6, 5, 9]
        assert stream.mark(SCOPE) == Mark(6, "o2")

    def test_a_run_without_a_token_is_refused(self, stream, client):
        with pytest.raises(UnfencedWrite):
            stream.append(SCOPE, {}, NullLease())
        with pytest.raises(UnfencedWrite, match="no lease"):
            stream.append(SCOPE, {})

        assert client.keys() == []

    def test_a_run_without_a_token_passes_in_shadow_and_is_told_of(self, stream, client):
        told = []
        stream.append(SCOPE, {"a": "1"}, NullLease(emit=told.append), mode="shadow")

        (entry,) = entries(client)
        assert {name: entry[name] for name in ("a", "fencing_scope")} == {"a": "1", "fencing_scope": SCOPE}
        assert not {"fencing_token", "fencing_owner"} & set(entry)
        assert [event.refused for event in told] == [False]
