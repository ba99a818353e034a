"""The grants of docs/operate/roles.md, executed as printed: each role does its work, and nothing beyond it."""

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from holdfast.core.errors import PermissionDenied
from holdfast.interfaces.cli import main
from holdfast.ops.service import Operations
from holdfast.stores.postgres.store import PostgresStore
from tests.ops.role_work import control, operate, prepare_plan, produce, read, work
from tests.servers.postgres import PostgresServer
from tests.servers.tables import migrated

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "roles.md"
GRANTS = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
ROLES = ("producer", "controller", "worker", "reader", "operator")


@pytest.fixture(scope="module", params=["postgres16", "postgres18"])
def owner(request: pytest.FixtureRequest) -> Iterator[str]:
    """The owner's DSN of a database with the tables and the roles; a user for each role."""
    server: PostgresServer = request.getfixturevalue(request.param)
    dsn = migrated(server, "roles")
    with psycopg.connect(dsn, autocommit=True) as connection:
        for grants in GRANTS:
            connection.execute(grants)
        for role in ROLES:
            connection.execute(f"create role {role} login in role holdfast_{role}")
    yield dsn
    server.drop_database("roles")
    for role in ROLES:
        server.execute(f"drop role {role}")
        server.execute(f"drop role holdfast_{role}")


def as_role(owner: str, role: str) -> str:
    return owner.replace("postgres@", f"{role}@")


async def test_each_role_does_its_work(owner: str) -> None:
    with capture_logs() as logged:
        await produce(as_role(owner, "producer"))
        await control(as_role(owner, "controller"))
        await prepare_plan(owner)
        await work(as_role(owner, "worker"))
        await read(as_role(owner, "reader"))
        await operate(as_role(owner, "operator"))
    assert [one for one in logged if "permission denied" in str(one)] == []


FORBIDDEN = {
    "producer": (
        "update holdfast.delivery set status = 'delivered'",
        "delete from holdfast.delivery",
        "delete from holdfast.message",
        "insert into holdfast.audit (actor, action, kind, target) values ('a', 'b', 'c', 'd')",
        "select hash from holdfast.token",
        "select secret from holdfast.endpoint",
        "select actor from holdfast.audit",
        "update holdfast.plan set state = 'running'",
    ),
    "controller": (
        "delete from holdfast.delivery",
        "delete from holdfast.message",
        "update holdfast.audit set actor = 'b'",
        "select actor from holdfast.audit",
        "select secret from holdfast.endpoint",
        "update holdfast.plan set state = 'running'",
    ),
    "worker": (
        "select hash from holdfast.token",
        "update holdfast.message set payload = '{}'",
        "delete from holdfast.message",
        "update holdfast.audit set actor = 'b'",
        "delete from holdfast.audit",
        "update holdfast.endpoint set secret = 'x'",
        "truncate holdfast.delivery",
        "alter table holdfast.delivery add column a int",
    ),
    "reader": (
        "select secret from holdfast.endpoint",
        "select previous_secret from holdfast.endpoint",
        "select * from holdfast.endpoint",
        "update holdfast.token set scope = 'admin'",
        "insert into holdfast.token (id, name, scope, hash, prefix, created_by) values ('a', 'b', 'admin', 'c', 'd', 'e')",
        "update holdfast.delivery set status = 'delivered'",
        "insert into holdfast.audit (actor, action, kind, target) values ('a', 'b', 'c', 'd')",
        "select * from holdfast.outbox_replay('01a1de9e-3feb-7141-acf8-3a160ca18709', 1, 'a', 'b') for update",
        "delete from holdfast.worker",
    ),
    "operator": (
        "update holdfast.message set payload = '{}'",
        "delete from holdfast.message",
        "delete from holdfast.delivery",
        "update holdfast.audit set actor = 'b'",
        "delete from holdfast.audit",
        "delete from holdfast.token",
        "drop table holdfast.run",
        "update holdfast.schema_version set version = 0",
    ),
}


@pytest.mark.parametrize("role", ROLES)
def test_a_role_does_nothing_beyond_its_work(owner: str, role: str) -> None:
    with psycopg.connect(as_role(owner, role), autocommit=True) as connection:
        for statement in FORBIDDEN[role]:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


async def test_a_reader_recognises_tokens_without_recording_their_use(owner: str) -> None:
    ops, reader = Operations(PostgresStore(owner)), Operations(PostgresStore(as_role(owner, "reader")))
    made = await ops.create_token("hopper", scope="operate", actor="ada")
    found = await reader.recognise_token(made.secret)
    assert found is not None
    assert found.valid
    assert (await ops.tokens())[-1].last_used_at is None
    with pytest.raises(PermissionDenied, match="permission denied"):
        await reader.pause_queue("default", actor="grace", force=True)
    await ops.recognise_token(made.secret)
    assert (await ops.tokens())[-1].last_used_at is not None
    await ops.store.close()
    await reader.store.close()


def test_a_command_that_lacks_a_grant_is_refused_and_points_to_the_grants(owner: str) -> None:
    asked = ["--dsn", as_role(owner, "reader"), "queues", "pause", "default", "--force"]
    ended = CliRunner().invoke(main, asked, prog_name="holdfast")
    assert ended.exit_code == 4, ended.output
    assert "permission denied" in ended.stderr
    assert "docs/operate/roles.md" in ended.stderr


async def test_a_session_that_may_only_read_recognises_tokens(owner: str) -> None:
    ops = Operations(PostgresStore(owner))
    made = await ops.create_token("lovelace", scope="read", actor="ada")
    limited = Operations(PostgresStore(f"{owner}?options=-c%20default_transaction_read_only%3Don"))
    assert await limited.recognise_token(made.secret) is not None
    await ops.store.close()
    await limited.store.close()


def test_every_table_is_granted_to_a_role(owner: str) -> None:
    """A migration that adds a table says in the page who needs it."""
    with psycopg.connect(owner) as conn:
        found = conn.execute("select tablename from pg_tables where schemaname = 'holdfast'").fetchall()
    named = set(re.findall(r"holdfast\.(\w+)", "".join(GRANTS)))
    assert {name for (name,) in found} - named == set()
