"""
Negative controls: what is broken on purpose has to be found, or the checkers are worth nothing.

The first half breaks the product in this process and shows that it IS broken; the second half plays rounds with
real workers, and prints how long the checkers took.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from rig import controls
from rig.controls import CONTROLS, Unbreakable
from rig.ledger import Effect, Ledger, StaleWrite
from rig.watch import LIMIT, Finding, first_violation

from celery_fence.locking.beat import Beat
from celery_fence.locking.clock import steady_clock
from celery_fence.locking.heartbeat import Heartbeat
from celery_fence.locking.lease import Lease
from celery_fence.locking.locker import Locker, Terms
from celery_fence.locking.store import Claim, Gone, Granted, Held, Kept, Renewal
from celery_fence.stores.memory.store import MemoryStore
from celery_fence.stores.redis import scripts
from celery_fence.stores.redis.store import RedisStore
from celery_fence.testing.servers import embedded_server


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with embedded_server() as server:
        yield server.url


@pytest.fixture
def mended(monkeypatch) -> Iterator[None]:
    """What a control breaks in this process is whole again after the test."""
    monkeypatch.setattr(scripts, "_load", scripts._load)
    monkeypatch.setattr(Beat, "_try_again", Beat._try_again)
    monkeypatch.setattr(Ledger, "guarded", True)
    monkeypatch.setattr(Locker, "release", Locker.release)
    yield
    monkeypatch.undo()
    scripts.load_scripts.cache_clear()


@pytest.fixture
def broken_store(mended, server, request):
    """Make a store whose scripts a control has broken, with keys of its own."""
    opened: list[RedisStore] = []

    def make(control: str) -> RedisStore:
        controls.apply(control)
        opened.append(RedisStore(server, prefix=request.node.name))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


def _claim(owner: str) -> Claim:
    return Claim("key", owner, ttl=30.0)


# --- each breaks what it says ----------------------------------------------------------------


def test_unfenced_lets_a_stale_write_in(mended, tmp_path):
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    ledger.create(("key",))
    new, old = (Effect("key", token, f"owner-{token}", "task", "run", "effect") for token in (2, 1))
    ledger.write(new)
    with pytest.raises(StaleWrite):
        ledger.write(old)

    controls.apply("unfenced")
    ledger.write(old)

    assert ledger.refused() == 1


def test_incr_tokens_start_again_when_the_counter_is_lost(broken_store):
    store = broken_store("incr_tokens")

    assert store.acquire(_claim("a")).token == 1


def test_a_careless_release_lets_others_in_while_the_key_is_held(broken_store):
    store = broken_store("careless_release")
    store.acquire(_claim("a"))
    store.release(_claim("b"), 1)

    assert isinstance(store.acquire(_claim("c")), Granted)


def test_a_forgetful_acquire_tells_an_owner_of_itself(broken_store):
    store = broken_store("forgetful_acquire")
    store.acquire(_claim("a"))
    again = store.acquire(_claim("a"))

    assert isinstance(again, Held)
    assert again.holder.owner == "a"


class OneErrorStore(MemoryStore):
    """A store whose first renewal fails."""

    asked = 0

    def renew(self, renewals: list[Renewal]) -> list[Kept | Gone]:
        self.asked += 1
        if self.asked == 1:
            raise RuntimeError("once")
        return super().renew(renewals)


def _lost_after_one_error() -> bool:
    """Whether a lease is lost when its first renewal fails and every later one would succeed."""
    clock, store, heartbeat = steady_clock(), OneErrorStore(), Heartbeat()
    claim = Claim("key", "a", ttl=1.0)
    asked_at = clock()
    lease = Lease(
        claim,
        store.acquire(claim),
        asked_at=asked_at,
        clock=clock,
        store=store,
        renewals=store,
        source=None,
        renew_fraction=1 / 3,
        max_hold=None,
    )
    heartbeat.watch(lease, lambda _: None)
    first = lease.trusted_until
    while not lease.lost and lease.trusted_until == first:
        pass_time()
    heartbeat.stop()
    return lease.lost


def pass_time() -> None:
    """Let another thread have its turn."""
    import time

    time.sleep(0.01)


def test_a_mortal_heartbeat_loses_at_its_first_error_what_ours_keeps(mended):
    ours = _lost_after_one_error()
    controls.apply("mortal_heartbeat")

    assert (ours, _lost_after_one_error()) == (False, True)


def test_an_endless_lease_is_held_and_watched_after_its_release(mended):
    store, heartbeat = MemoryStore(), Heartbeat()
    locker = Locker(store, store, lambda _: None, heartbeat=heartbeat)
    lease = locker.acquire(_claim("a"), source=None, terms=Terms(), into=lambda _: None)

    controls.apply("endless_lease")
    locker.release(lease)

    assert heartbeat.watching == 1
    assert isinstance(store.acquire(_claim("b")), Held)
    heartbeat.stop()


# --- a control that breaks nothing is an error -----------------------------------------------


def test_a_control_whose_text_is_gone_says_so_instead_of_breaking_nothing(mended, monkeypatch):
    whole = scripts._load
    monkeypatch.setattr(scripts, "_load", lambda name: replace(whole(name), text=b"return nil"))

    for name in ("incr_tokens", "careless_release", "forgetful_acquire"):
        with pytest.raises(Unbreakable, match=r"\.lua"):
            controls.apply(name)


def test_a_control_whose_attribute_is_gone_says_so_instead_of_breaking_nothing(mended, monkeypatch):
    monkeypatch.delattr(Beat, "_try_again")
    monkeypatch.delattr(Ledger, "guarded")
    monkeypatch.delattr(Locker, "release")

    for name in ("mortal_heartbeat", "unfenced", "endless_lease"):
        with pytest.raises(Unbreakable):
            controls.apply(name)


# --- and is found ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def findings(request) -> Iterator[list[Finding]]:
    """What was found, printed as a table at the end."""
    found: list[Finding] = []
    yield found
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print("\n\nNegative controls: seconds of load to the first violation")
        for finding in found:
            print(f"  {finding}")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("control", CONTROLS.values(), ids=CONTROLS)
def test_what_is_broken_on_purpose_is_found_within_a_minute(control, tmp_path, findings):
    finding = first_violation(control, tmp_path / "run")

    assert finding is not None, f"{control.name}: nothing was found within {LIMIT:g} s (seed {control.seed})"
    assert finding.seconds <= LIMIT
    findings.append(finding)
