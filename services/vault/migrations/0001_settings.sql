-- One row that only the right master key opens: a wrong key is noticed at start,
-- before anything is written with it.
CREATE TABLE master_key_checks (
    id         smallint PRIMARY KEY CHECK (id = 1),
    sealed     bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE settings (
    workspace_id text PRIMARY KEY,
    revision     bigint NOT NULL CHECK (revision > 0),
    document     jsonb NOT NULL,
    -- JSON object of the secrets, sealed for `settings:<workspace_id>`.
    secrets      bytea NOT NULL,
    updated_at   timestamptz NOT NULL DEFAULT now()
);
