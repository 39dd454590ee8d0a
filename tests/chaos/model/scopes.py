"""The worlds that are explored, and what each is about."""

from __future__ import annotations

from tests.chaos.model.scope import Role, Scope

PLAIN = Role()
COPY = Role("d1", "m1", if_held="skipped")
SKIPPED = Role("d2", "m2", if_held="skipped")

TWO, THREE = (PLAIN, PLAIN), (PLAIN, PLAIN, PLAIN)
LOSSES = frozenset({"flush", "lose_lease", "lose_counter"})
OLDER = frozenset({"older"})
EVERYTHING = LOSSES | {"force", "jump"}

SHORT = (
    Scope("three owners", THREE),
    Scope("writes and losses", TWO, LOSSES, writes=True),
    Scope("older data come back", TWO, OLDER),
    Scope("force release", TWO, frozenset({"force", "lose_counter"})),
    Scope("deaths and interruptions", TWO, frozenset({"die", "parent", "interrupt"})),
    Scope("a clock ahead", TWO, frozenset({"jump"})),
    Scope("a clock behind", TWO, frozenset({"step_back"}), writes=True),
    Scope("a lost delay", TWO, frozenset({"lose_lease"}), lost_delay=1),
    Scope("copies of a delivery", (COPY, COPY), frozenset({"lose_markers"})),
    Scope("a copy and a decision", (COPY, SKIPPED), frozenset({"lose_markers"})),
)
"""For every change: in seconds."""

LONG = (
    Scope("two owners, everything", TWO, EVERYTHING | {"die", "parent", "interrupt"}),
    Scope("two owners, a longer TTL", TWO, EVERYTHING, ttl=4),
    Scope("three owners, writes", THREE, writes=True),
    Scope("three owners, losses of the lease", THREE, frozenset({"lose_lease"})),
    Scope("three owners, losses of the counter", THREE, frozenset({"lose_counter"})),
    Scope("three owners, deaths and interruptions", THREE, frozenset({"die", "parent", "interrupt"})),
    Scope("three owners, a lost delay", THREE, lost_delay=1),
    Scope("two copies and a decision", (COPY, COPY, SKIPPED)),
    Scope("three copies", (COPY, COPY, COPY)),
    Scope("three owners, older data come back", THREE, OLDER),
    Scope("older data and everything", TWO, OLDER | EVERYTHING),
    Scope("copies, older data come back", (COPY, COPY), OLDER),
    Scope("copies, everything", (COPY, COPY), EVERYTHING | {"lose_markers"}),
    Scope("three owners, everything is lost", THREE, frozenset({"flush"})),
    Scope("three owners, force release", THREE, frozenset({"force"})),
)
"""For a release: some ten minutes of a processor, and 0.6 GB of memory."""
