"""
A small billing service, to see what celery-fence does.

Tenants have invoices, and a nightly run charges them (`schedule`, `tasks`). Money
is written to a ledger in a database (`models`, `ledger`). `python -m
example_app.demo` runs it all on this machine, freezes and kills workers in the
middle of charging, and counts in the ledger who was charged how often: first
with the fence, then without.
"""
