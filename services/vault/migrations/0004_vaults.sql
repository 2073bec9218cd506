CREATE TABLE vaults (
    workspace_id text NOT NULL,
    id           text NOT NULL,
    display_name text NOT NULL CHECK (char_length(display_name) BETWEEN 1 AND 255),
    -- JSON object of string pairs.
    metadata     text NOT NULL,
    created_at   timestamptz NOT NULL,
    updated_at   timestamptz NOT NULL,
    archived_at  timestamptz,
    CONSTRAINT vaults_pk PRIMARY KEY (workspace_id, id)
);

CREATE INDEX vaults_by_creation ON vaults (workspace_id, created_at, id);

CREATE TABLE credentials (
    workspace_id   text NOT NULL,
    id             text NOT NULL,
    vault_id       text NOT NULL,
    display_name   text CHECK (char_length(display_name) BETWEEN 1 AND 255),
    type           text NOT NULL CHECK (type IN ('mcp_oauth', 'static_bearer', 'environment_variable')),
    -- The MCP server's URL, or the variable's name; never changes.
    key            text NOT NULL,
    -- JSON of the policy; null or unreadable allows nothing.
    networking     text,
    in_header      boolean NOT NULL,
    in_body        boolean NOT NULL,
    expires_at     timestamptz,
    -- JSON: how a token is renewed, without secrets.
    refresh        text,
    metadata       text NOT NULL,
    -- The secrets, sealed for workspace, vault, id, type and key; erased when it is archived.
    sealed         bytea,
    value_hint     text NOT NULL,
    secret_version bigint NOT NULL CHECK (secret_version > 0),
    last_used_at   timestamptz,
    rotated_at     timestamptz,
    created_at     timestamptz NOT NULL,
    updated_at     timestamptz NOT NULL,
    archived_at    timestamptz,
    -- Who renews the token now, and until when nobody else may.
    refresh_holder text,
    refresh_until  timestamptz,
    -- When the last attempt failed, and since which one it does.
    refresh_failed_at timestamptz,
    refresh_failed_since timestamptz,
    CONSTRAINT credentials_pk PRIMARY KEY (workspace_id, id),
    CONSTRAINT credentials_vault FOREIGN KEY (workspace_id, vault_id) REFERENCES vaults ON DELETE CASCADE,
    CONSTRAINT credentials_erased CHECK ((archived_at IS NULL) = (sealed IS NOT NULL)),
    CONSTRAINT credentials_lease CHECK ((refresh_holder IS NULL) = (refresh_until IS NULL))
);

CREATE UNIQUE INDEX credentials_live_key ON credentials (workspace_id, vault_id, key) WHERE archived_at IS NULL;
CREATE INDEX credentials_by_creation ON credentials (workspace_id, vault_id, created_at, id);

-- What happened to credentials; it outlives them, and ends with the vault.
CREATE TABLE credential_audit (
    workspace_id  text NOT NULL,
    id            text NOT NULL,
    vault_id      text NOT NULL,
    credential_id text NOT NULL,
    action        text NOT NULL CHECK (action IN (
        'created', 'updated', 'rotated', 'used', 'refreshed', 'refresh_failed', 'validated', 'runtime_denied',
        'archived', 'deleted'
    )),
    actor         text NOT NULL,
    session_id    text NOT NULL DEFAULT '',
    -- JSON object, never with a secret.
    metadata      text NOT NULL,
    created_at    timestamptz NOT NULL,
    CONSTRAINT credential_audit_pk PRIMARY KEY (workspace_id, id),
    CONSTRAINT credential_audit_vault FOREIGN KEY (workspace_id, vault_id) REFERENCES vaults ON DELETE CASCADE
);

CREATE INDEX credential_audit_by_vault ON credential_audit (workspace_id, vault_id, created_at, id);
CREATE INDEX credential_audit_by_credential ON credential_audit (workspace_id, credential_id, created_at, id);

-- Keys of the vault itself, sealed: nothing that stands in the database alone opens or forges anything.
CREATE TABLE sealed_keys (
    name       text PRIMARY KEY,
    sealed     bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE idempotency (
    workspace_id text NOT NULL,
    key text NOT NULL,
    fingerprint bytea NOT NULL,
    -- Null only inside the transaction that makes the answer.
    response bytea,
    expires_at timestamptz NOT NULL,
    -- Which request made the answer, by an id that grows with time.
    try_id text NOT NULL DEFAULT '',
    CONSTRAINT idempotency_pk PRIMARY KEY (workspace_id, key)
);
CREATE INDEX idempotency_by_expiry ON idempotency (expires_at);

CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    workspace_id text NOT NULL,
    message_id text NOT NULL CONSTRAINT outbox_message_id_unique UNIQUE,
    subject text NOT NULL,
    payload bytea NOT NULL,
    headers jsonb,
    created_at timestamptz NOT NULL DEFAULT now()
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
