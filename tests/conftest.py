"""
What every test shares: the services a machine may have, and what their absence means.

At home a missing service is a skip. Under CI (the environment variable ``CI`` is
set) every skip is a failure, so that nothing goes untested unnoticed; a skip that is
right there too says so by beginning its reason with ``also on CI:``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Generator
from functools import cache
from typing import Any

import hypothesis
import pytest

PORTS = {"redis": 6379, "rabbitmq": 5672, "postgres": 5432, "mariadb": 3306}

RIGHT_ON_CI = "also on CI:"


def pytest_configure(config: pytest.Config) -> None:
    hypothesis.settings.register_profile("untimed", deadline=None)  # speed belongs to benchmarks/
    hypothesis.settings.load_profile("untimed")
    config.addinivalue_line(
        "markers", f"needs(*services): skipped where one of them is missing; known are {', '.join(PORTS)}"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for service in marker.args:
            if not answers(PORTS[service]):
                pytest.skip(f"no {service} at 127.0.0.1:{PORTS[service]}")


@cache
def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not hasattr(report, "wasxfail"):
        fail_a_skip_on_ci(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    fail_a_skip_on_ci(report)
    return report


def fail_a_skip_on_ci(report: Any) -> None:
    if report.outcome != "skipped" or not os.environ.get("CI"):
        return
    reason = str(report.longrepr[2]).removeprefix("Skipped: ")
    if reason.startswith(RIGHT_ON_CI):
        return
    report.outcome = "failed"
    report.longrepr = f"Skipped, and nothing may be skipped on CI: {reason}"
