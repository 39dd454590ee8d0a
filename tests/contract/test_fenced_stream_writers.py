"""Twenty writers at once, with random tokens: what is in the stream is in order, and nothing accepted is missing."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from celery_fence.errors import StaleToken
from celery_fence.fencing.streams import FencedStream
from celery_fence.fencing.writer import Writer

STREAM = "payouts"
SCOPE = "payout:7"


def entries(client):
    """Each entry's fields as text."""
    return [
        {field.decode(): value.decode() for field, value in fields.items()}
        for _, fields in client.xrange(STREAM)
    ]


def append_at_random(append, rounds, seed):
    """20 writers at once, each round with a random token and an owner of its own; what was accepted."""
    barrier = threading.Barrier(20)
    accepted = []

    def write(number):
        chance = random.Random(f"{seed}:{number}")
        barrier.wait(timeout=30)
        for round_ in range(rounds):
            token, event_id = chance.randrange(1, 10 * rounds), f"{number}-{round_}"
            if append(token, f"owner-{number}-{round_}", event_id):
                accepted.append(event_id)

    with ThreadPoolExecutor(20) as writers:
        for done in [writers.submit(write, number) for number in range(20)]:
            done.result(timeout=90)
    return accepted


def faults_in(written, accepted):
    """What is wrong with a stream: tokens that go down, one of two owners, accepted events that are missing."""
    pairs = [(int(entry["fencing_token"]), entry["fencing_owner"]) for entry in written]
    down = [(a, b) for a, b in pairwise(pairs) if b[0] < a[0] or (b[0] == a[0] and b[1] != a[1])]
    lost = set(accepted) ^ {entry["fencing_event"] for entry in written}
    return down + sorted(lost)


class TestTwentyWriters:
    def test_the_tokens_never_go_down_and_no_accepted_event_is_lost(self, server, client, rounds):
        stream = FencedStream(client, STREAM)

        def append(token, owner, event_id):
            try:
                stream.append(SCOPE, {}, Writer(SCOPE, token, owner, emit=lambda _: None), event_id=event_id)
            except StaleToken:
                return False
            return True

        accepted = append_at_random(append, rounds, seed=1)

        assert faults_in(entries(client), accepted) == []
        assert accepted
        assert len(accepted) < 20 * rounds

    def test_the_same_checker_catches_a_plain_xadd(self, client):
        def append(token, owner, event_id):
            client.xadd(STREAM, {"fencing_token": token, "fencing_owner": owner, "fencing_event": event_id})
            return True

        accepted = append_at_random(append, 10, seed=2)

        assert faults_in(entries(client), accepted) != []
