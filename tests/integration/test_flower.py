"""Real Flower shows the states of celery-fence: its API, and its page in a real browser."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from bench.app import WORLD
from bench.waiting import wait_until
from bench.worker import HERE, ROOT
from bench.world import Bench

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def bench(make_bench) -> Bench:
    bench = make_bench(fence_ttl=30.0)
    bench.worker(concurrency=2)
    return bench


@pytest.fixture(scope="module")
def flower(bench) -> Iterator[str]:
    """The address of a Flower that listens to the bench."""
    port = free_port()
    path = os.pathsep.join([str(HERE), str(ROOT)])
    env = {
        **os.environ,
        "PYTHONPATH": path,
        WORLD: json.dumps(bench.conf),
        "FLOWER_UNAUTHENTICATED_API": "true",
    }
    log_path = bench.directory / "flower.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "celery",
                "-A",
                "bench.app",
                "flower",
                f"--port={port}",
                "--address=127.0.0.1",
            ],
            env=env,
            cwd=bench.directory,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until(
            lambda: process.poll() is not None or knows_the_worker(address), timeout=60, what="Flower listens"
        )
        assert process.poll() is None, log_path.read_text()
        yield address
    finally:
        process.terminate()
        process.wait(20)


def ask(url: str) -> Any:
    with suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(url, timeout=10) as reply:
        return json.loads(reply.read())
    return None


def knows_the_worker(address: str) -> bool:
    return bool(ask(f"{address}/api/workers?status=1"))


def shown(address: str, task_id: str) -> dict[str, Any]:
    return ask(f"{address}/api/task/info/{task_id}") or {}


@pytest.fixture(scope="module")
def missed(bench, flower) -> dict[str, str]:
    """One message of each kind that Flower has seen: state -> task id."""
    key = bench.key("shown")
    bench.occupy(key)
    results = {
        "SKIPPED": bench.send("skip", key),
        "DEAD_LETTERED": bench.send("dead_letter", key),
        "RETRY": bench.send("retry", key),
    }
    for state, result in results.items():
        wait_until(
            lambda state=state, result=result: shown(flower, result.id).get("state") == state,
            what=f"{state} shown",
        )
    yield {state: result.id for state, result in results.items()}
    bench.vacate(key)


@pytest.mark.parametrize("state", ["SKIPPED", "DEAD_LETTERED"])
def test_flowers_api_shows_the_state_with_the_key(flower, missed, state):
    task = shown(flower, missed[state])

    assert task["state"] == state
    assert "job:shown" in f"{task['result']} {task['exception']}"


def test_flowers_metrics_count_skips(flower, missed):
    with urllib.request.urlopen(f"{flower}/metrics", timeout=10) as reply:
        assert 'type="task-skipped"' in reply.read().decode()


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium to look at Flower's pages with")
def test_flowers_pages_show_the_states_in_a_browser(flower, missed, tmp_path):
    page = browse(f"{flower}/task/{missed['SKIPPED']}", tmp_path)
    table = browse(f"{flower}/tasks", tmp_path)

    assert "SKIPPED" in page
    assert "job:shown" in page
    assert "SKIPPED" in table
    assert "DEAD_LETTERED" in table


def browse(url: str, directory: Any) -> str:
    """The page's text after its scripts ran; a screenshot lies beside."""
    flags = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={directory}/profile",
    ]
    look = ["--virtual-time-budget=8000", "--window-size=1400,900"]
    shot = f"--screenshot={directory}/flower-{abs(hash(url))}.png"
    subprocess.run([CHROMIUM, *flags, *look, shot, url], check=True, capture_output=True, timeout=90)
    done = subprocess.run(
        [CHROMIUM, *flags, *look, "--dump-dom", url], check=True, capture_output=True, timeout=90
    )
    return done.stdout.decode()
