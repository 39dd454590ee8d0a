"""Where to look: the lease store of the project, or the one of ``--url``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from celery_fence.locking.store import Store

URL = "celery_fence.url"
PREFIX = "celery_fence.prefix"
PATIENCE = 3.0
"""Seconds for each wait for the store: a person is waiting, no lease."""

Function = TypeVar("Function", bound=Callable[..., Any])


class OutOfReach(click.ClickException):
    """The store or the broker can't be asked; its message is one line that says what to do."""

    exit_code = 2


class Refused(click.ClickException):
    """It wasn't done, and the message says why."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Place:
    """A lease store, and what its leases' names begin with."""

    store: Store
    prefix: str

    def document(self) -> dict[str, Any]:
        """What every JSON document begins with."""
        return {"store": self.store.description, "prefix": self.prefix}


def place_options(*, envvar: str | None = None) -> Callable[[Function], Function]:
    """Add ``--url`` and ``--prefix``; a command's own win over those of the group, which may come from *envvar*."""
    url = click.option(
        "--url",
        metavar="URL",
        envvar=envvar,
        show_envvar=True,
        expose_value=False,
        callback=_remember(URL),
        help="Look in this lease store instead of the project's, as in redis://host:6379/0.",
    )
    prefix = click.option(
        "--prefix",
        metavar="TEXT",
        expose_value=False,
        callback=_remember(PREFIX),
        help="The fence_prefix of that store's leases, if it isn't 'fence'.",
    )
    return lambda function: url(prefix(function))


def place(ctx: click.Context) -> Place:
    """
    The place that *ctx* is about.

    Raises:
        ConfigError: neither the options nor the project's settings say where leases are.
        OutOfReach: they are in the memory of other processes.

    """
    from celery_fence.stores import from_url

    address = _address(ctx)
    store = from_url(timeout=PATIENCE, **address)
    if getattr(store, "single_process", False):
        raise OutOfReach(
            f"{store.description} keeps leases inside each process, so nothing can be seen from here. "
            "Use --url to look into another store."
        )
    return Place(store, address["prefix"])


def app_of(ctx: click.Context) -> Any:
    """The Celery app of ``celery -A``, or the one that Celery's environment variables describe."""
    return ctx.obj.app


def _remember(name: str) -> Callable[[click.Context, click.Parameter, str | None], None]:
    def remember(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            ctx.meta[name] = value

    return remember


def _address(ctx: click.Context) -> dict[str, Any]:
    """What `from_url` needs to know; the options count before the settings, and may do without them."""
    from celery_fence.errors import ConfigError
    from celery_fence.task.settings import FenceSettings

    url, prefix = ctx.meta.get(URL), ctx.meta.get(PREFIX)
    if url is not None:
        return {"url": url, "prefix": prefix or "fence"}
    settings = FenceSettings.of(app_of(ctx))
    try:
        found = settings.url
    except ConfigError as error:
        advice = "On the command line, name the project (celery -A proj fence ...) or the store (--url redis://...)."
        raise ConfigError(f"{error} {advice}") from error
    return {
        "url": found,
        "prefix": prefix or settings.prefix,
        "counter_retention": settings.counter_retention,
    }
