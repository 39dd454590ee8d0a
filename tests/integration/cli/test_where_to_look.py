"""The command finds the leases of a project or a URL, and says in one line why it can't."""

from __future__ import annotations

import pytest

from tests.integration.cli.commands import run, take


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
