"""Where the leases live: where the setting says, else in the Redis of the results or the broker."""

from __future__ import annotations

import ssl

import pytest
from celery import Celery

from celery_fence.errors import ConfigError
from celery_fence.task.settings import FenceSettings
from tests.unit.settings.apps import app_with


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
