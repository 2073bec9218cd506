"""Messages that leave if, and only if, the transaction that wrote them commits.

    async with database.transaction(workspace_id) as tx:
        …
        await outbox.add(tx, message_id=event_id, subject=f"sessions.log.{session_id}", payload=message)
    relay.wake()

`add` writes a row; a Relay (`kit.relay`) publishes it to JetStream and deletes it. A consumer may see a message again,
always with the same id. A service copies OUTBOX_DDL into a migration of its own.
"""

from typing import LiteralString

from psycopg.types.json import Jsonb

from kit.errors import Internal
from kit.postgres import Tx
from kit.relay import Relay
from kit.telemetry import inject

__all__ = ["LARGEST_PAYLOAD", "OUTBOX_DDL", "PROCESSED_MESSAGES_DDL", "Relay", "add"]

OUTBOX_DDL: LiteralString = """
CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    workspace_id text NOT NULL,
    message_id text NOT NULL CONSTRAINT outbox_message_id_unique UNIQUE,
    subject text NOT NULL,
    payload bytea NOT NULL,
    headers jsonb,
    created_at timestamptz NOT NULL DEFAULT now()
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
"""

PROCESSED_MESSAGES_DDL: LiteralString = """
CREATE TABLE processed_messages (
    consumer text NOT NULL,
    message_id text NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, message_id)
);
CREATE INDEX processed_messages_by_time ON processed_messages (processed_at);
"""

# NATS takes 1 MB by default, headers included. A larger row would stop the relay for good, so it never gets in.
LARGEST_PAYLOAD = 900_000

_ADD: LiteralString = """
INSERT INTO outbox (workspace_id, message_id, subject, payload, headers)
VALUES (%(workspace_id)s, %(message_id)s, %(subject)s, %(payload)s, %(headers)s)
"""


async def add(tx: Tx, *, message_id: str, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> None:
    """Write a message that is sent after the commit. The id must be the same in a repeated attempt."""
    if len(payload) > LARGEST_PAYLOAD:
        raise Internal(f"A message of {len(payload)} bytes can't be sent; the limit is {LARGEST_PAYLOAD}.")
    headers = inject(dict(headers) if headers else {})
    await tx.execute(
        _ADD,
        {
            "message_id": message_id,
            "subject": subject,
            "payload": payload,
            "headers": Jsonb(headers) if headers else None,
        },
    )
