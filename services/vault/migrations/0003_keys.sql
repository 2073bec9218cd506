-- Who may come in. Secrets are not here, only their SHA-256: a copy of these rows opens nothing.

-- Grows with every key that is made, deleted or revoked, in the same transaction. Its lock also
-- puts these writes in a row, so that what must hold over all keys can be checked by each.
CREATE TABLE key_generation (
    id         smallint PRIMARY KEY CHECK (id = 1),
    generation bigint NOT NULL
);

INSERT INTO key_generation (id, generation) VALUES (1, 0);

CREATE TABLE api_keys (
    workspace_id text NOT NULL,
    id           text NOT NULL CONSTRAINT api_keys_pk PRIMARY KEY,
    name         text NOT NULL,
    role         text NOT NULL CONSTRAINT api_keys_role_known CHECK (role IN ('admin', 'member', 'read_only')),
    owner_name   text NOT NULL DEFAULT '',
    key_prefix   text NOT NULL,
    sha256       bytea NOT NULL CONSTRAINT api_keys_digest_once UNIQUE,
    created_at   timestamptz NOT NULL,
    last_used_at timestamptz,
    CONSTRAINT api_keys_digest_is_whole CHECK (length(sha256) = 32)
);

CREATE INDEX api_keys_by_workspace ON api_keys (workspace_id, id);

CREATE TABLE worker_keys (
    workspace_id   text NOT NULL,
    environment_id text NOT NULL,
    id             text NOT NULL CONSTRAINT worker_keys_pk PRIMARY KEY,
    name           text NOT NULL,
    -- JSON object.
    metadata       text NOT NULL DEFAULT '{}',
    key_prefix     text NOT NULL,
    sha256         bytea NOT NULL CONSTRAINT worker_keys_digest_once UNIQUE,
    created_at     timestamptz NOT NULL,
    updated_at     timestamptz NOT NULL,
    expires_at     timestamptz,
    last_seen_at   timestamptz,
    revoked_at     timestamptz,
    CONSTRAINT worker_keys_digest_is_whole CHECK (length(sha256) = 32)
);

CREATE INDEX worker_keys_by_environment ON worker_keys (workspace_id, environment_id, id);
