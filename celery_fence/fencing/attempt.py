"""What somebody is about to write, and the words for those who have no token to show for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from celery_fence.errors import ConfigError, UnfencedWrite

SHOWN: Final = ("key", "token", "owner")
"""What a guard looks at in a lease, or in what is handed over in its place."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A guarded write: *what* it is, such as ``UPDATE payouts``, and the call that hands a lease over to it."""

    what: str = "A guarded write"
    hand_over: str = "lease=..."

    def leaseless(self, scope: str = "") -> UnfencedWrite:
        """The error where there is no lease at all; *scope* is what was to be written to, if that is known."""
        return UnfencedWrite(
            f"{self._named(scope)} needs a fencing token, and there is no lease here. Write inside a fenced task or a "
            f"hold(...), or hand the lease over with {self.hand_over} (a thread that the body starts sees none by "
            "itself)."
        )

    def tokenless(self, scope: str = "") -> UnfencedWrite:
        """The error in a run that was let run without a lease."""
        return UnfencedWrite(
            f"{self._named(scope)} needs a fencing token, and this run has none: the store was out of reach and "
            "outage_policy='run' let it run without a lease. Write nothing that is guarded in such a run, choose "
            "another outage_policy, or give the guard mode='shadow', which lets it pass and counts it."
        )

    def _named(self, scope: str) -> str:
        return f"{self.what} for {scope!r}" if scope and scope not in self.what else self.what


GUARDED: Final = Attempt()


def check_lease(given: object) -> None:
    """Raise `ConfigError` unless *given* has what a guard looks at in a lease: its key, token and owner."""
    if all(hasattr(given, name) for name in SHOWN):
        return
    if isinstance(given, int) and not isinstance(given, bool):
        what = f"a token ({given}): a token alone doesn't say whose it is and for which key"
    else:
        what = f"{given!r}"
    raise ConfigError(f"A guard takes a lease (self.lease, current_lease()) or a Stamp, not {what}.")
