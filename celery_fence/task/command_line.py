"""How a mistake reads where a command, such as ``celery worker``, ends with it: its message alone, exit code 1."""

from __future__ import annotations

import click

from celery_fence.errors import ConfigError, StoreUnavailable


class WrongSettings(ConfigError, click.ClickException):
    """As `ConfigError`; a command shows its message without a traceback, which would be longer than the screen."""


class NoStore(StoreUnavailable, click.ClickException):
    """As `StoreUnavailable`; shown as above."""


def is_running() -> bool:
    """Whether this thread carries out a command of Celery's, or of another program that is made with click."""
    return click.get_current_context(silent=True) is not None
