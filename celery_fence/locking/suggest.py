"""The nearest right name for a wrong one, for messages that say what to do."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

WORDS: Mapping[str, str] = {
    "timeout": "ttl",
    "expire": "ttl",
    "expires": "ttl",
    "expiry": "ttl",
    "expiration": "ttl",
    "duration": "ttl",
    "lifetime": "ttl",
    "lock": "fence",
    "fence": "lock",
}
"""What other libraries call a thing, word by word: their ``lock_timeout`` is our ``lock_ttl``."""


def nearest(
    name: str, known: Iterable[str], synonyms: Mapping[str, str] | None = None, *, alike: float = 0.6
) -> str | None:
    """
    The one of *known* that was probably meant by *name*, or None.

    *synonyms* maps whole names of other libraries to ours and is asked first;
    then single words are exchanged (`WORDS`); then spelling decides, where at least
    the part *alike* of it is the same.
    """
    plain = name.strip().lower().replace("-", "_").replace(" ", "_")
    names = {each.lower(): each for each in known}
    for guess in (plain, (synonyms or {}).get(plain, ""), *_translated(plain)):
        if guess in names and names[guess] != name:
            return names[guess]
    close = get_close_matches(plain, [each for each in names if names[each] != name], n=1, cutoff=alike)
    return names[close[0]] if close else None


def hint(name: str, known: Iterable[str], synonyms: Mapping[str, str] | None = None) -> str:
    """`` Did you mean 'lock_ttl'?`` with its leading space, or an empty text: made to end a message."""
    found = nearest(name, known, synonyms)
    return f" Did you mean {found!r}?" if found else ""


def _translated(name: str) -> Iterable[str]:
    """*name* with the words of other libraries exchanged for ours: each alone, then all together."""
    words = name.split("_")
    for place, word in enumerate(words):
        if word in WORDS:
            yield "_".join([*words[:place], WORDS[word], *words[place + 1 :]])
    yield "_".join(WORDS.get(word, word) for word in words)
