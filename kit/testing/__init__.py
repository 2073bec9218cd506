"""What tests build on: real servers, fresh databases, waiting for a condition. Nothing else may import it.

Fixtures of every test (tests/conftest.py, from `kit.testing.fixtures`):

    postgres             DSN of a real PostgreSQL, one for the whole run (superuser)
    nats_url             URL of a real NATS with JetStream, one for the whole run
    nats                 a connection to it (kit.nats.Nats)
    make_database        dsn = await make_database("sessions", folder): an empty, migrated database, reached by the
                         service's own role; emptied for another test afterwards
    swept_databases      async with swept_databases.database("sessions", folder) as dsn: the same for a block
    clock                a clock that the test moves
"""

from kit.testing.clock import FixedClock
from kit.testing.waiting import await_until, free_port

__all__ = ["FixedClock", "await_until", "free_port"]
