"""The options of a task: what they are made of, when they count, and what a wrong one says."""

from __future__ import annotations

import math
import sys
import timeit

import pytest
from celery import Celery, _state, shared_task
from pydantic import BaseModel

from celery_fence.errors import ConfigError, LockKeyError
from celery_fence.locking.policies import DeadLetter, Park, Raise, Requeue, Retry, Skip, Wait
from celery_fence.task.checks import STRANGERS, SYNONYMS, check_app, unknown_options
from celery_fence.task.fenced import FencedTask
from celery_fence.task.limits import allow_short_ttls
from celery_fence.task.options import TaskOptions
from celery_fence.task.settings import FenceSettings
from celery_fence.task.written import OPTIONS


@pytest.fixture(autouse=True)
def _tasks_stay_with_their_app(monkeypatch):
    """Celery gives the tasks of one app to all later ones; each test has its own."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))


@pytest.fixture
def app():
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.fence_url = "memory://"
    return app


@pytest.fixture
def declare(app):
    """Declare and bind a fenced task, as a module of tasks does when it is imported."""

    def declare(fun=None, /, **options):
        def sync(tenant_id, *, fencing_token=None):
            return fencing_token

        options = {"lock_key": "tenant:<tenant_id>", "base": FencedTask, "lazy": False} | options
        return app.task(name="shop.sync", **options)(fun or sync)

    return declare


@pytest.fixture
def error_of(declare):
    def error_of(fun=None, /, **options):
        with pytest.raises(ConfigError) as caught:
            declare(fun, **options)
        return str(caught.value)

    return error_of


def by_keyword(tenant_id, *, token=None):
    return token


def anything(tenant_id, **more):
    return more


class TestWhatTheyAreMadeOf:
    def test_without_a_word_they_are_the_settings(self, app, declare):
        app.conf.update(
            fence_ttl=30,
            fence_max_hold=300,
            fence_renew_fraction=0.5,
            fence_miss_policy="requeue",
            fence_lost_policy="flag",
            fence_lost_delay=2,
            fence_outage_policy="run",
        )

        options = TaskOptions.of(declare())

        assert options == TaskOptions(
            lock_key=options.lock_key,
            idempotency_key=None,
            ttl=30.0,
            max_hold=300.0,
            renew_fraction=0.5,
            miss_policy=Requeue(),
            lost_policy="flag",
            outage_policy="run",
            inject_as="fencing_token",
            lost_delay=2.0,
            settings=FenceSettings.of(app),
        )

    def test_the_task_says_it_better(self, app, declare):
        app.conf.update(
            fence_ttl=30, fence_max_hold=300, fence_miss_policy="requeue", fence_lost_policy="flag"
        )

        options = TaskOptions.of(
            declare(
                by_keyword,
                lock_ttl=5,
                lock_max_hold=50,
                miss_policy=Skip(chain="continue"),
                lost_policy="raise",
                outage_policy=Retry(max_wait=9),
                inject_as="token",
            )
        )

        assert (options.ttl, options.max_hold) == (5.0, 50.0)
        assert options.miss_policy == Skip(chain="continue")
        assert (options.lost_policy, options.outage_policy) == ("raise", Retry(max_wait=9))
        assert options.inject_as == "token"

    def test_a_task_may_have_no_longest_hold_where_the_setting_has_one(self, app, declare):
        app.conf.fence_max_hold = 300

        assert TaskOptions.of(declare(lock_max_hold=None)).max_hold is None

    def test_none_means_the_setting_as_it_does_for_celerys_own_options(self, app, declare):
        app.conf.update(fence_ttl=30, fence_miss_policy="skip")

        options = TaskOptions.of(declare(lock_ttl=None, miss_policy=None))

        assert (options.ttl, options.miss_policy) == (30.0, Skip())

    def test_a_base_class_may_say_it_for_many(self, app):
        class TenantTask(FencedTask):
            lock_key = "tenant:<tenant_id>"
            lock_ttl = 5
            lock_owner_team = "billing"  # an attribute of its own, not an option

        @app.task(base=TenantTask, lazy=False)
        def sync(tenant_id):
            return tenant_id

        options = TaskOptions.of(sync)

        assert options.lock_key.render((7,), {}) == "tenant:7"
        assert options.ttl == 5.0

    def test_the_decorator_beats_the_base_class(self, app):
        class TenantTask(FencedTask):
            lock_key = "tenant:<tenant_id>"
            lock_ttl = 5

        @app.task(base=TenantTask, lock_ttl=6, lazy=False)
        def sync(tenant_id):
            return tenant_id

        assert TaskOptions.of(sync).ttl == 6.0


class TestTheKey:
    def test_is_made_from_the_tasks_own_arguments(self, declare):
        rule = TaskOptions.of(declare()).lock_key

        assert rule.render((7,), {}) == rule.render((), {"tenant_id": 7}) == "tenant:7"

    def test_of_a_bound_task_knows_no_self(self, declare):
        def sync(self, tenant_id):
            return tenant_id

        assert TaskOptions.of(declare(sync, bind=True)).lock_key.render((7,), {}) == "tenant:7"

    def test_of_a_task_with_autoretry(self, declare):
        task = declare(autoretry_for=(ValueError,))

        assert TaskOptions.of(task).lock_key.render((7,), {}) == "tenant:7"

    def test_of_a_shared_task(self, app):
        @shared_task(name="shop.shared", base=FencedTask, lock_key="tenant:<tenant_id>")
        def shared(tenant_id):
            return tenant_id

        assert TaskOptions.of(app.tasks["shop.shared"]).lock_key.render((7,), {}) == "tenant:7"

    def test_of_a_pydantic_task_comes_from_the_message(self, declare):
        def sync(order: Order):
            return order

        rule = TaskOptions.of(declare(sync, pydantic=True, lock_key="order:<order[id]>")).lock_key

        assert rule.render(({"id": 7},), {}) == "order:7"

    def test_of_a_class_based_task(self, app):
        class Sync(FencedTask):
            name = "shop.sync_class"
            lock_key = "tenant:<tenant_id>"

            def run(self, tenant_id):
                return tenant_id

        task = app.register_task(Sync())

        assert TaskOptions.of(task).lock_key.render((7,), {}) == "tenant:7"

    def test_may_be_a_function_of_the_arguments(self, declare):
        task = declare(lock_key=lambda tenant_id: ("tenant", tenant_id))

        assert TaskOptions.of(task).lock_key.render((7,), {}) == "tenant:7"

    def test_may_be_a_method_of_a_class_based_task(self, app):
        class Sync(FencedTask):
            name = "shop.sync_method"
            region = "eu"

            def lock_key(self, tenant_id):
                return (self.region, tenant_id)

            def run(self, tenant_id):
                return tenant_id

        task = app.register_task(Sync())

        assert TaskOptions.of(task).lock_key.render((7,), {}) == "eu:7"

    def test_an_argument_it_cant_take_is_named(self, declare):
        with pytest.raises(LockKeyError, match=r"shop\.sync.*tenant_id"):
            TaskOptions.of(declare()).lock_key.render((object(),), {})

    @pytest.mark.parametrize(
        ("lock_key", "says"),
        [
            ("tenant:<tenant>", "Did you mean 'tenant_id'?"),
            ("tenant:{tenant_id}", "<tenant_id>"),
            ("tenant:<fencing_token>", "fencing_token"),
            ("", "shop.sync"),
            (7, "a template such as"),
            (["tenant:<tenant_id>", "global"], "yet"),
            (("tenant:<tenant_id>", "global"), "yet"),
        ],
    )
    def test_that_cant_be_right_is_refused_when_the_task_is_declared(self, error_of, lock_key, says):
        message = error_of(lock_key=lock_key)

        assert "'shop.sync'" in message
        assert says in message

    @pytest.mark.parametrize("lock_key", [None, ...])
    def test_has_to_be_there(self, app, lock_key):
        options = {} if lock_key is ... else {"lock_key": lock_key}

        with pytest.raises(ConfigError, match=r"'shop\.keyless' is fenced, but has no lock_key.*lock_key='"):

            @app.task(name="shop.keyless", base=FencedTask, lazy=False, **options)
            def keyless(tenant_id):
                return tenant_id

    def test_a_class_based_task_without_one_is_refused_too(self, app):
        class Keyless(FencedTask):
            def run(self, tenant_id):
                return tenant_id

        with pytest.raises(ConfigError, match=r"Keyless' is fenced, but has no lock_key"):
            app.register_task(Keyless())


class Order(BaseModel):
    id: int


class TestWhereFencedTasksAreTheDefault:
    @pytest.fixture
    def app(self):
        app = Celery("shop", broker="memory://", task_cls=FencedTask, set_as_current=False)
        app.conf.fence_url = "memory://"
        return app

    def test_one_without_a_key_is_not_fenced_and_keeps_its_arguments(self, declare):
        options = TaskOptions.of(declare(base=None, lock_key=None))

        assert options.lock_key is None
        assert options.inject_as is None

    def test_one_with_a_key_is(self, declare):
        assert TaskOptions.of(declare(base=None)).lock_key.render((7,), {}) == "tenant:7"

    def test_one_that_names_its_base_needs_a_key_all_the_same(self, error_of):
        assert "has no lock_key" in error_of(base=FencedTask, lock_key=None)

    def test_a_misspelt_key_is_not_silently_no_key(self, error_of):
        message = error_of(base=None, lock_key=None, lock_keyy="tenant:<tenant_id>")

        assert "Did you mean 'lock_key'?" in message

    @pytest.mark.parametrize("option", [{"lock_ttl": 5}, {"miss_policy": "skip"}, {"lost_policy": "flag"}])
    def test_one_with_other_options_and_no_key_is_a_mistake(self, error_of, option):
        message = error_of(base=None, lock_key=None, **option)

        assert f"Task 'shop.sync' has {next(iter(option))}, but no lock_key" in message

    def test_options_of_their_base_are_for_those_that_have_a_key(self, app):
        class ShopTask(FencedTask):
            lock_ttl = 5

        app = Celery("shop", broker="memory://", task_cls=ShopTask, set_as_current=False)
        app.conf.fence_url = "memory://"

        @app.task(lazy=False)
        def plain(tenant_id, timeout=5):
            return tenant_id

        assert TaskOptions.of(plain).lock_key is None

    def test_one_without_a_key_may_have_attributes_of_any_name(self, declare):
        assert declare(base=None, lock_key=None, timeout=5).timeout == 5


class TestTheInjectedArgument:
    def test_is_left_out_where_the_function_doesnt_name_it(self, declare):
        def sync(tenant_id):
            return tenant_id

        assert TaskOptions.of(declare(sync)).inject_as is None

    @pytest.mark.parametrize("bind", [False, True])
    def test_may_be_by_position_or_keyword(self, declare, bind):
        def sync(self, tenant_id, fencing_token=None):
            return tenant_id

        def unbound(tenant_id, fencing_token=None):
            return tenant_id

        assert TaskOptions.of(declare(sync if bind else unbound, bind=bind)).inject_as == "fencing_token"

    def test_doesnt_go_into_bare_keywords_by_the_settings_word(self, app, declare):
        app.conf.fence_inject_as = "token"

        assert TaskOptions.of(declare(anything)).inject_as is None

    def test_goes_into_bare_keywords_where_the_task_says_so(self, declare):
        assert TaskOptions.of(declare(anything, inject_as="token")).inject_as == "token"

    def test_is_none_where_the_task_wants_none(self, declare):
        assert TaskOptions.of(declare(inject_as=None)).inject_as is None

    def test_named_by_a_base_class_is_taken_by_those_that_have_it(self, app):
        class TenantTask(FencedTask):
            lock_key = "tenant:<tenant_id>"
            inject_as = "token"

        @app.task(base=TenantTask, lazy=False)
        def takes(tenant_id, *, token):
            return token

        @app.task(base=TenantTask, lazy=False)
        def takes_not(tenant_id):
            return tenant_id

        assert [TaskOptions.of(task).inject_as for task in (takes, takes_not)] == ["token", None]

    def test_that_the_function_doesnt_have_is_refused(self, error_of):
        message = error_of(by_keyword, inject_as="tokn")

        assert "'inject_as' of task 'shop.sync' is 'tokn'" in message
        assert "Did you mean 'token'?" in message

    @pytest.mark.parametrize("kind", ["positional", "variadic", "keywords"])
    def test_that_cant_be_given_by_keyword_is_refused(self, error_of, kind):
        def positional(fencing_token, tenant_id, /):
            return tenant_id

        def variadic(tenant_id, *fencing_token):
            return tenant_id

        def keywords(tenant_id, **fencing_token):
            return tenant_id

        message = error_of({"positional": positional, "variadic": variadic, "keywords": keywords}[kind])

        assert "'shop.sync' takes its fencing token as" in message
        assert "*, fencing_token" in message

    @pytest.mark.parametrize(("place", "next_one"), [("middle", "full=False"), ("rest", "*rest")])
    def test_that_other_arguments_by_position_would_reach_is_refused(self, error_of, place, next_one):
        def in_the_middle(tenant_id, fencing_token=None, full=False):
            return tenant_id

        def before_the_rest(tenant_id, fencing_token=None, *rest):
            return tenant_id

        message = error_of(in_the_middle if place == "middle" else before_the_rest)

        assert f"in front of {next_one!r}, which a caller may give by position" in message

    def test_may_stand_last_by_position_before_others_by_keyword(self, declare):
        def sync(tenant_id, fencing_token=None, *, full=False, **more):
            return tenant_id

        assert TaskOptions.of(declare(sync)).inject_as == "fencing_token"


class TestWhenTheyCount:
    def test_a_change_of_the_settings_counts_at_once(self, app, declare):
        task = declare()
        assert TaskOptions.of(task).ttl == 60

        app.conf.fence_ttl = 30

        assert TaskOptions.of(task).ttl == 30

    def test_a_change_of_the_task_or_its_class_counts_at_once(self, declare):
        task = declare(lock_ttl=5)
        TaskOptions.of(task)

        type(task).lock_ttl = 6
        assert TaskOptions.of(task).ttl == 6

        task.lock_ttl = 7
        assert TaskOptions.of(task).ttl == 7

    def test_a_wrong_change_is_refused(self, declare):
        task = declare(lock_ttl=5)
        TaskOptions.of(task)

        task.lock_ttl = "7"

        with pytest.raises(ConfigError, match=r"'lock_ttl' of task 'shop\.sync' is '7'"):
            TaskOptions.of(task)

    def test_without_a_change_they_are_the_same_object(self, declare):
        task = declare(lock_key=lambda tenant_id: f"tenant:{tenant_id}")

        assert TaskOptions.of(task) is TaskOptions.of(task)

    def test_a_task_that_celery_still_holds_as_a_promise(self, app):
        @app.task(base=FencedTask, lock_key="tenant:<tenant_id>", lock_ttl=5)
        def promised(tenant_id):
            return tenant_id

        assert TaskOptions.of(promised).ttl == 5

    def test_asking_again_is_cheap(self, declare):
        task = declare()
        TaskOptions.of(task)

        once = min(timeit.repeat(lambda: TaskOptions.of(task), number=200, repeat=20)) / 200

        assert once < 40e-6, f"{once * 1e6:.1f} us"


class TestWrongNames:
    @pytest.mark.parametrize(
        ("wrong", "right"),
        [
            ("lock_tll", "lock_ttl"),
            ("lock_timeout", "lock_ttl"),
            ("lock_expiry", "lock_ttl"),
            ("lock_expire", "lock_ttl"),
            ("lock_duration", "lock_ttl"),
            ("lock_keys", "lock_key"),
            ("LOCK_TTL", "lock_ttl"),
            ("miss_polcy", "miss_policy"),
            ("lost_polices", "lost_policy"),
            ("outage_polic", "outage_policy"),
            ("inject_into", "inject_as"),
            ("idempotency_keys", "idempotency_key"),
            *SYNONYMS.items(),
        ],
    )
    def test_lead_to_the_nearest_right_one(self, error_of, wrong, right):
        message = error_of(**{wrong: 1})

        assert f"'shop.sync': celery-fence has no option {wrong!r}" in message
        assert f"Did you mean {right!r}?" in message

    def test_of_a_plain_celery_option_are_not_ours_to_judge(self, declare):
        task = declare(rate_limit="5/m", queue_hint="x", locked=True)

        assert unknown_options(type(task)) == []
        assert task.locked

    def test_in_a_class_are_the_classs_own_affair(self, app):
        class Sync(FencedTask):
            lock_key = "tenant:<tenant_id>"
            lock_owner_team = "billing"

            def run(self, tenant_id):
                return tenant_id

        assert app.register_task(Sync()).lock_owner_team == "billing"

    @pytest.mark.parametrize(("wrong", "right"), STRANGERS.items())
    def test_of_other_libraries_without_any_prefix_would_do_nothing(self, error_of, wrong, right):
        message = error_of(**{wrong: 5})

        assert f"'shop.sync': celery-fence has no option {wrong!r}. Did you mean {right}?" in message

    def test_a_hook_is_no_wrong_option(self, declare):
        told = declare(on_miss=lambda miss, args, kwargs: None)

        assert callable(told.on_miss)

    def test_what_a_base_class_declares_may_be_given(self, app):
        class Ours(FencedTask):
            timeout = None
            lock_owner_team = None

        @app.task(base=Ours, lock_key="a", timeout=5, lock_owner_team="billing", lazy=False)
        def sync():
            return None

        assert (sync.timeout, sync.lock_owner_team) == (5, "billing")

    @pytest.mark.parametrize(
        ("wrong", "right"),
        [("lock_tll", "lock_ttl"), ("lock_timeout", "lock_ttl"), ("miss_polcy", "miss_policy")],
    )
    def test_in_the_body_of_a_task_are_found_too(self, app, wrong, right):
        body = {"name": "shop.body", "lock_key": "<tenant_id>", wrong: 5, "run": lambda self, tenant_id: None}

        with pytest.raises(ConfigError, match=f"no option '{wrong}'. Did you mean '{right}'"):
            app.register_task(type("Sync", (FencedTask,), body)())

    def test_a_method_in_the_body_of_a_task_is_its_own_affair(self, app):
        class Sync(FencedTask):
            lock_key = "tenant:<tenant_id>"

            def lock_keys(self):
                return []

            def run(self, tenant_id):
                return tenant_id

        assert app.register_task(Sync()).lock_keys() == []

    def test_one_that_resembles_nothing_gets_the_whole_list(self, error_of):
        message = error_of(fence_zzzzzzzzz=1)

        assert all(option in message for option in OPTIONS)


class TestWrongValues:
    @pytest.mark.parametrize("value", ["5", 0, -1, 0.5, math.nan, math.inf, True, [5], object()])
    def test_a_ttl_that_is_none(self, error_of, value):
        message = error_of(lock_ttl=value)

        assert message.startswith("Option 'lock_ttl' of task 'shop.sync' is ")
        assert "a number of seconds from 1 to " in message

    @pytest.mark.parametrize(
        ("name", "value", "must"),
        [
            ("lock_max_hold", 0, "a number of seconds from 1"),
            ("lock_max_hold", "60", "Write 60, without quotes."),
            ("miss_policy", "retyr", "Did you mean 'retry'?"),
            ("miss_policy", Retry, "rite Retry()"),
            ("miss_policy", 5, "A policy is a name"),
            ("lost_policy", "flagg", "Did you mean 'flag'?"),
            ("outage_policy", "runn", "Did you mean 'run'?"),
            ("inject_as", "a b", "the name of a parameter"),
        ],
    )
    def test_name_the_task_the_option_the_limit_and_the_way_out(self, error_of, name, value, must):
        message = error_of(**{name: value})

        assert message.startswith(f"Option {name!r} of task 'shop.sync'")
        assert must in message

    def test_tests_may_have_a_shorter_ttl(self, app, declare):
        allow_short_ttls(app)

        assert TaskOptions.of(declare(lock_ttl=0.3)).ttl == 0.3

    def test_a_long_ttl_is_accepted_with_one_warning_though_celery_binds_twice(self, declare, recwarn):
        assert TaskOptions.of(declare(lock_ttl=601)).ttl == 601

        assert ["'lock_ttl' of task 'shop.sync'" in str(warning.message) for warning in recwarn] == [True]

    @pytest.mark.parametrize(
        ("settings", "options", "numbers"),
        [
            ({}, {"lock_max_hold": 59}, ("59", "60")),
            ({}, {"lock_ttl": 10, "lock_max_hold": 9}, ("9", "10")),
            ({"fence_max_hold": 100}, {"lock_ttl": 101}, ("100", "101")),
        ],
    )
    def test_a_longest_hold_below_the_ttl(self, app, error_of, settings, options, numbers):
        app.conf.update(settings)

        message = error_of(**options)

        assert "Task 'shop.sync'" in message
        assert "lock_max_hold" in message
        assert all(number in message for number in numbers)

    def test_a_ttl_longer_than_its_counter_lives(self, app, error_of):
        app.conf.fence_counter_retention = 100

        assert "fence_counter_retention, which is 100" in error_of(lock_ttl=101)

    def test_a_wrong_setting_shows_where_a_task_is_bound(self, app, error_of):
        app.conf.fence_ttl = "30"

        assert error_of().startswith("Celery setting 'fence_ttl' is '30'")


class TestWhatComesLater:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("lock_holders", 2),
            ("lock_holders", True),
            ("lock_cooldown", 5),
            ("fence_mode", "shadow"),
            ("fence_mode", "off"),
            ("miss_policy", "wait"),
            ("miss_policy", Wait(timeout=2)),
            ("miss_policy", Retry(max_wait=5, then=Park())),
            ("outage_policy", Park()),
        ],
    )
    def test_is_refused_for_now(self, error_of, name, value):
        message = error_of(**{name: value})

        assert message.startswith(f"Option {name!r} of task 'shop.sync'")
        assert " yet" in message

    def test_its_defaults_may_be_written(self, declare):
        declare(lock_holders=1, lock_cooldown=0, fence_mode="enforce")


class TestAWorkersCheck:
    def levels(self, findings):
        return [finding.level for finding in findings]

    def test_finds_nothing_where_nothing_is_wrong(self, app, declare):
        declare()

        assert check_app(app) == []

    def test_finds_every_wrong_setting_at_once_and_no_more(self, app, declare):
        declare()
        app.conf.update(fence_tll=5, fence_polcy="retry")

        findings = check_app(app)

        assert self.levels(findings) == ["error", "error"]
        assert {finding.text.split("'")[1] for finding in findings} == {"fence_tll", "fence_polcy"}

    @pytest.mark.parametrize(
        ("options", "warns"),
        [
            ({"acks_late": True, "time_limit": 90}, True),  # 30 s of waiting and 90 s of running
            ({"acks_late": True, "time_limit": 60}, False),
            ({"acks_late": True, "lock_max_hold": 90.0}, True),
            ({"acks_late": True, "time_limit": 90, "miss_policy": "skip"}, False),
            ({"acks_late": False, "time_limit": 90}, False),
        ],
    )
    def test_warns_of_a_wait_and_a_run_beyond_the_visibility_timeout(self, app, declare, options, warns):
        app.conf.update(
            broker_url="redis://localhost", broker_transport_options={"visibility_timeout": 100}, fence_ttl=10
        )
        declare(**{"miss_policy": Retry(max_delay=30), **options})

        found = [finding.text for finding in check_app(app) if "visibility timeout" in finding.text]

        assert len(found) == warns

    def test_finds_a_wrong_value(self, app):
        app.conf.fence_ttl = "5"

        (finding,) = check_app(app)

        assert finding.level == "error"
        assert "'fence_ttl' is '5'" in finding.text

    @pytest.mark.parametrize("url", ["redis+sentinel://a", "http://a", "sql+sqlite://"])
    def test_finds_a_store_that_there_isnt(self, app, url):
        app.conf.fence_url = url

        (finding,) = check_app(app)

        assert finding.level == "error"

    def test_finds_that_there_is_no_place_for_leases(self, app, declare):
        declare()
        app.conf.fence_url = None

        (finding,) = check_app(app)

        assert finding.level == "error"
        assert "Set 'fence_url'" in finding.text

    def test_finds_a_task_that_was_spoilt_after_it_was_bound(self, app, declare):
        declare().lock_ttl = "5"

        (finding,) = check_app(app)

        assert finding.level == "error"
        assert "'lock_ttl' of task 'shop.sync'" in finding.text

    def test_finds_memory_that_processes_dont_share(self, app):
        (finding,) = check_app(app, processes=2)

        assert finding.level == "error"
        assert "memory://" in finding.text
        assert "2 of them" in finding.text
        assert check_app(app, processes=1) == []

    def test_warns_of_a_key_that_excludes_nothing(self, app, declare):
        def sync(tenant_id, request_id):
            return tenant_id

        declare(sync, lock_key="tenant:<tenant_id>:<request_id>")

        (finding,) = check_app(app)

        assert finding.level == "warning"
        assert "<request_id>" in finding.text

    @pytest.mark.parametrize("option", [{"lock_key": "a"}, {"lock_ttl": 5}, {"miss_policy": "skip"}])
    def test_warns_of_an_option_beside_another_base_which_does_nothing(self, app, declare, option):
        declare(lock_key="tenant:<tenant_id>")

        @app.task(name="shop.forgotten", lazy=False, **option)
        def forgotten(tenant_id):
            return tenant_id

        (finding,) = check_app(app)

        assert finding.level == "warning"
        assert f"Task 'shop.forgotten' has {next(iter(option))}, but it is not fenced" in finding.text
        assert "base=FencedTask" in finding.text

    def test_finds_every_wrong_value_of_the_settings_at_once(self, app):
        app.conf.update(fence_ttl="5", fence_prefix="a b")

        assert [finding.text.split("'")[1] for finding in check_app(app)] == ["fence_ttl", "fence_prefix"]

    def test_warns_of_a_setting_outside_of_the_namespace(self):
        app = Celery(set_as_current=False)
        app.config_from_object(
            {"SHOP_BROKER_URL": "memory://", "SHOP_FENCE_URL": "memory://", "FENCE_TTL": 5, "FENCE_OTHER": 5},
            namespace="SHOP",
        )

        (finding,) = check_app(app)

        assert finding.level == "warning"
        assert "'FENCE_TTL'" in finding.text
        assert "'SHOP_FENCE_TTL'" in finding.text

    def test_tells_errors_first(self, app):
        @app.task(name="a.advice", base=FencedTask, lock_key="<request_id>", lazy=False)
        def advice(request_id):
            return request_id

        @app.task(name="b.spoilt", base=FencedTask, lock_key="<tenant_id>", lazy=False)
        def spoilt(tenant_id):
            return tenant_id

        spoilt.lock_ttl = "5"

        assert self.levels(check_app(app)) == ["error", "warning"]


class TestOnCommit:
    def test_without_django_it_says_what_is_missing(self, declare, monkeypatch):
        monkeypatch.setitem(sys.modules, "celery.contrib.django.task", None)

        with pytest.raises(ConfigError, match="delay_on_commit needs Django"):
            declare().delay_on_commit(7)


def test_a_policy_by_name_and_as_an_object_are_the_same(declare):
    options = TaskOptions.of(declare(miss_policy="dead_letter", outage_policy=Raise()))

    assert options.miss_policy == DeadLetter()
    assert options.outage_policy == "raise"


def test_a_base_class_is_not_checked_before_it_is_a_task(app):
    class Base(FencedTask):
        lock_ttl = 5

    Base.bind(app)

    assert Base.__bound__
