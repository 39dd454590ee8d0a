"""Each question is one command, and forgotten scripts cost one more round trip."""

from __future__ import annotations

import pytest

from celery_fence.locking.store import Claim, Ending, Kept, Note, Released, Renewal
from tests.contract.redis_faults.asked import ASKER, ASKERS_COPY, CLAIM, COPY, DELIVERED, VALUE


def calls(client):
    """How often each command was run, without those of connecting and looking."""
    stats = client.info("commandstats")
    # Commands that a script runs are counted too: only those that came over the wire are of interest.
    return {
        name: stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval", "script|load")
    }


def rise(client, question):
    before = calls(client)
    question()
    return {name: after - before[name] for name, after in calls(client).items() if after != before[name]}


class TestScripts:
    def test_each_question_is_one_command(self, store, client):
        def questions():
            grant = store.acquire(CLAIM)
            store.acquire(Claim(CLAIM.key, "another", 5.0))
            store.renew([Renewal(CLAIM, grant.token, grant.since)])
            store.holder(CLAIM.key)
            store.release(CLAIM, grant.token)
            store.force_release(CLAIM.key)

        rise(client, questions)
        store.force_release(CLAIM.key)
        client.delete(*client.keys())

        assert rise(client, questions) == {"evalsha": 6}

    def test_a_hundred_leases_of_many_buckets_are_renewed_by_one_command(self, store, client):
        claims = [Claim(f"tenant:{number}", "o", 5.0) for number in range(100)]
        wishes = [
            Renewal(claim, grant.token, grant.since) for claim in claims if (grant := store.acquire(claim))
        ]
        store.renew(wishes)

        assert rise(client, lambda: store.renew(wishes)) == {"evalsha": 1}

    @pytest.mark.parametrize("lost_delay", [0.0, 20.0])
    def test_a_lease_that_is_as_it_was_left_is_renewed_by_its_time_left_alone(
        self, store, client, lost_delay
    ):
        claims = [Claim(f"tenant:{number}", "o", 5.0, lost_delay=lost_delay) for number in range(100)]
        wishes = [
            Renewal(claim, grant.token, grant.since) for claim in claims if (grant := store.acquire(claim))
        ]
        client.config_resetstat()

        assert store.renew(wishes) == [Kept()] * 100

        ran = {name: stats["calls"] for name, stats in client.info("commandstats").items()}
        assert ran["cmdstat_hmget"] == ran["cmdstat_zadd"] == ran["cmdstat_pexpire"] == 100
        assert ran["cmdstat_pttl"] <= 64 + (100 if lost_delay else 0)
        assert (ran["cmdstat_time"], "cmdstat_hset" in ran) == (1, False)

    def test_forgotten_scripts_cost_one_more_round_trip_and_nothing_else(self, store, client):
        grant = store.acquire(CLAIM)
        for question, expected in (
            (lambda: store.acquire(CLAIM), grant),
            (lambda: store.renew([Renewal(CLAIM, grant.token, grant.since)]), [Kept()]),
            (lambda: store.release(CLAIM, grant.token), Released()),
        ):
            client.script_flush()
            answers = []
            assert rise(client, lambda ask=question: answers.append(ask())) == {"evalsha": 1, "eval": 1}  # noqa: B023
            assert answers == [expected]

    def test_each_question_about_deliveries_is_one_command(self, store, client):
        def questions():
            grant = store.acquire(DELIVERED)
            store.acquire(ASKER)
            store.acquire(ASKERS_COPY)
            store.release(DELIVERED, grant.token, Ending("returned", VALUE))
            store.acquire(COPY)
            store.note([Note(f"k{number}", "d1", "returned", 3600.0) for number in range(100)])

        rise(client, questions)
        client.delete(*client.keys())

        assert rise(client, questions) == {"evalsha": 6}

    def test_nothing_to_note_is_no_command(self, store, client):
        assert rise(client, lambda: store.note([Note(CLAIM.key, "", "returned", 3600.0)])) == {}
