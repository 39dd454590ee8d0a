"""The `fence_*` settings: where they come from, when they count, and what a wrong one says."""

from __future__ import annotations

import math
import ssl
import timeit
import types
from datetime import timedelta
from decimal import Decimal

import pytest
from celery import Celery

from celery_fence.errors import ConfigError
from celery_fence.locking.policies import Coalesce, DeadLetter, Park, Raise, Requeue, Retry, Wait
from celery_fence.task.limits import allow_short_ttls
from celery_fence.task.settings import FenceSettings, wrong_settings
from celery_fence.task.spelling import SYNONYMS

DAY = 86400.0


def app_with(**settings):
    app = Celery("shop", broker="redis://broker/0", set_as_current=False)
    app.conf.update(settings)
    return app


def error_of(app):
    with pytest.raises(ConfigError) as caught:
        FenceSettings.of(app)
    return str(caught.value)


def test_without_a_word_every_setting_has_the_default_of_the_manual():
    assert FenceSettings.of(app_with()) == FenceSettings(
        home="redis://broker/0",
        ttl=60.0,
        renew_fraction=1 / 3,
        max_hold=None,
        miss_policy=Retry(),
        lost_policy="retry",
        lost_delay=0.0,
        outage_policy=Retry(),
        mode="enforce",
        inject_as="fencing_token",
        prefix="fence",
        counter_retention=7 * DAY,
        done_retention=7200.0,
        remember_results=True,
        dead_letter_queue="fence.dead_letters",
    )


def test_every_setting_can_be_set():
    wanted = {
        "ttl": 30.0,
        "renew_fraction": 0.5,
        "max_hold": 600.0,
        "miss_policy": Requeue(max_wait=5),
        "lost_policy": "flag",
        "lost_delay": 0.0,
        "outage_policy": "run",
        "mode": "enforce",
        "inject_as": "token",
        "prefix": "shop",
        "counter_retention": DAY,
        "done_retention": 90.0,
        "remember_results": False,
        "dead_letter_queue": "dead",
    }

    app = app_with(fence_url="redis://locks/3", **{f"fence_{name}": value for name, value in wanted.items()})

    assert FenceSettings.of(app) == FenceSettings(home="redis://locks/3", **wanted)


def test_a_whole_number_of_seconds_becomes_a_float():
    assert isinstance(FenceSettings.of(app_with(fence_ttl=30)).ttl, float)


class TestWhenTheyCount:
    def test_a_change_counts_at_once(self):
        app = app_with()
        assert FenceSettings.of(app).ttl == 60

        app.conf.update(fence_ttl=20)
        assert FenceSettings.of(app).ttl == 20

        app.conf.fence_ttl = 30
        assert FenceSettings.of(app).ttl == 30

        del app.conf["fence_ttl"]
        assert FenceSettings.of(app).ttl == 60

    def test_a_value_that_only_equals_the_old_one_is_checked_too(self):
        app = app_with(fence_ttl=1)
        FenceSettings.of(app)

        app.conf.fence_ttl = True

        assert "'fence_ttl' is True" in error_of(app)

    def test_a_misspelt_setting_is_noticed_when_it_is_added_later(self):
        app = app_with()
        FenceSettings.of(app)

        app.conf.fence_tll = 30

        assert "'fence_tll'" in error_of(app)

    def test_the_result_backend_given_later_moves_the_leases(self):
        app = app_with()
        assert FenceSettings.of(app).url == "redis://broker/0"

        app.conf.result_backend = "redis://results/1"

        assert FenceSettings.of(app).url == "redis://results/1"

    @pytest.mark.parametrize(
        ("options", "kept"),
        [
            ("?socket_timeout=30&retry_on_timeout=true", ""),
            ("?socket_timeout=30&db=2&socket_connect_timeout=3", "?db=2"),
            ("?protocol=3&client_name=a", "?protocol=3&client_name=a"),
        ],
    )
    def test_the_result_backends_timeouts_are_not_those_of_the_leases(self, options, kept):
        app = app_with(result_backend=f"redis://results/1{options}")

        assert FenceSettings.of(app).url == f"redis://results/1{kept}"

    def test_another_broker_moves_them_too(self):
        app = app_with()
        FenceSettings.of(app)

        app.conf.broker_url = "redis://broker/5"

        assert FenceSettings.of(app).url == "redis://broker/5"

    def test_without_a_change_it_is_the_same_object(self):
        app = app_with(fence_ttl=10)

        assert FenceSettings.of(app) is FenceSettings.of(app)

    def test_asking_again_is_cheap(self):
        app = app_with(fence_ttl=10)
        FenceSettings.of(app)

        once = min(timeit.repeat(lambda: FenceSettings.of(app), number=200, repeat=20)) / 200

        assert once < 30e-6, f"{once * 1e6:.1f} us"

    def test_apps_in_one_process_have_their_own(self):
        one, two = app_with(fence_ttl=10), app_with(fence_ttl=20)

        assert [FenceSettings.of(app).ttl for app in (one, two)] == [10, 20]


class TestWhereTheyComeFrom:
    def test_a_class_and_what_is_changed_in_it(self):
        class Config:
            broker_url = "redis://broker/0"
            fence_ttl = 12.5

        app = Celery(set_as_current=False)
        app.config_from_object(Config)
        assert FenceSettings.of(app).ttl == 12.5

        Config.fence_ttl = 13
        assert FenceSettings.of(app).ttl == 13

    def test_a_module_with_functions_and_imports_of_its_own(self):
        module = types.ModuleType("celeryconfig")
        module.broker_url = "redis://broker/0"
        module.fence_ttl = 12.5
        module.fence_ttl_of = lambda tenant: tenant
        module.fence_policies = math

        app = Celery(set_as_current=False)
        app.config_from_object(module)

        assert FenceSettings.of(app).ttl == 12.5

    def test_a_namespace(self):
        app = Celery(set_as_current=False)
        app.config_from_object(
            {"SHOP_BROKER_URL": "redis://broker/0", "SHOP_FENCE_TTL": 12.5, "FENCE_URL": "somebody else's"},
            namespace="SHOP",
        )

        assert FenceSettings.of(app).ttl == 12.5

    def test_the_users_value_beats_ours_whatever_comes_first(self):
        app = app_with()
        FenceSettings.of(app)

        app.config_from_object({"broker_url": "redis://broker/0", "fence_ttl": 10}, force=True)

        assert FenceSettings.of(app).ttl == 10


class TestWrongNames:
    def test_a_misspelt_one_names_the_nearest(self):
        message = error_of(app_with(fence_tll=30))

        assert "no Celery setting 'fence_tll'" in message
        assert "Did you mean 'fence_ttl'?" in message

    def test_under_a_namespace_both_are_named_as_the_user_writes_them(self):
        app = Celery(set_as_current=False)
        app.config_from_object(
            {"CELERY_BROKER_URL": "redis://broker/0", "CELERY_FENCE_TLL": 30}, namespace="CELERY"
        )

        message = error_of(app)

        assert "'CELERY_FENCE_TLL'" in message
        assert "Did you mean 'CELERY_FENCE_TTL'?" in message

    @pytest.mark.parametrize(
        ("wrong", "right"),
        [("fence_timeout", "fence_ttl"), ("fence_lock_ttl", "fence_ttl"), ("fence_expiry", "fence_ttl")],
    )
    def test_the_words_of_other_libraries_are_understood(self, wrong, right):
        assert f"Did you mean {right!r}?" in error_of(app_with(**{wrong: 30}))

    @pytest.mark.parametrize(("wrong", "right"), SYNONYMS.items())
    def test_every_synonym_leads_to_a_setting(self, wrong, right):
        assert f"Did you mean {right!r}?" in error_of(app_with(**{wrong: 30}))

    def test_one_that_resembles_nothing_gets_the_whole_list(self):
        message = error_of(app_with(fence_zzzzzzzzzz=1))

        assert "fence_ttl" in message
        assert "fence_dead_letter_queue" in message

    def test_upper_case_without_a_namespace_would_never_be_read(self):
        message = error_of(app_with(FENCE_TTL=30))

        assert "'FENCE_TTL' is never read by Celery" in message
        assert "write it as 'fence_ttl'" in message

    def test_a_forgotten_namespace_is_told(self):
        app = Celery(set_as_current=False)
        app.config_from_object({"broker_url": "redis://broker/0", "CELERY_FENCE_TTL": 30})

        message = error_of(app)

        assert "'CELERY_FENCE_TTL' is never read by Celery" in message
        assert "namespace='CELERY'" in message


NOT_A_DURATION = ["30", "", "soon", 0, -1, math.nan, math.inf, 1e12, True, None, [30]]


class TestWrongValues:
    @pytest.mark.parametrize("value", NOT_A_DURATION)
    def test_a_ttl_that_is_none(self, value):
        message = error_of(app_with(fence_ttl=value))

        assert message.startswith("Celery setting 'fence_ttl' is ")
        assert "a number of seconds from 1 to " in message

    def test_the_value_is_shown_as_it_was_written(self):
        assert "is '30', but" in error_of(app_with(fence_ttl="30"))
        assert "Write 30, without quotes." in error_of(app_with(fence_ttl="30"))

    def test_it_is_named_as_it_was_written_under_a_namespace(self):
        app = Celery(set_as_current=False)
        app.config_from_object({"CELERY_FENCE_TTL": "30"}, namespace="CELERY")

        assert error_of(app).startswith("Celery setting 'CELERY_FENCE_TTL' is '30'")

    def test_it_is_named_without_the_namespace_where_it_was_set_without(self):
        app = Celery(broker="redis://broker/0", namespace="CELERY", set_as_current=False)
        app.conf.fence_ttl = "30"

        assert error_of(app).startswith("Celery setting 'fence_ttl' is '30'")

    @pytest.mark.parametrize("value", [0.99, 0.05])
    def test_a_ttl_below_a_second(self, value):
        assert "from 1 to" in error_of(app_with(fence_ttl=value))

    def test_tests_may_go_lower_for_their_app(self):
        app, other = app_with(fence_ttl=0.3), app_with(fence_ttl=0.3)

        allow_short_ttls(app)

        assert FenceSettings.of(app).ttl == 0.3
        assert "from 1 to" in error_of(other)

    def test_a_long_ttl_is_accepted_with_one_warning(self, recwarn, caplog):
        app = app_with(fence_ttl=601)

        assert FenceSettings.of(app).ttl == 601
        app.conf.fence_max_hold = 1000
        FenceSettings.of(app)

        assert ["'fence_ttl' is 601 seconds" in str(warning.message) for warning in recwarn] == [True]
        assert not caplog.records  # a second channel would say it twice

    def test_ten_minutes_are_not_long(self, recwarn):
        FenceSettings.of(app_with(fence_ttl=600))

        assert not recwarn.list

    @pytest.mark.parametrize(
        ("name", "value", "must"),
        [
            ("renew_fraction", 0, "a number from 0.05 to 0.8"),
            ("renew_fraction", 1, "a number from 0.05 to 0.8"),
            ("renew_fraction", math.nan, "a number from 0.05 to 0.8"),
            ("renew_fraction", "0.5", "a number from 0.05 to 0.8. Write 0.5, without quotes."),
            ("renew_fraction", True, "a number from 0.05 to 0.8"),
            ("max_hold", 0, "a number of seconds from 1"),
            ("max_hold", "600", "a number of seconds from 1"),
            ("max_hold", 59, "at least fence_ttl, which is 60 seconds"),
            ("lost_policy", "rtry", "Did you mean 'retry'?"),
            ("lost_policy", None, "one of 'retry', 'raise', 'flag'"),
            ("outage_policy", "runn", "Did you mean 'run'?"),
            ("outage_policy", "open", "Did you mean 'run'?"),
            ("outage_policy", 5, "A policy is a name"),
            ("miss_policy", "retyr", "Did you mean 'retry'?"),
            ("miss_policy", Retry, "rite Retry()"),
            ("miss_policy", None, "A policy is a name"),
            ("inject_as", "no name", "the name of a parameter"),
            ("inject_as", "class", "the name of a parameter"),
            ("inject_as", "self", "the name of a parameter"),
            ("inject_as", 5, "the name of a parameter"),
            ("prefix", "", "a text without spaces and braces"),
            ("prefix", "a{b}", "a text without spaces and braces"),
            ("prefix", "a b", "a text without spaces and braces"),
            ("prefix", None, "a text without spaces and braces"),
            ("counter_retention", 0, "a number of seconds from 60"),
            ("counter_retention", math.inf, "a number of seconds from 60"),
            ("done_retention", "3600", "a number of seconds from 60"),
            ("remember_results", 1, "True or False"),
            ("remember_results", "yes", "True or False"),
            ("dead_letter_queue", "", "the name of a queue"),
            ("dead_letter_queue", None, "the name of a queue"),
            ("url", "localhost:6379", "a URL such as"),
            ("url", 6379, "a URL such as"),
            ("mode", "shadwo", "Did you mean 'shadow'?"),
        ],
    )
    def test_name_the_setting_the_limit_and_the_way_out(self, name, value, must):
        message = error_of(app_with(**{f"fence_{name}": value}))

        assert message.startswith(f"Celery setting 'fence_{name}'")
        assert must in message

    def test_a_counter_that_would_end_before_its_lease(self):
        message = error_of(app_with(fence_ttl=100, fence_counter_retention=99))

        assert message.startswith("Celery setting 'fence_counter_retention' is 99")
        assert "at least fence_ttl, which is 100" in message

    def test_a_wrong_url_is_not_repeated_for_it_may_hold_a_password(self):
        assert "secret" not in error_of(app_with(fence_url="user:secret@host"))

    def test_every_wrong_one_is_told_at_once(self):
        app = app_with(fence_tll=5, fence_ttl="5", fence_prefix="a b", fence_lost_policy="flag")

        told = [str(error) for error in wrong_settings(app)]

        assert [message.split("'")[1] for message in told] == ["fence_tll", "fence_ttl", "fence_prefix"]
        assert error_of(app).splitlines() == told

    @pytest.mark.parametrize(
        ("value", "says"),
        [
            (
                timedelta(minutes=2),
                "is a timedelta, but must be a number of seconds from 1 to 31622400, which is",
            ),
            (timedelta(minutes=2), "Write 120, its seconds."),
            (Decimal("2.5"), "is a Decimal, but must be"),
            (Decimal("2.5"), "Write 2.5."),
            ([5], "is a list, but must be"),
            (367 * 86400, "which is 366 days."),
        ],
    )
    def test_a_time_of_another_type_is_named_with_what_to_write(self, value, says):
        assert says in error_of(app_with(fence_ttl=value))


class TestWhatComesLater:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("mode", "shadow"),
            ("mode", "off"),
            ("mode", {"reports.*": "off"}),
            ("miss_policy", "wait"),
            ("miss_policy", "park"),
            ("miss_policy", "coalesce"),
            ("miss_policy", Wait(timeout=2)),
            ("miss_policy", Retry(max_wait=5, then=Park())),
            ("miss_policy", Requeue(max_wait=5, then=Retry(max_wait=3, then=Coalesce()))),
            ("outage_policy", "park"),
            ("outage_policy", Retry(max_wait=5, then=Wait())),
        ],
    )
    def test_is_refused_for_now(self, name, value):
        message = error_of(app_with(**{f"fence_{name}": value}))

        assert message.startswith(f"Celery setting 'fence_{name}'")
        assert " yet" in message


class TestPolicies:
    def test_a_name_is_the_policy_with_its_defaults(self):
        assert FenceSettings.of(app_with(fence_miss_policy="dead_letter")).miss_policy == DeadLetter()

    @pytest.mark.parametrize(
        ("written", "meant"),
        [
            ("retry", Retry()),
            ("raise", "raise"),
            ("run", "run"),
            (Raise(), "raise"),
            (Retry(max_wait=300), Retry(max_wait=300)),
        ],
    )
    def test_for_an_outage(self, written, meant):
        assert FenceSettings.of(app_with(fence_outage_policy=written)).outage_policy == meant


def url_for(*, broker="amqp://", backend=None, **settings):
    app = Celery("shop", broker=broker, backend=backend, set_as_current=False)
    app.conf.update(settings)
    return FenceSettings.of(app).url


class TestWhereTheLeasesLive:
    def test_where_the_setting_says(self):
        assert url_for(backend="redis://results", fence_url="memory://") == "memory://"

    def test_else_in_the_redis_of_the_results(self):
        assert url_for(broker="redis://broker", backend="redis://results") == "redis://results"

    def test_else_in_the_redis_of_the_broker(self):
        assert url_for(broker="redis://broker", backend="db+sqlite://") == "redis://broker"

    @pytest.mark.parametrize(
        "url", ["rediss://h", "redis+socket:///run/r.sock?virtual_host=1", "unix:///run/r.sock", "valkey://h"]
    )
    def test_in_every_form_that_can_be_read(self, url):
        assert url_for(backend=url) == url

    @pytest.mark.parametrize(
        "backend",
        [
            "rpc://",
            "sentinel://:secret@a:1;sentinel://b:2",
            "redis://:secret@a;redis://b",
            "redis://:secret@a,b/0",
            "redis",
        ],
    )
    def test_nowhere_else_and_the_error_says_what_to_set(self, backend):
        with pytest.raises(ConfigError) as caught:
            url_for(backend=backend)

        assert "Set 'fence_url'" in str(caught.value)
        assert "secret" not in str(caught.value)

    def test_a_list_of_brokers_is_no_place(self):
        with pytest.raises(ConfigError, match="Set 'fence_url'"):
            url_for(broker=["redis://a", "redis://b"])

    def test_a_list_of_one_broker_is(self):
        assert url_for(broker=["redis://a"]) == "redis://a"

    def test_under_a_namespace_the_error_says_it_in_the_users_words(self):
        app = Celery(set_as_current=False)
        app.config_from_object({"CELERY_BROKER_URL": "amqp://"}, namespace="CELERY")

        with pytest.raises(ConfigError, match="Set 'CELERY_FENCE_URL'"):
            _ = FenceSettings.of(app).url

    def test_an_app_that_never_needs_one_may_be_without(self):
        app = Celery("shop", broker="amqp://", set_as_current=False)

        assert FenceSettings.of(app).ttl == 60

    def test_the_tls_options_of_celery_come_along(self):
        url = url_for(
            backend="redis://results/1",
            redis_backend_use_ssl={"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": "/etc/ca.pem"},
        )

        assert url == "rediss://results/1?ssl_cert_reqs=required&ssl_ca_certs=%2Fetc%2Fca.pem"

    def test_tls_without_options_is_still_tls(self):
        assert url_for(broker="redis://broker/1", broker_use_ssl=True) == "rediss://broker/1"

    def test_its_password_is_not_printed(self):
        assert "secret" not in repr(FenceSettings.of(app_with(fence_url="redis://:secret@host")))


class TestHowLongAnEndedDeliveryIsRemembered:
    def test_twice_as_long_as_the_broker_may_take_to_redeliver(self):
        app = app_with(broker_transport_options={"visibility_timeout": 7200})

        assert FenceSettings.of(app).done_retention == 14400

    def test_at_least_an_hour(self):
        app = app_with(broker_transport_options={"visibility_timeout": 5})

        assert FenceSettings.of(app).done_retention == 3600

    def test_an_hour_where_the_broker_has_no_visibility_timeout(self):
        app = Celery(broker="amqp://", backend="redis://results", set_as_current=False)

        assert FenceSettings.of(app).done_retention == 3600
