"""What the ledger says in the morning. Every number here is the answer to an SQL question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from example_app.ledger import Ledger

INVOICES = "SELECT COUNT(*) FROM invoices"

CHARGED_ONCE = """
    SELECT COUNT(*) FROM invoices
    WHERE (SELECT COUNT(*) FROM charges WHERE charges.invoice_id = invoices.id) = 1
"""

CHARGED_AGAIN = """
    SELECT COUNT(*) FROM invoices
    WHERE (SELECT COUNT(*) FROM charges WHERE charges.invoice_id = invoices.id) > 1
"""

CENTS_TOO_MUCH = """
    SELECT (SELECT COALESCE(SUM(amount_cents), 0) FROM charges)
         - (SELECT COALESCE(SUM(amount_cents), 0) FROM invoices WHERE id IN (SELECT invoice_id FROM charges))
"""

STALE_OVERWRITES = """
    SELECT COUNT(*) FROM charges AS late
    WHERE EXISTS (
        SELECT 1 FROM charges AS newer
        WHERE newer.invoice_id = late.invoice_id AND newer.begun > late.begun AND newer.id < late.id
    )
"""

WRONG_BALANCES = """
    SELECT COUNT(*) FROM tenants
    WHERE balance_cents <> opening_cents - (
        SELECT COALESCE(SUM(charges.amount_cents), 0)
        FROM charges JOIN invoices ON invoices.id = charges.invoice_id
        WHERE invoices.tenant_id = tenants.id
    )
"""

MESSAGES = "SELECT COUNT(DISTINCT task_id) FROM journal WHERE what = 'published'"

MESSAGES_LOST = """
    SELECT COUNT(DISTINCT task_id) FROM journal
    WHERE what = 'published' AND task_id NOT IN (
        SELECT task_id FROM journal WHERE what IN ('charged', 'already paid', 'answered', 'refused')
    )
"""

ANSWERED_RIGHT = """
    SELECT COUNT(*) FROM journal JOIN invoices ON invoices.tenant_id = journal.tenant_id
    WHERE journal.what = 'answered' AND journal.receipt = invoices.receipt
"""

RAW_WRITES = "SELECT COUNT(*) FROM journal WHERE what IN ('raw refused', 'raw written')"

LINES = "SELECT COUNT(*) FROM journal WHERE what = :what"

SLOW_INVOICES = "SELECT COUNT(*) FROM invoices WHERE seconds_to_charge > :ttl"

OUTLIVED_THE_TTL = """
    SELECT COUNT(*) FROM charges JOIN journal ON journal.id = charges.begun
    WHERE charges.at - journal.at > :ttl
"""


@dataclass(frozen=True, slots=True)
class Books:
    """One night in numbers; money in cents."""

    invoices: int
    charged_once: int
    charged_again: int
    cents_too_much: int
    stale_overwrites: int
    wrong_balances: int
    messages: int
    messages_lost: int
    misses: int
    refused: int
    raw_writes: int
    raw_refused: int
    answered: int
    answered_right: int
    killed: int
    slow_invoices: int
    outlived_the_ttl: int


@dataclass(frozen=True, slots=True)
class Check:
    """One sentence of the verdict, and whether it holds."""

    passed: bool
    sentence: str


def read_books(ledger: Ledger, *, ttl: float) -> Books:
    """Ask the ledger everything."""
    return Books(
        invoices=ledger.number(INVOICES),
        charged_once=ledger.number(CHARGED_ONCE),
        charged_again=ledger.number(CHARGED_AGAIN),
        cents_too_much=ledger.number(CENTS_TOO_MUCH),
        stale_overwrites=ledger.number(STALE_OVERWRITES),
        wrong_balances=ledger.number(WRONG_BALANCES),
        messages=ledger.number(MESSAGES),
        messages_lost=ledger.number(MESSAGES_LOST),
        misses=ledger.number(LINES, what="missed"),
        refused=ledger.number(LINES, what="refused"),
        raw_writes=ledger.number(RAW_WRITES),
        raw_refused=ledger.number(LINES, what="raw refused"),
        answered=ledger.number(LINES, what="answered"),
        answered_right=ledger.number(ANSWERED_RIGHT),
        killed=ledger.number(LINES, what="killed"),
        slow_invoices=ledger.number(SLOW_INVOICES, ttl=ttl),
        outlived_the_ttl=ledger.number(OUTLIVED_THE_TTL, ttl=ttl),
    )


def judge(books: Books, *, expected_messages: int, leases_left: int) -> list[Check]:
    """What must be true of a fenced night."""
    return [
        Check(
            0 < books.invoices == books.charged_once,
            f"{books.charged_once} of {books.invoices} invoices charged exactly once",
        ),
        Check(books.wrong_balances == 0, f"{books.wrong_balances} accounts with a wrong balance"),
        Check(books.refused > 0, f"{books.refused} late UPDATE refused by the guard (the frozen process)"),
        Check(
            0 < books.raw_writes == books.raw_refused,
            f"{books.raw_refused} of {books.raw_writes} raw SQL writes refused by the trigger",
        ),
        Check(
            0 < books.answered == books.answered_right,
            f"{books.answered_right} repeated payments answered from the first one's record",
        ),
        Check(books.killed > 0, f"{books.killed} process killed in the middle of a charge"),
        Check(
            books.outlived_the_ttl >= books.slow_invoices,
            f"{books.outlived_the_ttl} charged for longer than the TTL: the key was renewed",
        ),
        Check(
            books.messages == expected_messages and books.messages_lost == 0,
            f"{books.messages_lost} of {books.messages} messages lost",
        ),
        Check(leases_left == 0, f"{leases_left} leases left in the store"),
    ]


def comparison(fenced: Books, unfenced: Books) -> list[tuple[str, str, str]]:
    """The two nights side by side: what, with the fence, without."""
    rows: list[tuple[str, Callable[[Books], str]]] = [
        ("invoices charged exactly once", lambda books: f"{books.charged_once} of {books.invoices}"),
        ("invoices charged twice", lambda books: str(books.charged_again)),
        ("money taken too much", lambda books: f"{books.cents_too_much / 100:.2f}"),
        ("accounts with a wrong balance", lambda books: str(books.wrong_balances)),
        ("newer result overwritten by an older run", lambda books: str(books.stale_overwrites)),
        ("late UPDATEs refused", lambda books: str(books.refused)),
        ("raw SQL writes refused", lambda books: f"{books.raw_refused} of {books.raw_writes}"),
        ("messages lost", lambda books: f"{books.messages_lost} of {books.messages}"),
    ]
    return [(name, number(fenced), number(unfenced)) for name, number in rows]
