"""A real store, a project that has never heard of celery-fence, and one on each of the brokers."""

from __future__ import annotations

import pytest
import redis

from celery_fence.stores import from_url
from celery_fence.task.dead_letters import purge_letters
from celery_fence.testing.servers import embedded_server
from tests.integration.cli.commands import run


@pytest.fixture(scope="module")
def server():
    with embedded_server() as running:
        yield running


@pytest.fixture
def store(server):
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
    made = from_url(server.url)
    yield made
    made.close()


@pytest.fixture
def project(server, tmp_path):
    """A project that has never heard of celery-fence."""
    (tmp_path / "shop.py").write_text(
        f"from celery import Celery\napp = Celery('shop', broker={server.url!r}, backend={server.url!r})\n"
    )
    return tmp_path


@pytest.fixture
def fence(server):
    """The commands on a URL alone, as where the project can't be imported."""

    def invoke(*words, **how):
        return run("celery_fence.cli", "--url", server.url, *words, **how)

    return invoke


@pytest.fixture
def bench(policy_bench):
    purge_letters(policy_bench.app)
    yield policy_bench
    purge_letters(policy_bench.app)
