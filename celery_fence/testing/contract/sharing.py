"""What `Store.holder` and `Store.leases` promise, and what sharing a store between askers does."""

# ruff: noqa: D102 - the test's name is the sentence

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_fence.locking.store import Kept, Store
from celery_fence.testing.contract.asking import (
    SHORT,
    Asking,
    PassTime,
    claim_of,
    expire,
    granted,
    holder_of,
    renew,
)


class ListContract(Asking):
    """Holder and leases: who has what, for people."""

    def test_a_free_key_has_no_holder(self, store: Store) -> None:
        assert store.holder("nobody:has:me") is None

    def test_every_live_lease_is_listed_and_no_other(self, store: Store, pass_time: PassTime) -> None:
        live = [claim_of(f"live:{number}") for number in range(250)]
        dead, freed = claim_of("dead", ttl=SHORT), claim_of("freed")
        for claim in (*live, dead, freed):
            granted(store, claim)
        store.release(freed, 0)
        expire(store, dead.key, pass_time)

        listed = [(holder.key, holder.owner) for holder in store.leases()]

        assert sorted(listed) == sorted((claim.key, claim.owner) for claim in live)


class ConnectionContract(Asking):
    """One store, many askers."""

    @pytest.fixture
    def for_heartbeat(self, store: Store) -> Iterator[Store]:
        """The heartbeat's view of the store."""
        heartbeat = store.for_heartbeat()
        yield heartbeat
        heartbeat.close()

    def test_the_heartbeat_s_store_sees_the_same_leases(self, store: Store, for_heartbeat: Store) -> None:
        claim = claim_of()
        grant = granted(store, claim)

        assert renew(for_heartbeat, claim, grant) == Kept()
        assert holder_of(for_heartbeat, claim.key).owner == claim.owner

    def test_threads_share_a_store_and_never_read_each_other_s_answers(self, store: Store) -> None:
        def mixed_up(number: int) -> list[str]:
            claims = [claim_of(f"thread:{number}:{turn}") for turn in range(25)]
            for claim in claims:
                granted(store, claim)
            return [claim.key for claim in claims if holder_of(store, claim.key).owner != claim.owner]

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(mixed_up, range(8))) == [[]] * 8

    def test_a_closed_store_may_be_used_again(self, store: Store) -> None:
        claim = claim_of()
        grant = granted(store, claim)
        store.close()

        assert renew(store, claim, grant) == Kept()
