"""Alembic's migrations with fence triggers: by hand, by autogenerate, back again, and as an SQL script."""

from __future__ import annotations

import io

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from bench.drivers import parameters
from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, create_engine, inspect

from celery_fence import StaleToken
from celery_fence.fencing.sqlalchemy.gate import gates_table
from celery_fence.fencing.sqlalchemy.trigger import fence_trigger
from celery_fence.fencing.trigger import FenceTrigger, trigger_refusals
from celery_fence.fencing.trigger.definition import find

each_database = pytest.mark.parametrize("name", parameters())

ENV = """
from alembic import context
from sqlalchemy import create_engine
import celery_fence.fencing.sqlalchemy.alembic

config = context.config
metadata = config.attributes["metadata"]
if context.is_offline_mode():
    context.configure(url=config.get_main_option("sqlalchemy.url"), target_metadata=metadata, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()
else:
    engine = create_engine(config.get_main_option("sqlalchemy.url"))
    with engine.connect() as connection:
        context.configure(connection=connection, target_metadata=metadata)
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()
"""

TEMPLATE = '''"""${message}"""

from alembic import op
import sqlalchemy as sa
${imports if imports else ""}

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade():
    ${upgrades if upgrades else "pass"}


def downgrade():
    ${downgrades if downgrades else "pass"}
'''


def tables(**trigger):
    """A metadata with fenced payouts and gates; no trigger where *trigger* is ``none=True``."""
    metadata = MetaData()
    payouts = Table(
        "payouts",
        metadata,
        Column("id", Integer, primary_key=True),
        Column("amount", Integer),
        Column("last_fencing_token", BigInteger, nullable=False, server_default="0"),
        Column("last_fencing_owner", String(64)),
    )
    if trigger != {"none": True}:
        fence_trigger(payouts, **trigger)
    gates_table(metadata)
    return metadata


class Project:
    """An Alembic project in a directory, for one database."""

    def __init__(self, database, directory):
        self.database = database
        self.directory = directory
        (directory / "versions").mkdir()
        (directory / "env.py").write_text(ENV)
        (directory / "script.py.mako").write_text(TEMPLATE)
        self.output = io.StringIO()
        self.config = Config(output_buffer=self.output)
        self.config.set_main_option("script_location", str(directory))
        self.config.set_main_option("sqlalchemy.url", database.url().replace("%", "%%"))

    def revise(self, metadata):
        """Autogenerate a revision, and answer its text."""
        self.config.attributes["metadata"] = metadata
        revision = command.revision(self.config, autogenerate=True)
        return (self.directory / "versions" / revision.path.rsplit("/", 1)[-1]).read_text()

    def upgrade(self, to="head"):
        command.upgrade(self.config, to)

    def downgrade(self, to="-1"):
        command.downgrade(self.config, to)

    def write(self, upgrade, downgrade):
        """A revision by hand."""
        heads = ScriptDirectory.from_config(self.config).get_heads()
        number = f"{len(list((self.directory / 'versions').glob('*.py'))):012}"
        (self.directory / "versions" / f"{number}_by_hand.py").write_text(
            f"from alembic import op\nimport sqlalchemy as sa\nrevision = {number!r}\n"
            f"down_revision = {heads[0] if heads else None!r}\n"
            f"def upgrade():\n    {upgrade}\ndef downgrade():\n    {downgrade}\n"
        )

    @property
    def triggers(self):
        rows = self.database.run(find(self.database.name).replace(":schema", "NULL"))
        return list(FenceTrigger.found(rows))


@pytest.fixture
def project(fresh_database, tmp_path, name):
    return Project(fresh_database(name), tmp_path)


def lines(text, function):
    """The operations in one function of a revision."""
    body = text.split(f"def {function}():")[1].split("\ndef ")[0]
    return [line.strip() for line in body.splitlines() if "fence_trigger" in line]


@each_database
def test_autogenerate_makes_table_gates_and_trigger_and_the_downgrade_takes_them_away(project):
    text = project.revise(tables(mode="shadow"))
    project.upgrade()

    assert lines(text, "upgrade") == ["op.create_fence_trigger('payouts', mode='shadow')"]
    assert lines(text, "downgrade") == ["op.drop_fence_trigger('payouts', mode='shadow')"]
    assert project.triggers == [FenceTrigger("payouts", mode="shadow")]

    project.downgrade()
    assert project.triggers == []
    engine = create_engine(project.database.url())
    assert inspect(engine).get_table_names() == ["alembic_version"]
    engine.dispose()


@each_database
def test_the_trigger_that_a_migration_made_refuses(project):
    project.revise(tables())
    project.upgrade()
    project.database.run("INSERT INTO payouts (id, last_fencing_token) VALUES (1, 5)")

    with pytest.raises(StaleToken), trigger_refusals():
        project.database.run("UPDATE payouts SET amount = 1, last_fencing_token = 4")


@each_database
def test_autogenerate_finds_nothing_to_do_where_all_is_as_declared(project):
    metadata = tables(unfenced="allow")
    project.revise(metadata)
    project.upgrade()

    again = project.revise(metadata)

    assert again.count("pass") == 2


@each_database
def test_autogenerate_replaces_a_trigger_that_is_to_be_another(project):
    project.revise(tables(mode="shadow"))
    project.upgrade()

    text = project.revise(tables(deletes="refuse"))
    project.upgrade()
    assert lines(text, "upgrade") == [
        "op.drop_fence_trigger('payouts', mode='shadow')",
        "op.create_fence_trigger('payouts', deletes='refuse')",
    ]
    assert project.triggers == [FenceTrigger("payouts", deletes="refuse")]

    project.downgrade()
    assert project.triggers == [FenceTrigger("payouts", mode="shadow")]


@each_database
def test_autogenerate_adds_a_trigger_to_a_table_that_is_there_and_drops_one_that_nobody_wants(project):
    project.revise(tables(none=True))
    project.upgrade()
    text = project.revise(tables())
    project.upgrade()
    assert lines(text, "upgrade") == ["op.create_fence_trigger('payouts')"]
    assert project.triggers == [FenceTrigger("payouts")]

    text = project.revise(tables(none=True))
    project.upgrade()
    assert lines(text, "upgrade") == ["op.drop_fence_trigger('payouts')"]
    assert project.triggers == []

    project.downgrade()
    assert project.triggers == [FenceTrigger("payouts")]
    project.downgrade()
    assert project.triggers == []


@each_database
def test_autogenerate_drops_trigger_and_table_together_and_makes_them_again(project):
    project.revise(tables())
    project.upgrade()

    project.revise(MetaData())
    project.upgrade()
    assert project.triggers == []

    project.downgrade()
    assert project.triggers == [FenceTrigger("payouts")]


@each_database
def test_operations_written_by_hand(project):
    project.revise(tables(none=True))
    project.write('op.create_fence_trigger("payouts", unfenced="allow")', 'op.drop_fence_trigger("payouts")')
    project.upgrade()
    assert project.triggers == [FenceTrigger("payouts", unfenced="allow")]

    project.downgrade()
    assert project.triggers == []


@each_database
def test_a_script_for_somebody_else_to_run(project):
    project.revise(tables())

    command.upgrade(project.config, "head", sql=True)

    assert "CREATE TRIGGER" in project.output.getvalue()
    assert project.triggers == []
