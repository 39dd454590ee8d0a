"""Fixtures of the integration bench (see `bench/__init__.py`)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

# The workers import `bench` by the same name, so it must be found without a test runner's import mode.
sys.path.insert(0, str(Path(__file__).parent))

from bench.brokers import KINDS, rabbit_url
from bench.world import Bench

OPEN: list[Bench] = []


@pytest.fixture(scope="session", autouse=True)
def nobody_stays_behind() -> Iterator[None]:
    """Every worker that a test has started is gone at the end."""
    yield
    children = [child.as_dict(["pid", "cmdline"]) for child in psutil.Process().children()]
    assert [child for child in children if "bench.app" in (child["cmdline"] or ())] == []


@pytest.fixture(scope="session")
def rabbit() -> Iterator[str]:
    """RabbitMQ's URL, with a virtual host for this session."""
    with rabbit_url() as url:
        yield url


@pytest.fixture(scope="module")
def make_bench(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Bench]]:
    """Make benches that live as long as the test module."""
    with ExitStack() as stack:

        def make(kind: str = "redis", **conf: Any) -> Bench:
            where = request.getfixturevalue("rabbit") if kind != "redis" else None
            bench = stack.enter_context(Bench(tmp_path_factory.mktemp("bench"), kind, where, **conf))
            OPEN.append(bench)
            stack.callback(OPEN.remove, bench)
            return bench

        yield make


@pytest.fixture(scope="session", params=KINDS)
def broker_kind(request: pytest.FixtureRequest) -> str:
    """Each broker in turn."""
    return request.param


@pytest.fixture(scope="session")
def policy_bench(
    broker_kind: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Bench]:
    """One worker for everything about miss policies on one broker; every test uses keys of its own."""
    where = request.getfixturevalue("rabbit") if broker_kind != "redis" else None
    conf = {"fence_ttl": 60.0, "accept_content": ["json", "pickle"]}
    with Bench(tmp_path_factory.mktemp("policies"), broker_kind, where, **conf) as bench:
        OPEN.append(bench)
        bench.worker(concurrency=2)
        yield bench
        OPEN.remove(bench)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Show the logs of the workers beside a failure."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.failed:
        for worker in [worker for bench in OPEN[-2:] for worker in bench.workers]:
            report.sections.append((f"log of worker {worker.name} ({worker.pool})", worker.tail()))
