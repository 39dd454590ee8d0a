"""
First aid on the command line: who holds what, why, and what to do about it.

``celery -A proj fence ...`` as a sub-command of Celery's, and ``python -m celery_fence.cli
--url redis://... ...`` where the project can't even be imported. Looking never changes
anything; what changes something asks first, and says afterwards what it did.

Exit codes: 0 done; 1 refused or not found; 2 wrong usage, or the store or broker can't
be reached.

Celery imports its plug-ins at every start, a worker's too. So this module has nothing
but the list of commands; each is imported when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click
from celery.bin.base import handle_preload_options

from celery_fence.cli.place import place_options

COMMANDS = {
    "leases": "leases",
    "why": "why",
    "release": "release",
    "dead-letters": "dead_letters",
    "records": "records",
}
"""Each command and the module it lives in, in the order of the help."""


class LazyCommands(click.Group):
    """Commands that are imported when they are asked for, not when Celery starts."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """The commands in the order of the help."""
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        """The command *name*, None if there is no such."""
        if name not in COMMANDS:
            return None
        command: click.Command = import_module(f"celery_fence.cli.{COMMANDS[name]}").command
        return command


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@place_options(envvar="FENCE_CLI_URL")
@click.pass_context
@handle_preload_options
def fence(ctx: click.Context, **_preload: Any) -> None:
    """
    Look at leases and dead letters, and set stuck ones free.

    Works on the project given by `celery -A`; or, without any project, on the
    lease store given by --url.
    """
    # Before Celery 5.7 a plug-in has to take the project's preload options itself: hence the decorator.
    if ctx.obj.no_color:
        ctx.color = False


__all__ = ["fence"]
