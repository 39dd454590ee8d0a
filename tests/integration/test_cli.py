"""`celery fence ...` as a person or a script runs it: real processes, a real store, all three brokers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from datetime import datetime
from pathlib import Path

import pytest
import redis
from bench.app import WORLD
from bench.waiting import wait_until
from kombu import Queue

from celery_fence.locking.store import Claim, Facts, Gone, Granted, Renewal
from celery_fence.stores import from_url
from celery_fence.task.dead_letters import letters, purge_letters
from celery_fence.task.letters import go_through
from celery_fence.testing.servers import embedded_server

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def run(*words, env=None, cwd=None, answer=""):
    environment = {name: text for name, text in os.environ.items() if name != "COLUMNS"}
    environment |= {"PYTHONPATH": f"{HERE}{os.pathsep}{ROOT}", **(env or {})}
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=cwd or ROOT, env=environment, input=answer, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


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


def take(store, key="tenant:7:sync", ttl=60.0, **facts):
    claim = Claim(
        key, uuid.uuid4().hex, ttl, Facts(**{"task_name": "billing.sync", "task_id": "0d3c", **facts})
    )
    granted = store.acquire(claim)
    assert isinstance(granted, Granted)
    return claim, granted


def document(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_celery_lists_the_command_and_no_plug_in_fails_to_load(project):
    done = run("celery", "--help", cwd=project)

    assert done.returncode == 0
    assert "fence    Look at leases and dead letters" in done.stdout
    assert "could not load plugin" not in done.stdout + done.stderr


def test_a_project_without_any_setting_of_ours_is_looked_into_where_its_leases_would_be(project, store):
    take(store, host="web-1", pid=4711)
    done = run("celery", "-A", "shop", "fence", "leases", cwd=project)

    assert done.returncode == 0, done.stderr
    for fact in ("tenant:7:sync", "billing.sync", "0d3c", "web-1", "4711"):
        assert fact in done.stdout


def test_preload_options_of_the_project_reach_it_once_and_do_not_break_the_command(project, store):
    with (project / "shop.py").open("a") as file:
        file.write("from celery.bin.base import CeleryOption\n")
        file.write("app.user_options['preload'].add(CeleryOption(('--tier',), default='test'))\n")
        file.write("from celery import signals\n")
        file.write("@signals.user_preload_options.connect(weak=False)\n")
        file.write("def tell(options, **_):\n    print('told', options)\n")
    done = run("celery", "-A", "shop", "fence", "leases", cwd=project)

    assert done.returncode == 0, done.stderr
    assert "nothing is held" in done.stdout
    assert done.stdout.count("told {'tier': 'test'}") == 1


def test_no_leases_is_a_sentence_and_no_error(fence, store):
    done = fence("leases")

    assert done.returncode == 0
    assert done.stdout.startswith("No lease in redis://")
    assert document(fence("leases", "--json"))["leases"] == []


def test_leases_as_a_document_have_every_fact_and_times_with_their_zone(fence, store, server):
    claim, granted = take(store, host="web-1", pid=4711, retries=2)
    found = document(fence("leases", "--json"))
    (lease,) = found["leases"]

    assert (found["store"], found["prefix"]) == (server.url, "fence")
    assert (lease["key"], lease["owner"], lease["token"]) == (claim.key, claim.owner, granted.token)
    assert datetime.fromisoformat(lease["since"]).timestamp() == pytest.approx(granted.since)
    assert datetime.fromisoformat(lease["since"]).utcoffset() is not None
    assert 50 < lease["ttl_left"] <= 60
    assert lease["held_for"] >= lease["beat_age"] >= 0


@pytest.mark.parametrize(
    ("text", "keys"), [("tenant:7", ["tenant:7:sync"]), ("web-2", ["feed:1"]), ("zz", [])]
)
def test_leases_can_be_searched_by_key_task_or_host(fence, store, text, keys):
    take(store)
    take(store, "feed:1", host="web-2")

    assert [lease["key"] for lease in document(fence("leases", "--match", text, "--json"))["leases"]] == keys


def test_a_lease_made_by_hand_is_marked(fence, store, server):
    with redis.Redis.from_url(server.url) as client:
        client.set(store._names.of(b"hand")[0], "me")
    take_on_it = store.acquire(Claim("hand", "o", 5.0))
    assert not isinstance(take_on_it, Granted)

    assert "NO-TTL" in fence("leases").stdout
    assert "NO-TTL" in fence("why", "hand").stdout
    assert document(fence("leases", "--json"))["leases"][0]["state"] == "no_ttl"


def test_ten_thousand_leases_are_listed_where_keys_and_scan_are_forbidden(fence, store, server):
    with redis.Redis.from_url(server.url) as client:
        with client.pipeline(transaction=False) as pipe:
            for number in range(10_000):
                lease, _, index = store._names.of(f"k{number}".encode())
                pipe.hset(lease, mapping={"owner": f"o{number}", "token": number + 1})
                pipe.pexpire(lease, 600_000)
                pipe.zadd(index, {f"k{number}": 9e15})
            pipe.execute()
        client.execute_command("ACL", "SETUSER", "default", "-keys", "-scan")
        try:
            listed = document(fence("leases", "--json"))["leases"]
        finally:
            client.execute_command("ACL", "SETUSER", "default", "+keys", "+scan")

    assert {lease["key"] for lease in listed} == {f"k{number}" for number in range(10_000)}


def test_another_prefix_is_another_world(fence, store, server):
    elsewhere = from_url(server.url, prefix="other")
    take(elsewhere, "there")
    elsewhere.close()

    assert document(fence("leases", "--json"))["leases"] == []
    assert [lease["key"] for lease in document(fence("--prefix", "other", "leases", "--json"))["leases"]] == [
        "there"
    ]
    assert document(fence("leases", "--prefix", "other", "--json"))["prefix"] == "other"


def test_why_answers_for_held_released_lost_forced_and_unknown_keys(fence, store):
    take(store, "held")
    claim, granted = take(store, "released")
    store.release(claim, granted.token)
    take(store, "lost", ttl=0.2)
    take(store, "forced")
    store.force_release("forced")
    wait_until(lambda: store.holder("lost") is None)

    states = {}
    for key, words in {
        "held": "The key 'held' is held by billing.sync[0d3c].",
        "released": "It was last released at ",
        "lost": "never released: its lease expired or vanished",
        "forced": "An operator force-released it at ",
        "unknown": "knows nothing of it",
    }.items():
        assert words in fence("why", key).stdout
        found = document(fence("why", key, "--json"))
        states[key] = found["state"]
        assert any(words in sentence for sentence in found["sentences"])
    assert states == {
        "held": "held",
        "released": "free",
        "lost": "free",
        "forced": "free",
        "unknown": "unknown",
    }


def test_a_release_shows_the_holder_and_changes_nothing_without_a_yes(fence, store):
    claim, _ = take(store, host="web-1")

    for answer in ("n\n", ""):
        done = fence("release", claim.key, answer=answer)
        assert done.returncode == 1
        assert "billing.sync[0d3c]" in done.stderr
        assert "web-1" in done.stderr
        assert store.holder(claim.key).owner == claim.owner


def test_a_release_fences_the_old_holder_off_and_writes_who_did_it(fence, store):
    claim, granted = take(store)
    done = fence("release", claim.key, answer="y\n")

    assert done.returncode == 0, done.stderr
    assert "is fenced off" in done.stdout
    for told in (done.stderr, done.stdout):  # before the question, and after
        assert "Its message is sent again" in told
    assert f"force-released {claim.key!r}" in done.stderr
    assert f"owner {claim.owner}, token {granted.token}" in done.stderr
    (answer,) = store.renew([Renewal(claim, granted.token, granted.since)])
    assert isinstance(answer, Gone)
    assert answer.reason == "force_released"
    assert take(store)[1].token > granted.token


def test_a_script_releases_without_a_question(fence, store):
    claim, granted = take(store)
    found = document(fence("release", claim.key, "--yes", "--json"))

    assert (found["released"], found["outcome"], found["lease"]["token"]) == (
        True,
        "force_released",
        granted.token,
    )
    assert store.holder(claim.key) is None


def test_a_free_key_is_left_alone(fence, store):
    found = document(fence("release", "nothing", "--yes", "--json"))

    assert (found["released"], found["outcome"]) == (False, "already_free")
    assert store.history("nothing").token == 0


def test_a_release_of_an_owner_that_has_gone_leaves_its_successor_alone(fence, store):
    old, granted = take(store)
    store.release(old, granted.token)
    new, _ = take(store, task_name="billing.other")
    done = fence("release", old.key, "--owner", old.owner, "--yes", "--json")

    assert done.returncode == 1
    assert json.loads(done.stdout)["outcome"] == "held_by_another"
    assert json.loads(done.stdout)["lease"]["owner"] == new.owner
    assert "belongs to another owner by now, billing.other[0d3c]" in done.stderr
    assert store.holder(old.key).owner == new.owner


def test_an_owner_whose_lease_has_vanished_is_fenced_off_too(fence, store, server):
    claim, granted = take(store)
    with redis.Redis.from_url(server.url) as client:
        client.delete(store._names.of(claim.key.encode())[0])
    done = fence("release", claim.key, "--owner", claim.owner, "--yes")

    assert done.returncode == 0, done.stderr
    assert isinstance(store.renew([Renewal(claim, granted.token, granted.since)])[0], Gone)


def test_a_new_holder_between_the_question_and_the_answer_is_not_touched(server, store):
    old, granted = take(store)
    command = [sys.executable, "-m", "celery_fence.cli", "--url", server.url, "release", old.key]
    with subprocess.Popen(
        command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as asking:
        shown = ""
        while "[y/N]" not in shown:
            shown += asking.stderr.read(1) or pytest.fail(f"it ended without a question: {shown}")
        store.release(old, granted.token)
        new, _ = take(store)
        _, said = asking.communicate("y\n", timeout=30)

    assert asking.returncode == 1
    assert "Nothing was released" in said
    assert store.holder(old.key).owner == new.owner


@pytest.mark.parametrize("words", [("leases",), ("why", "k"), ("release", "k", "--yes")])
def test_a_store_out_of_reach_is_one_line_without_the_password(words):
    done = run("celery_fence.cli", "--url", "redis://:geheim@127.0.0.1:1/0", *words)

    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "redis://127.0.0.1:1/0" in done.stderr
    assert "can't be reached" in done.stderr
    assert "geheim" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("memory://", "keeps leases inside each process"),
        ("geheim", "must be a URL"),
        ("rdis://h/0", "unknown scheme"),
    ],
)
def test_a_url_that_cannot_be_used_is_one_line_that_says_why(url, words):
    done = run("celery_fence.cli", "--url", url, "leases")

    assert done.returncode == 2
    assert words in done.stderr
    assert "geheim" not in done.stderr
    assert "Traceback" not in done.stderr


def test_without_project_and_url_it_says_what_to_name():
    done = run("celery_fence.cli", "leases")

    assert done.returncode == 2
    assert "celery -A proj fence" in done.stderr
    assert "--url redis://" in done.stderr


def test_the_url_may_come_from_the_environment_and_a_written_one_wins(fence, store, server):
    take(store)
    env = {"FENCE_CLI_URL": server.url}

    assert "tenant:7:sync" in run("celery_fence.cli", "leases", env=env).stdout
    nowhere = {"FENCE_CLI_URL": "redis://127.0.0.1:1/0"}
    assert fence("leases", env=nowhere).returncode == 0
    assert run("celery_fence.cli", "leases", "--url", server.url, env=nowhere).returncode == 0


@pytest.mark.parametrize("url", ["redis://:geheim@127.0.0.1:1/0", "amqp://guest:geheim@127.0.0.1:1//"])
def test_a_broker_out_of_reach_is_one_line_without_the_password(tmp_path, url):
    (tmp_path / "shop.py").write_text(f"from celery import Celery\napp = Celery('shop', broker={url!r})\n")
    done = run("celery", "-A", "shop", "fence", "dead-letters", "list", cwd=tmp_path)

    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "can't be asked" in done.stderr
    assert "geheim" not in done.stdout + done.stderr


@pytest.fixture
def bench(policy_bench):
    purge_letters(policy_bench.app)
    yield policy_bench
    purge_letters(policy_bench.app)


@pytest.fixture
def given_up(bench):
    """Three messages that were given up, in order, and the keys they wait for."""
    keys = [bench.key("cli") for _ in range(3)]
    for key in keys:
        bench.occupy(key)
    results = [bench.send("dead_letter", key, {"value": key}) for key in keys]
    for number, result in enumerate(results):
        assert bench.outcome(result) == "FAILURE"
        wait_until(lambda: result.id in ids_of(letters(bench.app)), what=f"letter {number}")  # noqa: B023
    yield [result.id for result in results], keys
    for key in keys:
        bench.vacate(key)


def ids_of(found):
    return [letter.id for letter in found]


def dead_letters(bench, *words, **how):
    env = {WORLD: json.dumps(bench.conf)}
    return run("celery", "-A", "bench.app", "fence", "dead-letters", *words, env=env, **how)


def listed(bench):
    return [letter["id"] for letter in document(dead_letters(bench, "list", "--json"))["letters"]]


def test_an_empty_dead_letter_queue_is_a_sentence_and_no_error(bench):
    done = dead_letters(bench, "list")

    assert done.returncode == 0
    assert done.stdout.startswith("No dead letters in the queue")


def test_a_queue_that_is_not_there_is_not_made_and_a_misspelt_name_is_an_error(bench):
    name = bench.key("no-such-queue")
    done = dead_letters(bench, "list", "--queue", name)

    if bench.kind == "redis":
        assert f"No dead letters in the queue {name!r}" in done.stdout  # an empty queue is none there
    else:
        assert done.returncode == 2
        assert f"There is no queue {name!r}" in done.stderr
    with bench.app.connection_for_read() as connection, pytest.raises(connection.channel_errors):
        Queue(name).bind(connection.channel()).queue_declare(passive=True)


def test_the_usual_queue_before_the_first_dead_letter_is_empty(bench):
    world = {**bench.conf, "fence_dead_letter_queue": bench.key("not-yet")}
    for words in (["list"], ["replay", "--all"], ["purge", "--all"]):
        done = run(
            "celery", "-A", "bench.app", "fence", "dead-letters", *words, env={WORLD: json.dumps(world)}
        )
        assert done.returncode == 0, done.stderr


def test_letters_are_listed_with_what_is_known_and_stay_in_their_order(bench, given_up):
    ids, keys = given_up
    first = document(dead_letters(bench, "list", "--json"))["letters"]

    assert sorted(letter["id"] for letter in first) == sorted(ids)
    by_id = {letter["id"]: letter for letter in first}
    letter = by_id[ids[0]]
    assert (letter["task"], letter["key"], letter["reason"]) == ("dead_letter", f"job:{keys[0]}", "held")
    assert (letter["attempts"], letter["original_queue"]) == (1, bench.queue)
    assert datetime.fromisoformat(letter["first_miss"]) <= datetime.fromisoformat(letter["last_miss"])
    assert datetime.fromisoformat(letter["last_miss"]).utcoffset() is not None

    for _ in range(3):
        assert listed(bench) == [letter["id"] for letter in first]


def test_one_letter_is_shown_with_its_arguments_and_holder(bench, given_up):
    ids, keys = given_up
    done = dead_letters(bench, "show", ids[1])

    assert done.returncode == 0, done.stderr
    for fact in (ids[1], keys[1], "the test", "dead_letter", bench.queue):
        assert fact in done.stdout
    (letter,) = document(dead_letters(bench, "show", ids[1], "--json"))["letters"]
    assert keys[1] in letter["args"]
    assert letter["holder_task"] == "the test"


def test_a_letter_that_is_not_there_is_an_error_that_says_where_to_look(bench, given_up):
    done = dead_letters(bench, "show", "nobody")

    assert done.returncode == 1
    assert "No dead letter 'nobody' in the queue" in done.stderr
    assert "fence dead-letters list" in done.stderr


def test_a_replay_of_one_runs_it_and_leaves_the_others_in_their_order(bench, given_up):
    ids, keys = given_up
    order = listed(bench)
    bench.vacate(keys[1])
    found = document(dead_letters(bench, "replay", "--id", ids[1], "--json"))

    assert found["replayed"] == [ids[1]]
    (start,) = wait_until(lambda: bench.ledger.starts(keys[1]))
    assert start["task_id"] == ids[1]
    assert listed(bench) == [each for each in order if each != ids[1]]


def test_a_replay_of_all_runs_all(bench, given_up):
    ids, keys = given_up
    for key in keys:
        bench.vacate(key)
    done = dead_letters(bench, "replay", "--all")

    assert "Sent back 3 dead letters" in done.stdout
    assert all(each in done.stdout for each in ids)
    wait_until(lambda: all(bench.ledger.ends(key) for key in keys))
    assert listed(bench) == []


def test_an_id_that_is_not_there_is_told_after_the_others_were_replayed(bench, given_up):
    ids, keys = given_up
    bench.vacate(keys[0])
    done = dead_letters(bench, "replay", "--id", ids[0], "--id", "nobody")

    assert done.returncode == 1
    assert ids[0] in done.stdout
    assert "nobody" in done.stderr
    wait_until(lambda: bench.ledger.ends(keys[0]))


def test_a_message_of_somebody_else_stays_where_it_is(bench):
    """Such as one that RabbitMQ itself dead-lettered: sent to nowhere it would be lost."""
    name = bench.conf["fence_dead_letter_queue"]
    queue = bench.app.amqp.queues[name]
    result = bench.app.tasks["plain"].apply_async(("k",), queue=queue)
    wait_until(lambda: ids_of(letters(bench.app)))
    done = dead_letters(bench, "replay", "--all")

    assert "Sent back 0 dead letters" in done.stdout
    assert f"{result.id} stays" in done.stderr
    assert dead_letters(bench, "replay", "--id", result.id).returncode == 1
    assert listed(bench) == [result.id]


def test_nothing_is_purged_without_a_yes(bench, given_up):
    ids, _ = given_up
    done = dead_letters(bench, "purge", "--all", answer="n\n")

    assert done.returncode == 1
    assert all(each in done.stderr for each in ids)
    assert sorted(listed(bench)) == sorted(ids)


def test_a_purge_deletes_the_chosen_and_says_so_in_the_log(bench, given_up):
    ids, keys = given_up
    done = dead_letters(bench, "purge", "--id", ids[2], "--yes", "--json")

    assert document(done)["purged"] == [ids[2]]
    assert f"deleted the dead letter {ids[2]} (dead_letter) of the key 'job:{keys[2]}'" in done.stderr
    assert sorted(listed(bench)) == sorted(ids[:2])
    assert dead_letters(bench, "purge", "--all", answer="y\n").returncode == 0
    assert listed(bench) == []


def test_letters_go_back_by_themselves_when_something_fails_on_the_way(bench, given_up, capsys):
    order = ids_of(letters(bench.app))
    queue = bench.app.amqp.queues[bench.conf["fence_dead_letter_queue"]]

    def fail_at_the_second(_message, letter):
        if letter.id == order[1]:
            raise ZeroDivisionError
        return False

    with pytest.raises(ZeroDivisionError):
        go_through(bench.app, queue, fail_at_the_second)

    assert sorted(ids_of(letters(bench.app))) == sorted(order)
    # What kombu says when it has to put messages back itself, at the end of the connection.
    assert "Restoring" not in capsys.readouterr().err


def test_a_letter_that_comes_straight_back_ends_the_pass(bench):
    """A replay while the key is still held comes back as a dead letter, which would go round for ever."""
    queue = bench.app.amqp.queues[bench.conf["fence_dead_letter_queue"]]
    first, second = (bench.app.tasks["plain"].apply_async(("k",), queue=queue).id for _ in range(2))
    wait_until(lambda: ids_of(letters(bench.app)) == [first, second])

    def send_round(_message, letter):
        assert ids_of(sent) != [first, second, first], "the pass goes on"
        sent.append(letter)
        bench.app.tasks["plain"].apply_async(("k",), queue=queue, task_id=letter.id)
        return True

    sent = []
    assert ids_of(go_through(bench.app, queue, send_round)) == [first, second]
    wait_until(lambda: sorted(ids_of(letters(bench.app))) == sorted([first, second]))


def test_looking_often_does_not_use_up_the_delivery_limit_of_a_quorum_queue(bench):
    """RabbitMQ 4 drops what came back 20 times, unless told otherwise; here 4 times do."""
    if bench.kind != "quorum":
        pytest.skip("also on CI: only quorum queues have a delivery limit")
    name = f"{bench.queue}.limited"
    limits = {"x-queue-type": "quorum", "x-delivery-limit": 4}
    queue = Queue(name, routing_key=name, queue_arguments=limits)
    bench.app.amqp.queues.add(queue)
    results = [bench.app.tasks["plain"].apply_async(("k",), queue=queue) for _ in range(3)]

    try:
        for _ in range(12):
            assert ids_of(letters(bench.app, queue=name)) == [result.id for result in results]
        assert len(purge_letters(bench.app, queue=name)) == 3
    finally:
        with bench.app.connection_for_write() as connection, connection.channel() as channel:
            channel.queue_delete(name)


def test_a_lease_of_a_real_run_names_its_task_host_and_process(bench):
    key = bench.key("seen")
    result, gate = bench.hold(key)
    env = {WORLD: json.dumps(bench.conf)}
    try:
        done = run("celery", "-A", "bench.app", "fence", "why", f"job:{key}", "--json", env=env)
        lease = document(done)["lease"]
    finally:
        gate.open()

    assert (lease["task"], lease["task_id"]) == ("retry", result.id)
    assert lease["host"]
    assert lease["pid"] in bench.workers[0].child_pids()
    assert bench.outcome(result) == "SUCCESS"
