from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import redis

from celery_fence.errors import ConfigError
from celery_fence.stores import from_url
from celery_fence.stores.redis.urls import parse_address

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    "url, kind, options",
    [
        ("redis://", redis.Connection, {"host": "localhost", "port": 6379, "db": 0}),
        ("redis://h:1/2", redis.Connection, {"host": "h", "port": 1, "db": 2}),
        ("redis://h/?db=3", redis.Connection, {"host": "h", "db": 3}),
        ("redis://h?virtual_host=/4", redis.Connection, {"db": 4}),
        ("redis://[::1]:7/0", redis.Connection, {"host": "::1", "port": 7}),
        ("valkey://h:1/2", redis.Connection, {"host": "h", "db": 2}),
        ("redis://:p%40ss@h", redis.Connection, {"password": "p@ss"}),
        ("redis://us%3Aer:p@h", redis.Connection, {"username": "us:er", "password": "p"}),
        ("redis://h?health_check_interval=7", redis.Connection, {"health_check_interval": 7}),
        ("rediss://h?ssl_cert_reqs=CERT_REQUIRED", redis.SSLConnection, {"ssl_cert_reqs": "required"}),
        ("rediss://h?ssl_cert_reqs=none", redis.SSLConnection, {"ssl_cert_reqs": "none"}),
        ("valkeys://h?ssl_ca_certs=%2Fca.pem", redis.SSLConnection, {"ssl_ca_certs": "/ca.pem"}),
        ("unix:///run/r.sock?db=5", redis.UnixDomainSocketConnection, {"path": "/run/r.sock", "db": 5}),
        ("unix://:p@/run/r.sock", redis.UnixDomainSocketConnection, {"path": "/run/r.sock", "password": "p"}),
        (
            "redis+socket:///run/r.sock?virtual_host=1",
            redis.UnixDomainSocketConnection,
            {"path": "/run/r.sock", "db": 1},
        ),
        ("socket:///run/r%20s.sock", redis.UnixDomainSocketConnection, {"path": "/run/r s.sock"}),
    ],
)
def test_a_url_means_what_it_means_to_redis_py_and_to_kombu(url, kind, options):
    address = parse_address(url)

    assert address.connection_class is kind
    assert {name: address.options[name] for name in options} == options
    # And redis-py takes all of it.
    kind(**address.options)


def test_a_socket_is_a_server_like_any_other(tmp_path):
    from celery_fence.locking.store import Claim, Granted
    from celery_fence.testing.servers import embedded_server

    path = tmp_path / "r.sock"
    with embedded_server(options={"unixsocket": str(path)}):
        for scheme in ("unix", "redis+socket", "socket"):
            store = from_url(f"{scheme}://{path}?virtual_host=1")
            assert isinstance(store.acquire(Claim(scheme, "o", 5.0)), Granted)
            store.close()


@pytest.mark.parametrize(
    "url, shown",
    [
        (f"redis://user:{SECRET}@h:1/2?db=2", "redis://h:1/2"),
        (f"redis://{SECRET}@h", "redis://h:6379/0"),
        (f"rediss://:{SECRET}@[::1]:2", "rediss://[::1]:2/0"),
        (f"unix://:{SECRET}@/run/r.sock", "unix:///run/r.sock"),
        ("memory://name", "memory://name"),
    ],
)
def test_the_description_is_the_url_without_its_password(url, shown):
    store = from_url(url)

    assert store.description == shown
    assert SECRET not in repr(store)
    assert SECRET not in repr(getattr(store, "_address", ""))


@pytest.mark.parametrize(
    "url, message",
    [
        ("redis+sentinel://h", r"redis\+sentinel:// can't be used yet.*redis://"),
        ("sentinel://h;sentinel://i", "sentinel:// can't be used yet"),
        ("redis+cluster://h", "can't be used yet"),
        ("sql+postgresql://h/db", "can't be used yet"),
        ("reddis://h", r"unknown scheme 'reddis'.*redis://.*Did you mean 'redis'\?"),
        ("amqp://h", "unknown scheme 'amqp'"),
        ("", "must be a URL such as redis://"),
        ("localhost:6379", "must be a URL"),
        (None, "must be a URL"),
        (f"redis://:{SECRET}/x@h:1", "percent-encoded"),
        (f"redis://:{SECRET}@h:port/0", "percent-encoded"),
        (f"redis://:{SECRET}@[h/0", "percent-encoded"),
        (f"redis://:{SECRET}@h/zero", "the database in redis://h:6379/zero must be a number"),
        (f"redis://:{SECRET}@h?ssl_cert_reqs=none", "write rediss://"),
        (f"redis://:{SECRET}@h?health_check_interval=soon", "value of health_check_interval"),
        (f"redis://:{SECRET}@h?socket_timeout=30", "socket_timeout can't be set.*derived from the TTL"),
        (f"redis://:{SECRET}@h?socket_connect_timeout=1", "socket_connect_timeout can't be set"),
        (f"redis://:{SECRET}@h?retry_on_timeout=true", "retry_on_timeout can't be set"),
        (f"redis://:{SECRET}@h?retry_on_error=1", "retry_on_error can't be set"),
        (f"redis://:{SECRET}@h?socket_timeout=nan", "socket_timeout can't be set"),
        (f"redis://:{SECRET}@h?health_check_interval=inf", "value of health_check_interval"),
        (
            f"redis://:{SECRET}@h?health_check_interval=-1",
            "health_check_interval must be a number of 0 or more",
        ),
        (f"redis://:{SECRET}@h?db=-1", "db must be a number of 0 or more"),
        (f"redis://:{SECRET}@redis..svc/0", r"the host in redis://redis..svc:6379/0 can't be one"),
        (f"redis://:{SECRET}@{'a' * 70}.svc/0", "can't be one"),
        (f"redis://:{SECRET}@h?colour=red", "colour"),
        (f"redis://:{SECRET}@h?credential_provider=no.such.Thing", "no credential_provider 'no.such.Thing'"),
        ("unix://run/r.sock", "third slash"),
        ("unix://", "names no socket"),
    ],
)
def test_a_url_that_can_t_be_used_is_refused_with_the_way_out_and_without_its_password(url, message):
    with pytest.raises(ConfigError, match=message) as caught:
        from_url(url)

    said = f"{caught.value} {caught.value.__cause__} {pickle.loads(pickle.dumps(caught.value))}"
    assert SECRET not in said


@pytest.mark.parametrize("prefix", ["", "{fence}", "a}b", None, 7])
def test_a_prefix_that_would_break_the_hash_tag_is_refused(prefix):
    with pytest.raises(ConfigError, match="fence_prefix"):
        from_url("memory://", prefix=prefix)


@pytest.mark.parametrize("name", ["timeout", "counter_retention"])
@pytest.mark.parametrize("value", [0, -1, "5", None, True, float("nan"), float("inf")])
def test_times_that_can_t_be_are_refused(name, value):
    with pytest.raises(ConfigError, match=name):
        from_url("redis://", **{name: value})


def test_only_the_driver_that_is_asked_for_is_imported():
    program = (
        "import sys; from celery_fence.stores import from_url; from_url('memory://');"
        "assert 'redis' not in sys.modules; from_url('redis://'); assert 'redis' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_credential_provider_is_taken_as_celery_takes_it():
    address = parse_address(f"redis://user:{SECRET}@h?credential_provider={__name__}.Provider")

    assert isinstance(address.options["credential_provider"], Provider)
    assert "password" not in address.options
    redis.Connection(**address.options)


class Provider(redis.CredentialProvider):
    def get_credentials(self):
        return ("user", "from elsewhere")
