"""A write that was refused as stale ends the run: lost, or, where its lease holds, sent again with a higher token."""

from __future__ import annotations

import pytest

from celery_fence import FencedTask, LeaseLost, StaleToken, StoreUnavailable, hold, signals
from celery_fence.locking.store import Claim
from celery_fence.stores.memory import MemoryStore
from celery_fence.task.losses import ABSURD, LOST_RETRIES
from celery_fence.task.notes import Notes

AHEAD = 3600 * 1_000_000


@pytest.fixture
def write(app):
    """A task on ``job:<key>`` whose write is refused; *seen* makes the token that was seen from its own."""

    def make(seen=lambda token: token + AHEAD, *, does=lambda self: None, base=FencedTask, **options):
        @app.task(base=base, bind=True, lock_key="job:<key>", name="write", **options)
        def write(self, key, *, fencing_token):
            make.tokens.append(fencing_token)
            does(self)
            raise StaleToken("refused", scope="job:k", token=fencing_token, seen=seen(fencing_token))

        return write

    make.tokens = []
    return make


@pytest.fixture
def losses():
    told = []

    def note(key, reason, **_):
        told.append((key, reason))

    signals.lease_lost.connect(note)
    yield told
    signals.lease_lost.disconnect(note)


def counts(sent):
    return [Notes.read(headers).losses for headers, _ in sent]


class TestUnderALeaseThatHolds:
    def test_is_sent_again_and_its_next_token_is_above_the_one_that_was_seen(self, write, in_worker, sent):
        task = write()
        outcome = in_worker(task, "k")
        in_worker(task, "k")

        assert outcome.state == "RETRY"
        assert counts(sent)[0] == 1
        assert write.tokens[1] > write.tokens[0] + AHEAD

    def test_tells_of_it_aloud(self, write, in_worker, sent, caplog):
        in_worker(write(), "k")

        (line,) = [
            record
            for record in caplog.records
            if record.name == "celery_fence" and record.levelname == "ERROR"
        ]
        assert "'job:k'" in line.getMessage()
        assert str(write.tokens[0] + AHEAD) in line.getMessage()

    def test_frees_its_key(self, write, in_worker, leases, sent):
        in_worker(write(), "k")

        assert leases.holder("job:k") is None

    @pytest.mark.parametrize("policy", ["raise", "flag"])
    def test_isn_t_a_loss_so_the_lost_policy_doesn_t_end_it(self, write, in_worker, losses, sent, policy):
        assert in_worker(write(lost_policy=policy), "k").state == "RETRY"
        assert losses == []

    def test_has_a_budget_of_its_own(self, write, in_worker, sent):
        task = write(max_retries=0)
        worn = {"headers": {"fence": Notes(delivery="d", losses=LOST_RETRIES).header()}}

        assert in_worker(task, "k").state == "RETRY"
        outcome = in_worker(task, "k", **worn)
        assert (outcome.state, type(outcome.value)) == ("FAILURE", StaleToken)

    def test_isn_t_retried_by_autoretry(self, write, in_worker, sent):
        in_worker(write(autoretry_for=(Exception,), retry_kwargs={"countdown": 99}), "k")

        assert counts(sent) == [1]
        assert [headers["retries"] for headers, _ in sent] == [0]

    def test_and_a_token_equal_to_another_owner_s_gets_a_higher_one(self, write, in_worker, sent):
        task = write(lambda token: token)
        for _ in range(2):
            in_worker(task, "k")

        assert write.tokens[1] > write.tokens[0]
        assert counts(sent) == [1, 1]

    def test_eagerly_raises_the_counter_and_fails(self, write):
        task = write()
        results = [task.apply(("k",)) for _ in range(2)]

        assert [type(result.result) for result in results] == [StaleToken] * 2
        assert write.tokens[1] > write.tokens[0] + AHEAD


class TestUnderALeaseThatIsLost:
    def take_over(self, leases):
        def take_over(task):
            leases.force_release("job:k")
            leases.acquire(Claim("job:k", "another", 60.0))

        return take_over

    def test_counts_as_a_loss(self, write, in_worker, leases, sent, losses):
        outcome = in_worker(write(does=self.take_over(leases)), "k")

        assert outcome.state == "RETRY"
        assert counts(sent) == [1]
        assert losses == [("job:k", "taken")]
        assert leases.holder("job:k").owner == "another"

    def test_tells_the_task_s_own_hook(self, write, in_worker, leases, sent):
        lost = []

        class Told(FencedTask):
            abstract = True

            def on_lease_lost(self, lease):
                lost.append(lease.key)

        in_worker(write(does=self.take_over(leases), base=Told), "k")

        assert lost == ["job:k"]

    @pytest.mark.parametrize("policy", ["raise", "flag"])
    def test_fails_where_the_lost_policy_says_so(self, write, in_worker, leases, sent, policy):
        outcome = in_worker(write(does=self.take_over(leases), lost_policy=policy), "k")

        assert (outcome.state, type(outcome.value)) == ("FAILURE", StaleToken)
        assert sent == []

    def test_isn_t_retried_by_autoretry(self, write, in_worker, leases, sent):
        """S01."""
        task = write(does=self.take_over(leases), autoretry_for=(Exception,), lost_policy="raise")
        outcome = in_worker(task, "k")

        assert (outcome.state, sent) == ("FAILURE", [])

    def test_raises_no_counter(self, write, in_worker, leases, sent):
        in_worker(write(does=self.take_over(leases)), "k")

        assert leases.history("job:k").token < write.tokens[0] + AHEAD


class TestWhereNobodyCanTell:
    @pytest.mark.parametrize("seen", [lambda token: None, lambda token: ABSURD])
    def test_which_token_was_seen_it_counts_as_a_loss(self, write, in_worker, leases, sent, seen):
        task = write(seen)
        outcomes = [in_worker(task, "k").state for _ in range(2)]

        assert outcomes == ["RETRY"] * 2
        assert write.tokens[1] < write.tokens[0] + AHEAD

    @pytest.mark.parametrize(("policy", "state"), [("retry", "RETRY"), ("raise", "FAILURE")])
    @pytest.mark.usefixtures("sent")
    def test_whether_the_lease_holds_it_counts_as_a_loss(self, write, in_worker, monkeypatch, policy, state):
        def raise_counter(*_):
            raise StoreUnavailable("no route to the store")

        monkeypatch.setattr(MemoryStore, "raise_counter", raise_counter)

        assert in_worker(write(lost_policy=policy), "k").state == state

    def test_whose_token_it_was_it_is_the_body_s_own_business(self, app, write, in_worker, leases, sent):
        """That of a block inside, which has given its lease back by now."""

        @app.task(base=FencedTask, bind=True, lock_key="job:<key>", name="blocks")
        def blocks(self, key):
            with hold("inner", app=app) as lease:
                raise StaleToken("refused", scope="inner", token=lease.token, seen=lease.token + AHEAD)

        token = leases.acquire(Claim("job:k", "before", 60.0)).token
        leases.force_release("job:k")
        assert in_worker(blocks, "k").state == "FAILURE"
        assert leases.history("job:k").token < token + AHEAD


def test_a_direct_call_raises_it_as_it_is(write):
    with pytest.raises(StaleToken) as error:
        write()("k")

    assert not isinstance(error.value, LeaseLost)
