"""The demo through its real entry point: what it proves, that it can fail, that it leaves nothing behind."""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine, inspect, text

import example_app

ROOT = Path(example_app.__file__).resolve().parent.parent
TIMEOUT = 100
SHORT = ["--tenants", "30", "--fenced-only"]
POSTGRESQL = "postgresql+psycopg://postgres@127.0.0.1:5432"


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


def fenced_night(demo):
    return demo.stdout.partition("WITHOUT the fence")[0]


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
        "1 late UPDATE refused by the guard",
        "2 of 2 raw SQL writes refused by the trigger",
        "1 process killed in the middle of a charge",
        "1 charged for longer than the TTL",
        "0 of 81 messages lost",
        "0 leases left in the store",
    ):
        assert f"ok     {sentence}" in demo.stdout


def test_the_timeline_shows_the_successor_with_a_higher_token_before_the_refusal(both_nights):
    demo, _ = both_nights

    lines = fenced_night(demo).splitlines()
    ends = [line.split() for line in lines if "WRITES the charge" in line or "late UPDATE REFUSED" in line]
    assert [words[-1] for words in ends] == ["charge", "REFUSED"]
    assert [int(words[3]) for words in ends] == sorted((int(words[3]) for words in ends), reverse=True)
    assert ends[0][3] != ends[1][3]


def test_the_database_itself_refuses_raw_sql_with_an_old_token_and_with_none(both_nights):
    demo, _ = both_nights

    fenced, unfenced = demo.stdout.split("WITHOUT the fence")
    said = [line.partition("the database: ")[2] for line in fenced.splitlines() if "the database: " in line]
    assert said == [
        "celery_fence: stale write to tenants refused",
        "celery_fence: unfenced write to tenants refused",
    ]
    assert "the database: written" in unfenced


def test_a_payment_that_is_sent_once_more_is_answered_with_the_receipt_of_the_run_that_paid(both_nights):
    demo, _ = both_nights

    lines = [line.split() for line in fenced_night(demo).splitlines() if "message " in line]
    (payer,) = [words[-4].rstrip(":") for words in lines if "WRITES" in words]
    (answer,) = [" ".join(words[3:]) for words in lines if "ANSWERED," in words]
    assert answer == f"- message C: ANSWERED, {payer} has paid"
    answered = next(line.split() for line in demo.stdout.splitlines() if "repeated payments answered" in line)
    assert (
        int(answered[1]) >= 1 + 40 - 2
    )  # C, and one of each tenant's two, but the frozen and the killed one's


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


@pytest.fixture
def postgresql():
    """The URL of a database of this test's own."""
    server = create_engine(f"{POSTGRESQL}/postgres", isolation_level="AUTOCOMMIT")
    name = f"test_demo_{uuid.uuid4().hex[:12]}"
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
        yield f"{POSTGRESQL}/{name}"
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    server.dispose()


@pytest.mark.needs("postgres")
def test_on_postgresql_guard_and_trigger_refuse_too_and_the_schema_is_dropped(scratch, postgresql):
    demo = run_demo(SHORT, {**environment(scratch), "FENCE_DEMO_DATABASE_URL": postgresql})

    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "the database: celery_fence: stale write to tenants refused" in demo.stdout
    assert "ok     1 late UPDATE refused by the guard" in demo.stdout
    assert "ok     2 of 2 raw SQL writes refused by the trigger" in demo.stdout
    assert max(len(line) for line in demo.stdout.splitlines()) <= 80
    assert inspect(create_engine(postgresql, poolclass=NullPool)).get_schema_names() == [
        "information_schema",
        "public",
    ]


def without(copy, file, line, instead):
    """Change one line of a copy of the example."""
    if not copy.exists():
        shutil.copytree(ROOT / "example_app", copy / "example_app")
    path = copy / "example_app" / file
    assert path.read_text().count(line) == 1
    path.write_text(path.read_text().replace(line, instead))


def test_without_the_guards_the_demo_fails(scratch, tmp_path):
    """So the verdict notices what it is there to notice."""
    copy = tmp_path / "copy"
    without(copy, "ledger.py", "self._fenced = fenced", "self._fenced = False")

    demo = run_demo(SHORT, environment(scratch, copy), cwd=copy)

    assert demo.returncode == 1, demo.stdout + demo.stderr
    assert "WRONG  29 of 30 invoices charged exactly once" in demo.stdout
    assert "WRONG  0 late UPDATE" in demo.stdout
    assert "WRONG  0 of 2 raw SQL writes refused" in demo.stdout


def test_without_trigger_and_record_the_demo_fails_although_the_guard_is_there(scratch, tmp_path):
    copy = tmp_path / "copy"
    without(copy, "models.py", "[fence_trigger(Tenant), fence_trigger(Invoice)]", "[]")
    without(copy, "tasks.py", 'idempotency_key="invoice:<invoice_id>",', "")

    demo = run_demo(SHORT, environment(scratch, copy), cwd=copy)

    assert demo.returncode == 1, demo.stdout + demo.stderr
    assert "ok     1 late UPDATE refused by the guard" in demo.stdout
    assert "WRONG  0 of 2 raw SQL writes refused" in demo.stdout
    assert "WRONG  1 accounts with a wrong balance" in demo.stdout
    assert "WRONG  0 repeated payments answered" in demo.stdout
    assert "ok     30 of 30 invoices charged exactly once" in demo.stdout


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
