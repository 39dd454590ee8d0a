"""Where the billing service finds its broker, its leases and its ledger: three environment variables."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Self

LEASE_TTL = 2.0
"""Seconds that the key of a killed worker stays closed. Your own tasks can live with the default of 60."""


@dataclass(frozen=True, slots=True)
class Config:
    """The three URLs of one running service."""

    broker_url: str
    fence_url: str
    database_url: str

    @classmethod
    def from_environment(cls) -> Self:
        """What the environment says; without it, a local Redis and an SQLite file in this directory."""
        broker_url = os.environ.get("FENCE_DEMO_BROKER_URL", "redis://localhost:6379/0")
        return cls(
            broker_url=broker_url,
            fence_url=os.environ.get("FENCE_DEMO_FENCE_URL", broker_url),
            database_url=os.environ.get("FENCE_DEMO_DATABASE_URL", "sqlite:///billing.db"),
        )

    def environment(self) -> dict[str, str]:
        """The same as variables, for a process to be started."""
        return {
            "FENCE_DEMO_BROKER_URL": self.broker_url,
            "FENCE_DEMO_FENCE_URL": self.fence_url,
            "FENCE_DEMO_DATABASE_URL": self.database_url,
        }
