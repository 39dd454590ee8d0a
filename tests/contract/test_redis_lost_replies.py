"""What the Redis store does when a reply is lost, and the question is asked a second time."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from celery_fence.locking.store import (
    Claim,
    DeliveryEnded,
    Ended,
    Ending,
    Gone,
    Granted,
    Kept,
    Note,
    Raised,
    Released,
    Renewal,
)

CLAIM = Claim("tenant:7:sync", "owner", 30.0)
DELIVERED = Claim(CLAIM.key, "owner", 30.0, delivery="d1", message="m1")
COPY = Claim(CLAIM.key, "copy", 30.0, delivery="d1", message="m1")
ASKER = Claim(CLAIM.key, "asker", 30.0, delivery="d2", message="m2", if_held="skipped")
ASKERS_COPY = Claim(CLAIM.key, "asker's copy", 30.0, delivery="d2", message="m2", if_held="skipped")
VALUE = b"\x00\xff\r\n" * 2000
ONCE = Claim(CLAIM.key, "owner", 30.0, record="payment:7")
REPEAT = Claim(CLAIM.key, "repeat", 30.0, record="payment:7")
NOTE = Note(CLAIM.key, "d1", "returned", 3600.0)


class TestLostReplies:
    def test_an_acquire_whose_reply_is_cut_is_granted_once(self, store_behind_proxy, proxy, store):
        proxy.cut_reply_to(b"EVAL")

        answer = store_behind_proxy.acquire(CLAIM)

        assert proxy.cuts == 1
        assert isinstance(answer, Granted)
        assert store.holder(CLAIM.key).token == answer.token
        assert store.release(CLAIM, answer.token) == Released()

    def test_a_release_whose_reply_is_cut_is_released(self, store_behind_proxy, proxy):
        grant = store_behind_proxy.acquire(CLAIM)
        proxy.cut_reply_to(b"EVAL")

        assert store_behind_proxy.release(CLAIM, grant.token) == Released()
        assert proxy.cuts == 1

    def test_a_release_whose_reply_is_cut_is_released_although_a_successor_came(
        self, store_behind_proxy, proxy, store
    ):
        """The copy of the release arrives when the key has another holder already."""
        grant = store_behind_proxy.acquire(CLAIM)
        proxy.hold_replies()
        releases = []
        thread = threading.Thread(
            target=lambda: releases.append(store_behind_proxy.release(CLAIM, grant.token))
        )
        thread.start()
        until(lambda: store.holder(CLAIM.key) is None)
        successor = store.acquire(Claim(CLAIM.key, "successor", 30.0))
        proxy.reset()
        proxy.heal()
        thread.join(10)

        assert releases == [Released()]
        assert store.holder(CLAIM.key).token == successor.token

    def test_a_release_repeated_after_a_successor_has_come_and_gone_says_that_it_was_repeated(
        self, store_behind_proxy, proxy, store
    ):
        """Who released first isn't remembered any more: whoever asked has to know that it did."""
        grant = store_behind_proxy.acquire(CLAIM)
        proxy.hold_replies()
        releases = []
        thread = threading.Thread(
            target=lambda: releases.append(store_behind_proxy.release(CLAIM, grant.token))
        )
        thread.start()
        until(lambda: store.holder(CLAIM.key) is None)
        successor = Claim(CLAIM.key, "successor", 30.0)
        store.release(successor, store.acquire(successor).token)
        proxy.reset()
        proxy.heal()
        thread.join(10)

        assert releases == [Gone("superseded", repeated=True)]

    def test_a_release_that_is_asked_once_says_so(self, store_behind_proxy, store):
        grant = store_behind_proxy.acquire(CLAIM)
        store.force_release(CLAIM.key)

        assert store_behind_proxy.release(CLAIM, grant.token) == Gone("force_released", repeated=False)

    def test_a_renewal_whose_reply_is_cut_is_kept(self, store_behind_proxy, proxy):
        grant = store_behind_proxy.acquire(CLAIM)
        proxy.cut_reply_to(b"EVAL")

        assert store_behind_proxy.renew([Renewal(CLAIM, grant.token, grant.since)]) == [Kept()]
        assert proxy.cuts == 1

    def test_a_renewal_of_a_vanished_lease_whose_reply_is_cut_is_kept(
        self, store_behind_proxy, proxy, client
    ):
        grant = store_behind_proxy.acquire(CLAIM)
        client.flushall()
        proxy.cut_reply_to(b"EVAL")

        assert store_behind_proxy.renew([Renewal(CLAIM, grant.token, grant.since)]) == [Kept()]

    def test_a_force_release_whose_reply_is_cut_fences_the_holder_off(self, store_behind_proxy, proxy):
        grant = store_behind_proxy.acquire(CLAIM)
        proxy.cut_reply_to(b"EVAL")

        store_behind_proxy.force_release(CLAIM.key)

        assert store_behind_proxy.release(CLAIM, grant.token) == Gone("force_released")

    def test_a_late_copy_of_an_acquire_doesn_t_take_a_released_key(self, store):
        """The client gave up on this copy, asked again, ran and released; now the network delivers it."""
        store.release(CLAIM, store.acquire(CLAIM).token)

        assert store.acquire(CLAIM) == Ended()


class TestLostRepliesAboutDeliveries:
    def test_a_miss_decided_for_good_whose_reply_is_cut_is_decided_once(
        self, store_behind_proxy, proxy, store
    ):
        holder = store.acquire(CLAIM)
        proxy.cut_reply_to(b"EVAL")

        answer = store_behind_proxy.acquire(ASKER)

        assert proxy.cuts == 1
        assert answer.holder.token == holder.token
        assert store.acquire(ASKERS_COPY).ending == Ending("skipped")

    def test_a_miss_decided_for_good_whose_reply_was_lost_stands_although_the_key_is_free_by_now(
        self, store_behind_proxy, proxy, store
    ):
        """The copy of the question arrives when the holder has gone: granted now, the work would run unrecorded."""
        holder = store.acquire(CLAIM)
        store_behind_proxy.holder(CLAIM.key)
        proxy.hold_replies()
        answers = []
        thread = threading.Thread(target=lambda: answers.append(store_behind_proxy.acquire(ASKER)))
        thread.start()
        until(lambda: isinstance(store.acquire(replace(ASKERS_COPY, if_held="")), DeliveryEnded))
        store.release(CLAIM, holder.token)
        proxy.reset()
        proxy.heal()
        thread.join(10)

        assert [answer.holder.token for answer in answers] == [holder.token]
        assert store.holder(CLAIM.key) is None

    def test_a_release_with_an_ending_whose_reply_is_cut_is_remembered_once(
        self, store_behind_proxy, proxy, store
    ):
        grant = store_behind_proxy.acquire(DELIVERED)
        proxy.cut_reply_to(b"EVAL")

        assert store_behind_proxy.release(DELIVERED, grant.token, Ending("returned", VALUE)) == Released()
        assert proxy.cuts == 1
        assert store.acquire(COPY).ending == Ending("returned", VALUE)

    def test_the_end_of_a_lost_run_whose_reply_is_cut_is_its_own(self, store_behind_proxy, proxy, store):
        """Asked again, it must not take its own marker for that of a copy, and end silently."""
        grant = store_behind_proxy.acquire(DELIVERED)
        store.force_release(CLAIM.key)
        store.acquire(ASKER)
        proxy.cut_reply_to(b"EVAL")

        answer = store_behind_proxy.release(DELIVERED, grant.token, Ending("returned"))

        assert proxy.cuts == 1
        assert (answer.reason, answer.ended) == ("taken", False)
        assert store.acquire(COPY).ending == Ending("returned")

    def test_a_release_repeated_after_the_counter_was_evicted_leaves_what_is_remembered(self, store, client):
        grant = store.acquire(DELIVERED)
        store.release(DELIVERED, grant.token, Ending("returned", VALUE))
        client.delete(store._names.of(CLAIM.key.encode())[1])

        assert store.release(DELIVERED, grant.token, Ending("failed")) == Released()
        assert store.acquire(COPY).ending == Ending("returned", VALUE)

    def test_a_note_whose_reply_is_cut_is_taken(self, store_behind_proxy, proxy, store):
        proxy.cut_reply_to(b"EVAL")

        store_behind_proxy.note([NOTE])

        assert proxy.cuts == 1
        assert store.acquire(COPY).noted


class TestLostRepliesAboutRecords:
    def test_a_claim_whose_reply_is_cut_is_claimed_once(self, store_behind_proxy, proxy, store):
        proxy.cut_reply_to(b"EVAL")
        grant = store_behind_proxy.acquire(ONCE)

        assert proxy.cuts == 1
        assert isinstance(grant, Granted)
        assert (store.record("payment:7").owner, store.record("payment:7").token) == ("owner", grant.token)

    def test_a_release_whose_reply_is_cut_records_once(self, store_behind_proxy, proxy, store):
        grant = store_behind_proxy.acquire(ONCE)
        proxy.cut_reply_to(b"EVAL")

        assert store_behind_proxy.release(ONCE, grant.token, Ending("returned", result=VALUE)) == Released()
        assert proxy.cuts == 1
        assert store.record("payment:7").value == VALUE

    def test_a_release_whose_reply_was_lost_records_nothing_over_a_successor_s_claim(
        self, store_behind_proxy, proxy, store
    ):
        """The copy of a failed run's release arrives when another does the work already."""
        grant = store_behind_proxy.acquire(ONCE)
        proxy.hold_replies()
        ending = Ending("failed")
        thread = threading.Thread(target=lambda: store_behind_proxy.release(ONCE, grant.token, ending))
        thread.start()
        until(lambda: isinstance(store.acquire(REPEAT), Granted))
        proxy.reset()
        proxy.heal()
        thread.join(10)

        assert store.record("payment:7").owner == "repeat"

    def test_an_answer_from_the_record_whose_reply_is_cut_is_the_same(self, store_behind_proxy, proxy, store):
        store.release(ONCE, store.acquire(ONCE).token, Ending("returned", result=VALUE))
        proxy.cut_reply_to(b"EVAL")

        answer = store_behind_proxy.acquire(REPEAT)

        assert proxy.cuts == 1
        assert answer.record.value == VALUE
        assert store.holder(CLAIM.key) is None

    def test_a_raised_counter_whose_reply_is_cut_is_raised(self, store_behind_proxy, proxy):
        grant = store_behind_proxy.acquire(CLAIM)
        proxy.cut_reply_to(b"EVAL")

        assert store_behind_proxy.raise_counter(CLAIM, grant.token, grant.token + 10**9) == Raised()
        assert proxy.cuts == 1

    def test_a_deletion_whose_reply_is_cut_has_deleted(self, store_behind_proxy, proxy, store):
        store.release(ONCE, store.acquire(ONCE).token, Ending("returned"))
        proxy.cut_reply_to(b"EVAL")
        store_behind_proxy.delete_record("payment:7")

        assert proxy.cuts == 1
        assert store.record("payment:7") is None


def until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
