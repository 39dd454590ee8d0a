"""The demo through its real entry point: what it proves, that it can fail, that it leaves nothing behind."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import example_app

ROOT = Path(example_app.__file__).resolve().parent.parent
TIMEOUT = 100
SHORT = ["--tenants", "30", "--fenced-only"]
GUARD = "write = write.where(Tenant.last_fencing_token <= token).values(last_fencing_token=token)"


@pytest.fixture
def scratch(tmp_path):
    """Where the demo of this test keeps its temporary files."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    return directory


def listens_to_signals():
    """A shell starts what it puts in the background with SIGINT ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def environment(scratch, *roots):
    kept = {name: value for name, value in os.environ.items() if name != "FENCE_DEMO_DATABASE_URL"}
    path = os.pathsep.join(str(root) for root in (*roots, ROOT))
    return {**kept, "PYTHONPATH": path, "TMPDIR": str(scratch), "COLUMNS": "80"}


def run_demo(arguments, environment, cwd=ROOT):
    command = [sys.executable, "-m", "example_app.demo", *arguments]
    return subprocess.run(
        command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )


@pytest.fixture(scope="module")
def both_nights(tmp_path_factory):
    """The whole demo with fewer tenants, and where it kept its files."""
    directory = tmp_path_factory.mktemp("demo")
    return run_demo(["--tenants", "40"], environment(directory)), directory


def test_a_frozen_and_a_killed_process_cost_no_invoice_and_no_message(both_nights):
    demo, _ = both_nights

    assert demo.returncode == 0, demo.stdout + demo.stderr
    for sentence in (
        "40 of 40 invoices charged exactly once",
        "0 accounts with a wrong balance",
        "1 late write refused by its token",
        "1 process killed in the middle of a charge",
        "1 charged for longer than the TTL",
        "0 of 80 messages lost",
        "0 leases left in the store",
    ):
        assert f"ok     {sentence}" in demo.stdout


def test_the_timeline_shows_the_successor_with_a_higher_token_before_the_refusal(both_nights):
    demo, _ = both_nights

    lines = demo.stdout.partition("WITHOUT the fence")[0].splitlines()
    ends = [line.split() for line in lines if "WRITES the charge" in line or "late write REFUSED" in line]
    assert [words[-1] for words in ends] == ["charge", "REFUSED"]
    assert [int(words[3]) for words in ends] == sorted((int(words[3]) for words in ends), reverse=True)
    assert ends[0][3] != ends[1][3]


def test_the_night_without_a_fence_shows_damage(both_nights):
    demo, _ = both_nights

    rows = {line[:44].strip(): line[44:].split() for line in demo.stdout.splitlines()}
    for damage in ("invoices charged twice", "accounts with a wrong balance"):
        fenced, unfenced = rows[damage]
        assert int(fenced) == 0 < int(unfenced)


@pytest.mark.parametrize(
    "url", ["mysql://nobody@127.0.0.1/x", "postgresql+psycopg://nobody:pw@127.0.0.1:1/x", "x"]
)
def test_a_database_that_can_not_be_used_is_named_without_a_traceback(scratch, url):
    demo = run_demo(SHORT, {**environment(scratch), "FENCE_DEMO_DATABASE_URL": url})

    assert demo.returncode == 2
    assert "The demo could not run: " in demo.stdout
    assert "FENCE_DEMO_DATABASE_URL" in demo.stdout
    assert "Traceback" not in demo.stdout + demo.stderr
    assert not list(scratch.iterdir())


def test_the_demo_fits_80_columns_and_leaves_no_file(both_nights):
    demo, directory = both_nights

    assert max(len(line) for line in demo.stdout.splitlines()) <= 80
    assert not list(directory.iterdir())


def test_without_the_guarded_write_the_demo_fails(scratch, tmp_path):
    """So the verdict notices what it is there to notice."""
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "example_app", copy / "example_app")
    ledger = copy / "example_app" / "ledger.py"
    assert GUARD in ledger.read_text()
    ledger.write_text(ledger.read_text().replace(GUARD, "pass"))

    demo = run_demo(SHORT, environment(scratch, copy), cwd=copy)

    assert demo.returncode == 1, demo.stdout + demo.stderr
    assert "WRONG  29 of 30 invoices charged exactly once" in demo.stdout
    assert "WRONG  0 late write" in demo.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_ended_in_the_middle_leaves_no_process_and_no_file(scratch, tmp_path, number):
    output = tmp_path / "output"
    command = [sys.executable, "-m", "example_app.demo", *SHORT]
    with output.open("w") as log:
        demo = subprocess.Popen(
            command,
            env=environment(scratch),
            cwd=ROOT,
            stdout=log,
            stderr=log,
            preexec_fn=listens_to_signals,  # noqa: PLW1509 - no threads here
        )
    try:
        wait_until(lambda: "FROZEN" in output.read_text() or demo.poll() is not None)
        family = descendants(demo.pid)
        os.kill(demo.pid, number)
        code = demo.wait(timeout=30)
    finally:
        demo.kill()

    assert code == 128 + number, output.read_text()
    assert len(family) > 6  # a server, two workers, three pool processes each
    assert not [pid for pid in family if is_alive(pid)]
    assert not list(scratch.iterdir())


def wait_until(condition):
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def descendants(pid):
    """The process ids of everything that *pid* has started, and what those have started."""
    table = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout
    parents = [tuple(map(int, line.split())) for line in table.splitlines()]
    family = {pid}
    for _ in range(5):
        family |= {child for child, parent in parents if parent in family}
    return family - {pid}


def is_alive(pid):
    """Whether it is there and not a zombie that only waits for the machine's init to collect it."""
    command = ["ps", "-o", "state=", "-p", str(pid)]
    state = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return state.strip()[:1] not in {"", "Z"}
