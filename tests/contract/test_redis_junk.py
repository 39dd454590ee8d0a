"""What somebody else wrote among our keys, and rights that are missing halfway: neither spoils more than it must."""

from __future__ import annotations

import pytest
import redis

from celery_fence.errors import StoreUnavailable
from celery_fence.locking.store import Claim, DeliveryEnded, Ending, Facts, Granted, Kept, Released, Renewal
from celery_fence.stores import from_url
from celery_fence.testing.servers import embedded_server

KEY = "tenant:7:sync"
CLAIM = Claim(KEY, "o", 30.0, delivery="d", message="m", record="payment:7")
IMPOSSIBLE = ["inf", "-inf", "nan", "-5", "1e300", "9007199254740992", "junk", ""]


@pytest.fixture
def names(store):
    """The lease, the counter and the expiry index."""
    return store._names.of(KEY.encode())


def renewal(claim, grant):
    return Renewal(claim, grant.token, grant.since)


class TestAnIndexOfAnotherType:
    """It is made of what the leases say, and begun afresh."""

    @pytest.fixture(params=["expiries", "records"])
    def poison(self, request, store, client, names):
        index = names[2] if request.param == "expiries" else store._names.record(b"payment:7")[1]

        def put():
            client.delete(index)
            client.set(index, "x")

        return put

    def test_keeps_no_key_closed(self, store, client, poison):
        for _ in range(2):
            poison()
            grant = store.acquire(CLAIM)
            assert isinstance(grant, Granted)
            poison()
            assert store.renew([renewal(CLAIM, grant)]) == [Kept()]
            poison()
            assert store.release(CLAIM, grant.token, Ending("failed")) == Released()
            client.delete(store._names.done(KEY.encode(), b"d"), store._names.of(KEY.encode())[1])

        store.acquire(CLAIM)
        poison()
        store.force_release(KEY)
        assert store.holder(KEY) is None

    def test_keeps_no_record_from_being_claimed_ended_and_deleted(self, store, poison):
        grant = store.acquire(Claim(KEY, "o", 30.0))
        poison()
        assert store.claim_record(CLAIM, grant.token) is None
        poison()
        store.end_record(CLAIM, grant.token, None)
        assert store.record("payment:7") is None
        store.claim_record(CLAIM, grant.token)
        poison()
        store.end_record(CLAIM, grant.token, Ending("returned"))
        assert store.record("payment:7").done
        poison()
        store.delete_record("payment:7")
        assert store.record("payment:7") is None

    def test_lets_the_others_be_listed_and_its_own_after_the_next_renewal(self, store, poison):
        """A list changes nothing."""
        other = Claim("another", "o", 30.0, record="payment:8")
        grants = [(claim, store.acquire(claim)) for claim in (CLAIM, other)]
        poison()
        for _ in range(2):
            assert "another" in {holder.key for holder in store.leases()}
            assert "payment:8" in {record.key for record in store.records()}

        store.renew([renewal(*each) for each in grants])
        assert {holder.key for holder in store.leases()} == {KEY, "another"}

    def test_spoils_no_other_lease_of_its_batch(self, store, client, names):
        claims = [Claim(f"k{number}", "o", 30.0) for number in range(99)] + [CLAIM]
        wishes = [renewal(claim, store.acquire(claim)) for claim in claims]
        client.set(names[2], "x")

        assert store.renew(wishes) == [Kept()] * 100
        assert client.pttl(names[2]) > 0

    def test_is_listed_again_with_one_that_never_expires(self, store, client, names):
        client.hset(names[0], "owner", "by hand")
        client.set(names[2], "x")
        store.acquire(CLAIM)

        assert [holder.owner for holder in store.leases()] == ["by hand"]


class TestImpossibleNumbers:
    """They are none: no token, no moment, no fence."""

    @pytest.mark.parametrize("odd", IMPOSSIBLE)
    def test_a_counter_of_one_is_unused_and_tokens_grow(self, store, client, names, odd):
        client.hset(names[1], mapping={"token": odd, "forced": odd})
        tokens = []
        for number in range(3):
            claim = Claim(KEY, f"o{number}", 30.0)
            grant = store.acquire(claim)
            assert store.renew([renewal(claim, grant)]) == [Kept()]
            assert store.release(claim, grant.token) == Released()
            tokens.append(grant.token)

        assert tokens == sorted(set(tokens))
        assert tokens[0] == pytest.approx(client.time()[0] * 1_000_000, abs=60_000_000)

    @pytest.mark.parametrize("odd", IMPOSSIBLE)
    def test_a_vanished_lease_is_put_back_whatever_its_counter_says(self, store, client, names, odd):
        grant = store.acquire(CLAIM)
        client.delete(names[0])
        client.hset(names[1], mapping={"token": odd, "forced": odd})

        assert store.renew([renewal(CLAIM, grant)]) == [Kept(reinstated=True)]

    @pytest.mark.parametrize("odd", IMPOSSIBLE)
    def test_a_lease_of_one_is_set_right_by_its_owner(self, store, client, names, odd):
        grant = store.acquire(CLAIM)
        client.hset(names[0], mapping={"token": odd, "since": odd})
        assert store.renew([renewal(CLAIM, grant)]) == [Kept()]
        assert client.hget(names[0], "token") == str(grant.token).encode()
        client.hset(names[0], mapping={"token": odd, "since": odd})

        again = store.acquire(CLAIM)
        assert again.token > grant.token
        assert again.since > 0

    def test_a_lease_without_a_token_is_no_older_one(self, store, client, names):
        """Somebody put it there to keep others out."""
        grant = store.acquire(CLAIM)
        client.hset(names[0], mapping={"owner": "by hand", "token": "junk"})

        assert store.renew([renewal(CLAIM, grant)])[0].reason == "taken"
        assert store.release(CLAIM, grant.token).reason == "taken"

    @pytest.mark.parametrize("odd", IMPOSSIBLE)
    def test_an_end_of_one_is_an_end(self, store, client, odd):
        store.release(CLAIM, store.acquire(CLAIM).token, Ending("returned", b"1"))
        client.delete(store._names.record(b"payment:7")[0])
        client.hset(store._names.done(KEY.encode(), b"d"), mapping={"at": odd, "holder": "[1"})

        told = store.acquire(CLAIM)
        assert isinstance(told, DeliveryEnded)
        assert told.ending == Ending("returned", b"1")
        assert told.age >= 0

    @pytest.mark.parametrize("odd", IMPOSSIBLE)
    def test_a_record_of_one_can_be_read(self, store, client, odd):
        store.acquire(CLAIM)
        client.hset(store._names.record(b"payment:7")[0], mapping={"token": odd, "claimed": odd, "done": odd})

        record = store.record("payment:7")
        assert (record.token, record.claimed, record.done) == (0, 0.0, None)


class TestFactsThatAreNone:
    """A lease that was made by hand says of its owner what it likes."""

    @pytest.mark.parametrize("junk", [b"[" * 100_000, b'{"a":' * 50_000, b"\xff", b"[1]", b"9" * 5000])
    def test_spoil_no_other_lease_of_a_batch(self, store, client, names, junk):
        other = Claim("another", "o2", 30.0)
        grant, others = store.acquire(CLAIM), store.acquire(other)
        client.hset(names[0], mapping={"owner": "a person", "token": grant.token + 1, "facts": junk})

        gone, kept = store.renew([renewal(CLAIM, grant), renewal(other, others)])

        assert (gone.reason, gone.holder.facts) == ("taken", Facts())
        assert kept == Kept()

    def test_of_an_end_neither(self, store, client):
        store.release(CLAIM, store.acquire(CLAIM).token, Ending("failed"))
        client.hset(store._names.done(KEY.encode(), b"d"), "how", b"\xff")

        assert isinstance(store.acquire(Claim(KEY, "p", 30.0, delivery="d")), DeliveryEnded)


@pytest.fixture(scope="module")
def strict_server():
    """With an administrator, who takes rights away."""
    with embedded_server() as running:
        with redis.Redis.from_url(running.url) as client:
            client.execute_command("ACL", "SETUSER", "boss", "on", ">s3cret", "~*", "&*", "+@all")
        yield running


class TestOneRightThatIsMissing:
    """Scripts aren't rolled back."""

    @pytest.fixture
    def server(self, strict_server):
        return strict_server

    @pytest.fixture
    def client(self, server):
        with redis.Redis(host=server.host, port=server.port, username="boss", password="s3cret") as boss:
            boss.execute_command("ACL", "SETUSER", "default", "+@all")
            boss.flushall()
            yield boss

    @pytest.fixture
    def store(self, server, client, prefix):
        made = from_url(server.url, prefix=prefix, timeout=5)
        yield made
        made.close()

    def forbid(self, client, right):
        client.execute_command("ACL", "SETUSER", "default", f"-{right}")

    def allow(self, client):
        client.execute_command("ACL", "SETUSER", "default", "+@all")

    @pytest.mark.parametrize("right", ["hmget", "hset", "pexpire", "zadd", "zremrangebyscore", "del"])
    def test_no_key_is_freed_before_its_end_is_remembered(self, store, client, names, right):
        grant = store.acquire(CLAIM)
        self.forbid(client, right)
        ending = Ending("returned", b"1", b"2")
        with pytest.raises(StoreUnavailable, match=right):
            store.release(CLAIM, grant.token, ending)
        assert client.exists(names[0])

        self.allow(client)
        assert store.release(CLAIM, grant.token, ending) == Released()
        assert not client.exists(names[0])
        assert store.acquire(Claim(KEY, "p", 30.0, delivery="d")).ending.value == b"1"
        assert store.record("payment:7").done

    @pytest.mark.parametrize("right", ["hmget", "hset", "zadd", "zremrangebyscore", "del"])
    def test_no_lease_is_left_that_nobody_has_heard_of(self, store, client, names, right):
        self.forbid(client, right)
        with pytest.raises(StoreUnavailable, match=right):
            store.acquire(CLAIM)

        assert not client.exists(names[0])

    @pytest.mark.parametrize("right", ["hset", "pexpire"])
    def test_no_key_is_freed_by_force_before_its_holder_is_fenced_off(self, store, client, names, right):
        store.acquire(CLAIM)
        self.forbid(client, right)
        with pytest.raises(StoreUnavailable, match=right):
            store.force_release(KEY)

        assert client.exists(names[0])

    def test_what_can_t_be_read_is_neither_taken_for_gone_nor_for_junk(self, store, client, names):
        grant = store.acquire(CLAIM)
        self.forbid(client, "hmget")
        questions = [
            lambda: store.renew([renewal(CLAIM, grant)]),
            lambda: store.acquire(Claim(KEY, "p", 30.0)),
            lambda: store.history(KEY),
        ]
        for ask in questions:
            with pytest.raises(StoreUnavailable, match="hmget"):
                ask()

        assert client.hget(names[1], "token") == str(grant.token).encode()
        self.allow(client)
        assert store.renew([renewal(CLAIM, grant)]) == [Kept()]
