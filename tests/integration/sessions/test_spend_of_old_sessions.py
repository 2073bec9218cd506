"""Sessions from before costs were counted: what they spent can't be told by model, so they tell no list cost."""

import shutil
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kit.migrate import migrate
from services.sessions.domain.cost import read_spend
from services.sessions.domain.session_state import TokenUsage
from tests.integration.sessions.turn_driver import MIGRATIONS, WORKSPACE

pytestmark = pytest.mark.asyncio(loop_scope="package")

INSERT = """
INSERT INTO sessions (workspace_id, id, created_at, updated_at, agent_id, agent_version, agent_name, environment_id,
                      environment, thread_id, input_tokens, output_tokens, version)
VALUES (%(workspace_id)s, %(id)s, now(), now(), 'agent_1', 1, 'a', 'env_default', '{}', 'sthr_1', %(spent)s, 5, 3)
"""


async def test_what_was_spent_before_has_no_list_price(make_database: Any, tmp_path: Path) -> None:
    for path in sorted(MIGRATIONS.glob("*.sql")):
        if path.name < "0006":
            shutil.copy(path, tmp_path)
    dsn = await make_database("sessions", tmp_path)
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute("SET search_path TO sessions")
        await connection.execute(INSERT, {"workspace_id": WORKSPACE, "id": "sess_old", "spent": 7})
        await connection.execute(
            INSERT.replace("%(spent)s, 5", "0, 0"), {"workspace_id": WORKSPACE, "id": "sess_idle", "spent": 0}
        )

        await migrate(dsn, "sessions", MIGRATIONS)

        rows = await connection.execute("SELECT id, spend, version FROM sessions ORDER BY id")
        found = {row[0]: row[1:] for row in await rows.fetchall()}
    old = read_spend(found["sess_old"][0])
    assert (old.cents, old.models[0].usage) == (None, TokenUsage(7, 5))
    # Whoever remembers such a session reads it again before it writes.
    assert found["sess_old"][1] == 4
    assert read_spend(found["sess_idle"][0]).cents == 0
    assert found["sess_idle"][1] == 3
