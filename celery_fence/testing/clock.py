"""A clock that only moves when told to: for tests in which time passes without waiting."""

from __future__ import annotations


class FakeClock:
    """Call it for the time in seconds; *advance* moves it on. Stands in for any clock of celery-fence."""

    def __init__(self, now: float = 1_750_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Seconds since the epoch."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let *seconds* pass; negative ones are a clock that steps back."""
        self.now += seconds
