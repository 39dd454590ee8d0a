"""A policy is a value; `decide` is a function of it and of a miss."""

import math
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from decimal import Decimal
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_fence.errors import ConfigError
from celery_fence.locking.policies import (
    Coalesce,
    DeadLetter,
    Fail,
    GiveUp,
    Miss,
    Park,
    Raise,
    Requeue,
    Retry,
    SendLater,
    SendToBack,
    Skip,
    SkipRun,
    Wait,
    as_policy,
    decide,
    policy_named,
    stages,
)
from celery_fence.locking.policies.written import SYNONYMS
from celery_fence.locking.store import Holder

seconds = st.floats(min_value=0.001, max_value=1e6)
rolls = st.floats(min_value=0, max_value=1, exclude_max=True)


def holder(ttl_left=None):
    return Holder("tenant:7", "other", token=1, ttl_left=ttl_left)


def miss(**facts):
    return Miss(**{"key": "tenant:7", "holder": holder(), **facts})


WRITTEN = [
    (Retry(), "Retry()"),
    (Retry(min_delay=1, max_delay=60), "Retry()"),
    (Retry(max_wait=30), "Retry(max_wait=30)"),
    (
        Retry(min_delay=2, max_delay=8, max_attempts=3, then="skip"),
        "Retry(min_delay=2, max_delay=8, max_attempts=3, then=Skip())",
    ),
    (Requeue(max_wait=5, then=Raise()), "Requeue(max_wait=5, then=Raise())"),
    (DeadLetter(queue="lost"), "DeadLetter(queue='lost')"),
    (Skip(), "Skip()"),
    (Skip(result=None), "Skip(result=None)"),
    (Skip(result=0, chain="continue"), "Skip(result=0, chain='continue')"),
    (Wait(timeout=10, then="retry"), "Wait(timeout=10)"),
    (Park(max_parked=3), "Park(max_parked=3)"),
    (Coalesce(), "Coalesce()"),
    (Raise(), "Raise()"),
]


class TestAPolicyAsAValue:
    @pytest.mark.parametrize(("policy", "written"), WRITTEN)
    def test_prints_as_it_is_written_and_reads_back_equal(self, policy, written):
        assert repr(policy) == written
        assert eval(written) == policy

    @pytest.mark.parametrize(("policy", "_written"), WRITTEN)
    def test_travels_by_pickle_and_works_as_a_dictionary_key(self, policy, _written):
        assert pickle.loads(pickle.dumps(policy)) == policy
        assert {policy: 1}[pickle.loads(pickle.dumps(policy))] == 1

    def test_cannot_be_changed(self):
        with pytest.raises(FrozenInstanceError):
            Retry().max_wait = 3

    def test_a_skip_that_gives_none_differs_from_one_that_gives_its_record(self):
        assert Skip(result=None) != Skip()

    def test_a_function_as_the_result_prints_by_its_name(self):
        assert repr(Skip(result=policy_named)) == "Skip(result=policy_named)"

    def test_then_takes_a_name_as_well_as_an_object(self):
        assert Retry(max_wait=3, then="skip") == Retry(max_wait=3, then=Skip())


class TestNames:
    @pytest.mark.parametrize(
        ("name", "policy"),
        [
            ("retry", Retry()),
            ("requeue", Requeue()),
            ("dead_letter", DeadLetter()),
            ("skip", Skip()),
            ("raise", Raise()),
            ("wait", Wait()),
            ("park", Park()),
            ("coalesce", Coalesce()),
        ],
    )
    def test_each_name_means_the_policy_with_its_defaults(self, name, policy):
        assert policy_named(name) == policy

    @pytest.mark.parametrize(
        ("wrong", "right"),
        [
            ("retyr", "retry"),
            ("dead-letter", "dead_letter"),
            ("Retry", "retry"),
            ("drop", "skip"),
            ("dlq", "dead_letter"),
            ("fail", "raise"),
        ],
    )
    def test_a_wrong_name_is_answered_with_the_nearest_right_one(self, wrong, right):
        with pytest.raises(ConfigError, match=f"named '{wrong}'. Did you mean '{right}'"):
            policy_named(wrong)

    def test_a_name_like_no_other_is_answered_with_all_of_them(self):
        with pytest.raises(
            ConfigError, match=r"The names are 'retry', 'requeue', 'dead_letter', 'skip', 'raise'\."
        ):
            policy_named("xyzzy")

    @pytest.mark.parametrize("wrong", ["waits", "prak", "coalesc", "block", "fifo", "debounce"])
    def test_one_of_a_later_version_is_never_the_hint(self, wrong):
        with pytest.raises(ConfigError) as caught:
            policy_named(wrong)
        assert not any(f"'{name}'" in str(caught.value) for name in ("wait", "park", "coalesce"))

    def test_a_class_instead_of_an_object_says_to_call_it(self):
        with pytest.raises(ConfigError, match=r"write Skip\(\)"):
            as_policy(Skip)

    @pytest.mark.parametrize("value", [None, 3, True, ["retry"]])
    def test_what_is_no_policy_at_all_is_shown(self, value):
        with pytest.raises(ConfigError, match="A policy is a name such as 'retry'"):
            as_policy(value)


class TestWrongFields:
    @pytest.mark.parametrize("kind", [Retry, Requeue, Park])
    @pytest.mark.parametrize("value", [-1, 0, "30", True, math.nan, math.inf, [3]])
    def test_a_time_that_is_none_names_policy_field_and_value(self, kind, value):
        with pytest.raises(ConfigError) as caught:
            kind(max_wait=value)
        assert str(caught.value).startswith(f"{kind.__name__}(max_wait={value!r}): max_wait must be a number")

    @pytest.mark.parametrize(
        "wrong",
        [
            lambda: Retry(min_delay=0),
            lambda: Retry(max_delay=None),
            lambda: Retry(min_delay=5, max_delay=4),
            lambda: Retry(max_attempts=0),
            lambda: Retry(max_attempts=1.5),
            lambda: Retry(max_attempts=True),
            lambda: Retry(then=None),
            lambda: Retry(then="skipp"),
            lambda: Requeue(then=DeadLetter),
            lambda: Wait(timeout=None),
            lambda: Park(max_parked="many"),
            lambda: Skip(chain="go on"),
            lambda: Coalesce(keep="all"),
            lambda: DeadLetter(queue=""),
            lambda: DeadLetter(queue=3),
            lambda: DeadLetter(queue="given up"),
            lambda: Skip(result=lambda: "without the arguments"),
            lambda: Skip(result=lambda tenant_id, mode: "two of them"),
        ],
    )
    def test_are_refused_when_the_policy_is_made(self, wrong):
        with pytest.raises(ConfigError):
            wrong()

    def test_a_wrong_then_says_where_it_stands(self):
        with pytest.raises(ConfigError, match=r"Retry\(then=\.\.\.\): .*Did you mean 'skip'"):
            Retry(then="skipp")

    @pytest.mark.parametrize(
        ("policy", "limits"),
        [
            (lambda: Retry(then="skip"), "max_wait=... or max_attempts=..."),
            (lambda: Retry(then=DeadLetter()), "max_wait=... or max_attempts=..."),
            (lambda: Requeue(then=Raise()), "max_wait=..."),
            (lambda: Park(then="skip"), "max_parked=... or max_wait=..."),
        ],
    )
    def test_a_then_that_no_limit_leads_to_is_never_reached(self, policy, limits):
        with pytest.raises(ConfigError, match="is never reached") as caught:
            policy()
        assert f"given with {limits}" in str(caught.value)

    def test_a_then_may_follow_any_of_the_limits(self):
        assert Retry(max_attempts=1, then="skip").then == Retry(max_wait=1, then="skip").then == Skip()
        assert Park(max_parked=1, then="skip").then == Wait(then="skip").then == Skip()

    def test_a_copy_with_another_field_is_as_right_as_its_original(self):
        assert replace(Retry(), max_delay=70) == Retry(max_delay=70)

    @pytest.mark.parametrize(
        "result", [dict, str, Decimal, lambda arguments, more=1: None, print, HTTPStatus]
    )
    def test_a_function_or_class_of_one_argument_may_be_the_result(self, result):
        assert Skip(result=result).result is result


class TestWrongNamesOfFields:
    @pytest.mark.parametrize(
        ("kind", "wrong", "right"),
        [
            (Retry, "max_atempts", "max_attempts"),
            (Retry, "max_retries", "max_attempts"),
            (Retry, "timeout", "max_wait"),
            (Retry, "countdown", "min_delay"),
            (Requeue, "max_time", "max_wait"),
            (DeadLetter, "queue_name", "queue"),
            (Skip, "value", "result"),
            (Wait, "timeou", "timeout"),
        ],
    )
    def test_lead_to_the_nearest_right_one(self, kind, wrong, right):
        with pytest.raises(TypeError) as caught:
            kind(**{wrong: 1})
        assert f"{kind.__name__} has no field {wrong!r}. Did you mean {right!r}?" in str(caught.value)

    @pytest.mark.parametrize("synonym", SYNONYMS.items())
    def test_every_synonym_leads_to_a_field(self, synonym):
        wrong, right = synonym
        kinds = [kind for kind in (Retry, Skip, DeadLetter) if right in {each.name for each in fields(kind)}]

        with pytest.raises(TypeError, match=f"Did you mean '{right}'"):
            kinds[0](**{wrong: 1})

    def test_one_that_resembles_nothing_gets_the_whole_list(self):
        with pytest.raises(TypeError, match="Its fields: min_delay, max_delay, max_wait, max_attempts, then"):
            Retry(xyzzy=1)

    @pytest.mark.parametrize("kind", [Retry, Requeue, DeadLetter, Skip, Wait, Park, Coalesce])
    def test_a_value_without_a_name_could_mean_anything(self, kind):
        with pytest.raises(TypeError, match=rf"{kind.__name__}\(3\) doesn't say which field it gives"):
            kind(3)

    def test_where_there_is_none_nothing_can_be_given(self):
        with pytest.raises(TypeError, match=r"It takes nothing: write Raise\(\)"):
            Raise(reason="held")


class TestTheChain:
    def test_is_flattened_first_to_last(self):
        policy = Retry(max_wait=5, then=Requeue(max_wait=60, then="skip"))

        assert stages(policy) == (policy, Requeue(max_wait=60, then=Skip()), Skip())

    @pytest.mark.parametrize("policy", [policy for policy, _ in WRITTEN])
    def test_always_ends_with_a_policy_that_has_no_next(self, policy):
        assert not hasattr(stages(policy)[-1], "then")

    def test_goes_on_with_a_fresh_count_and_clock(self):
        policy = Retry(max_attempts=1, then=Retry(max_attempts=4))

        assert decide(policy, miss(attempt=1, waited=99.0, roll=0)) == SendLater(1.0, stage=1, attempt=1)

    def test_says_which_limit_was_reached_last(self):
        policy = Retry(max_attempts=1, then=Requeue(max_wait=9, then=DeadLetter(queue="lost")))

        assert decide(policy, miss(stage=1, waited=9.0)) == GiveUp("lost", "max_wait")
        assert decide(Retry(max_attempts=2), miss(attempt=2)) == GiveUp(None, "max_attempts")

    def test_that_a_deploy_has_shortened_means_its_last_stage(self):
        assert decide(Retry(max_wait=5, then=Raise()), miss(stage=7)) == Fail("held")


class TestRetry:
    @given(
        min_delay=seconds,
        longer=st.floats(min_value=1, max_value=1000),
        attempt=st.integers(min_value=0, max_value=10_000),
        roll=rolls,
        ttl_left=st.none() | st.floats(min_value=-1, max_value=1e5),
    )
    def test_every_delay_lies_between_min_and_max(self, min_delay, longer, attempt, roll, ttl_left):
        policy = Retry(min_delay=min_delay, max_delay=min_delay * longer)
        decision = decide(policy, miss(holder=holder(ttl_left), attempt=attempt, roll=roll))

        assert policy.min_delay <= decision.delay <= policy.max_delay

    @given(attempt=st.integers(min_value=0, max_value=10_000), roll=rolls)
    def test_it_remembers_one_more_attempt_of_the_same_stage(self, attempt, roll):
        decision = decide(Retry(), miss(attempt=attempt, roll=roll))

        assert (decision.stage, decision.attempt) == (0, attempt + 1)

    def test_steps_double_up_to_the_longest(self):
        longest = [decide(Retry(), miss(attempt=n, roll=1 - 1e-12)).delay for n in range(8)]

        assert longest == pytest.approx([2, 4, 8, 16, 32, 60, 60, 60])

    def test_losers_are_spread_over_half_of_each_step(self):
        """They missed together; were they to come back together, one would win and the rest miss again."""
        delays = [decide(Retry(), miss(attempt=5, roll=n / 100)).delay for n in range(100)]

        assert len(set(delays)) == 100
        assert max(delays) - min(delays) > 25

    def test_losers_of_a_dying_lease_are_spread_too(self):
        delays = {decide(Retry(), miss(holder=holder(0.1), roll=n / 10)).delay for n in range(10)}

        assert len(delays) == 10

    @given(ttl_left=st.floats(min_value=1, max_value=60), roll=rolls)
    def test_the_expiry_of_a_dead_holder_is_not_slept_through(self, ttl_left, roll):
        decision = decide(Retry(), miss(holder=holder(ttl_left), attempt=50, roll=roll))

        assert decision.delay <= ttl_left * (1 + 0.25 * roll)

    def test_a_lease_without_expiry_does_not_shorten_the_delay(self):
        assert decide(Retry(), miss(attempt=50, roll=0)).delay == 30

    @given(longest=st.floats(min_value=0, max_value=100), attempt=st.integers(0, 100), roll=rolls)
    def test_the_broker_s_limit_beats_every_other(self, longest, attempt, roll):
        decision = decide(Retry(min_delay=50), miss(attempt=attempt, roll=roll, longest_delay=longest))

        assert decision.delay <= longest

    @given(attempt=st.integers(0, 10_000), waited=st.floats(min_value=0, max_value=1e9))
    def test_without_a_limit_it_never_gives_up(self, attempt, waited):
        assert isinstance(decide(Retry(), miss(attempt=attempt, waited=waited)), SendLater)

    @given(
        max_wait=st.floats(min_value=0.001, max_value=100),
        min_delay=st.floats(min_value=0.1, max_value=10),
        roll=rolls,
        ttl_left=st.none() | st.floats(min_value=0, max_value=100),
    )
    def test_with_max_wait_it_ends_and_not_before(self, max_wait, min_delay, roll, ttl_left):
        policy = Retry(min_delay=min_delay, max_delay=10 * min_delay, max_wait=max_wait)
        waited, attempt = 0.0, 0
        while True:
            answer = decide(policy, miss(holder=holder(ttl_left), waited=waited, attempt=attempt, roll=roll))
            if not isinstance(answer, SendLater):
                break
            waited, attempt = waited + answer.delay, answer.attempt

        assert answer == GiveUp(None, "max_wait")
        assert waited == pytest.approx(max_wait, abs=0.011)
        assert attempt <= max_wait / min_delay + 1

    def test_max_attempts_counts_the_times_it_is_sent_again(self):
        policy = Retry(max_attempts=3, then="raise")
        answers = [decide(policy, miss(attempt=n)) for n in range(4)]

        assert [type(answer) for answer in answers] == [SendLater, SendLater, SendLater, Fail]

    def test_a_clock_that_went_back_adds_no_waiting_time(self):
        assert decide(Retry(max_wait=5), miss(waited=-1000.0, attempt=9)).delay == 5

    def test_a_store_out_of_reach_is_waited_for_like_a_holder(self):
        assert decide(Retry(), miss(holder=None, roll=0)) == SendLater(1.0, stage=0, attempt=1)


class TestRequeue:
    def test_goes_straight_to_the_back_of_its_queue(self):
        assert decide(Requeue(), miss()) == SendToBack(0.0, stage=0, attempt=1)
        assert decide(Requeue(), miss(since_last=1.0)) == SendToBack(0.0, stage=0, attempt=1)

    @given(since_last=st.floats(min_value=-10, max_value=1, exclude_max=True), roll=rolls)
    def test_is_slowed_down_when_nothing_else_is_in_the_queue(self, since_last, roll):
        """Else an idle queue hands it back at once, and the worker spins."""
        assert 1 <= decide(Requeue(), miss(since_last=since_last, roll=roll)).delay <= 2

    def test_a_slow_turn_stays_within_the_broker_s_limit_and_max_wait(self):
        assert decide(Requeue(), miss(since_last=0.0, longest_delay=0.5)).delay == 0.5
        assert decide(Requeue(max_wait=9), miss(since_last=0.0, waited=8.75)).delay == 0.25

    def test_after_max_wait_the_next_policy_decides(self):
        assert decide(Requeue(max_wait=9, then="skip"), miss(waited=9.0)) == SkipRun(
            None, "stop", has_result=False
        )


class TestTheEnds:
    def test_dead_letter_names_its_queue_and_the_reason(self):
        assert decide(DeadLetter(queue="lost"), miss()) == GiveUp("lost", "held")
        assert decide(DeadLetter(), miss(holder=None)) == GiveUp(None, "store_unavailable")

    def test_after_an_outage_the_store_is_the_reason_whichever_limit_was_reached(self):
        attempts, wait = Retry(max_attempts=1), Retry(max_wait=5, then="raise")

        assert decide(attempts, miss(holder=None, attempt=1)) == GiveUp(None, "store_unavailable")
        assert decide(wait, miss(holder=None, waited=6.0)) == Fail("store_unavailable")

    def test_raise_fails(self):
        assert decide(Raise(), miss()) == Fail("held")

    def test_skip_tells_a_result_of_none_from_no_result(self):
        assert decide(Skip(), miss()) == SkipRun(None, "stop", has_result=False)
        assert decide(Skip(result=None, chain="continue"), miss()) == SkipRun(
            None, "continue", has_result=True
        )

    def test_skip_never_drops_half_done_work(self):
        """A message that Celery has retried has begun its work: it comes back as with `Retry()`."""
        again = miss(retries=1, attempt=3)

        assert decide(Skip(), again) == decide(Retry(), again)

    def test_skip_at_the_end_of_a_chain_spares_half_done_work_too(self):
        policy = Retry(max_wait=5, then=Skip())

        assert decide(policy, miss(retries=2, waited=5.0, roll=0)) == SendLater(1.0, stage=1, attempt=1)

    @pytest.mark.parametrize("policy", [Wait(), Park(), Coalesce()])
    def test_policies_of_a_later_version_say_so(self, policy):
        with pytest.raises(ConfigError, match="later version"):
            decide(policy, miss())
