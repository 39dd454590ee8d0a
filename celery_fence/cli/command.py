"""One command: the options that all have, and how what goes wrong is said."""

from __future__ import annotations

import json
from typing import Any

import click

from celery_fence.cli.place import OutOfReach
from celery_fence.errors import FenceError


class FenceCommand(click.Command):
    """A command whose expected failures are one line and exit code 2, never a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run it."""
        try:
            return super().invoke(ctx)
        except FenceError as error:
            raise OutOfReach(str(error)) from error


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")

yes_option = click.option("--yes", "-y", is_flag=True, help="Don't ask; for scripts.")


def print_json(document: dict[str, Any]) -> None:
    """Print *document* in ASCII, so that no terminal or locale can spoil it."""
    click.echo(json.dumps(document, indent=2))
