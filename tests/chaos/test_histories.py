"""Histories and ledgers on disk: what a run directory tells after kills, after forks, and while it grows."""

from __future__ import annotations

import multiprocessing

from rig.checkers import violations
from rig.checkers.evidence import gather
from rig.history import FOLDER, History, Reader, now, read
from rig.ledger import Effect, Ledger


def test_a_torn_last_line_is_left_out_and_the_rest_is_there(tmp_path):
    History(tmp_path, "worker:w1").note("start", run="r")
    file = next((tmp_path / FOLDER).iterdir())
    file.write_bytes(file.read_bytes() + b'{"what":"end","at":1')

    assert [record.what for record in read(tmp_path)] == ["start"]


def test_a_reader_gets_each_record_once_and_a_torn_one_when_it_is_whole(tmp_path):
    history, reader = History(tmp_path, "worker:w1"), Reader(tmp_path)
    history.note("first")
    first = reader.news()
    file = next((tmp_path / FOLDER).iterdir())
    with file.open("ab") as end:
        end.write(b'{"what":"second","at":1,"pid":')
    torn = reader.news()
    with file.open("ab") as end:
        end.write(b'2,"role":"driver"}\n')

    assert [[record.what for record in records] for records in (first, torn, reader.news())] == [
        ["first"],
        [],
        ["second"],
    ]


def test_a_fork_writes_a_file_of_its_own(tmp_path):
    history = History(tmp_path, "worker:w1")
    history.note("parent")
    child = multiprocessing.get_context("fork").Process(target=history.note, args=("child",))
    child.start()
    child.join()

    pids = {record.what: record.pid for record in read(tmp_path)}
    assert pids["child"] == child.pid != pids["parent"]
    assert len(list((tmp_path / FOLDER).iterdir())) == 2


def test_records_of_all_files_come_by_their_moment(tmp_path):
    histories = [History(tmp_path, role) for role in ("driver", "worker:w1")]
    for moment in (3.0, 1.0):
        histories[0].note("driver", at=moment)
    histories[1].note("worker", at=2.0)

    assert [record.at for record in read(tmp_path)] == [1.0, 2.0, 3.0]


def test_while_a_run_goes_on_the_youngest_records_are_left_for_the_next_time(tmp_path):
    """Their cause may stand in a file that was read before it was written."""
    history = History(tmp_path, "driver")
    history.note("old")
    history.note("young", at=now() + 60)

    assert set(gather(tmp_path, online=True).records) == {"old"}
    assert set(gather(tmp_path).records) == {"old", "young"}


def test_the_ledger_beside_the_histories_is_read_as_it_was_written(tmp_path):
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    ledger.create(("key-1",))
    ledger.guarded = False  # as the negative control does
    for token in (2, 1):
        ledger.write(Effect("key-1", token, f"owner-{token}", "task", f"run-{token}", f"task:{token}"))

    assert {violation.invariant for violation in violations(tmp_path)} == {"I2", "I3"}


def test_the_ledger_that_the_run_names_is_read(tmp_path):
    url = f"sqlite:///{tmp_path / 'elsewhere.sqlite'}"
    Ledger(url).create(("key-1",))
    Ledger(url).write(Effect("key-1", 1, "owner", "task", "run", "task:1"))
    History(tmp_path, "driver").note("run", ledger=url)

    assert [row.effect for row in gather(tmp_path).ledger.writes] == ["task:1"]
