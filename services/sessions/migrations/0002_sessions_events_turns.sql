-- Sessions, their event log, the turns that are under way, and what leaves with them.
--
-- A session's row is written at least twice in each turn. Its indexes hold only columns
-- that never change, so that those writes stay heap-only; what is searched by changing
-- values (turns that wait, leases that lapse) is a row of `turns`, there only as long as
-- the turn is.

CREATE TABLE sessions (
    workspace_id text NOT NULL,
    id text NOT NULL CONSTRAINT sessions_pk PRIMARY KEY,
    created_at timestamptz NOT NULL,

    -- What the session is made of. Rarely written; `revision` grows when it is.
    revision integer NOT NULL DEFAULT 1,
    agent_id text NOT NULL,
    agent_version integer NOT NULL,
    -- The agent as this session runs it, where it differs from its version: the JSON
    -- objects of Agent.document_json and Agent.model_json. Null: the version as saved.
    agent_document text,
    agent_model text,
    agent_name text NOT NULL,
    environment_id text NOT NULL,
    -- JSON object {hosting_type, sandbox_provider, network, packages}, as resolved when
    -- the session was made.
    environment text NOT NULL,
    title text,
    metadata text NOT NULL DEFAULT '{}',
    resources text NOT NULL DEFAULT '[]',
    vault_ids text NOT NULL DEFAULT '[]',
    loop_engine text NOT NULL DEFAULT 'builtin',
    deployment_id text NOT NULL DEFAULT '',
    -- JSON object, 'null' after a removal, null where there never was one.
    budget text,
    outcome_evaluations text NOT NULL DEFAULT '[]',
    thread_id text NOT NULL,
    archived_at timestamptz,
    deleted_at timestamptz,

    -- Where the session stands. Written under the row's lock by services/sessions/domain/turn.py.
    updated_at timestamptz NOT NULL,
    status text NOT NULL DEFAULT 'idle',
    -- Seq of the newest event; the log has no gap below it.
    last_seq bigint NOT NULL DEFAULT 0,
    -- Seq of the newest client event that shapes the model's context.
    input_seq bigint NOT NULL DEFAULT 0,
    -- Grows with every grant and whenever a grant is taken back: an older one can't write.
    turn_epoch bigint NOT NULL DEFAULT 0,
    turn_state text NOT NULL DEFAULT 'none',
    turn_attempt integer NOT NULL DEFAULT 0,
    -- The runner that holds the turn, or held the last one.
    turn_holder text NOT NULL DEFAULT '',
    -- Seq of a user.interrupt that the turn has not obeyed yet, else 0.
    interrupt_seq bigint NOT NULL DEFAULT 0,
    -- JSON array of [seq, starts_a_turn] of client inputs that no model request has read.
    unread text NOT NULL DEFAULT '[]',
    -- JSON array of the parked calls: [event_id, block_id, kind, answered].
    pending text NOT NULL DEFAULT '[]',
    -- JSON object {type, event_ids?} of the last idle, empty where none yet.
    stop_reason text NOT NULL DEFAULT '',
    input_tokens bigint NOT NULL DEFAULT 0,
    output_tokens bigint NOT NULL DEFAULT 0,
    cache_read_input_tokens bigint NOT NULL DEFAULT 0,
    cache_creation_5m_input_tokens bigint NOT NULL DEFAULT 0,
    cache_creation_1h_input_tokens bigint NOT NULL DEFAULT 0,
    active_seconds double precision NOT NULL DEFAULT 0,
    running_since timestamptz,
    traceparent text NOT NULL DEFAULT '',

    CONSTRAINT sessions_status_known
        CHECK (status IN ('idle', 'running', 'rescheduling', 'requires_action', 'terminated', 'timed_out')),
    CONSTRAINT sessions_turn_state_known CHECK (turn_state IN ('none', 'ready', 'leased')),
    CONSTRAINT sessions_running_has_turn
        CHECK ((status IN ('running', 'rescheduling')) = (turn_state <> 'none')),
    CONSTRAINT sessions_leased_has_holder CHECK (turn_state <> 'leased' OR turn_holder <> ''),
    CONSTRAINT sessions_activity_is_timed CHECK ((status = 'running') = (running_since IS NOT NULL))
) WITH (fillfactor = 60);

CREATE INDEX sessions_by_creation ON sessions (workspace_id, created_at, id) WHERE deleted_at IS NULL;
CREATE INDEX sessions_by_agent ON sessions (workspace_id, agent_id, created_at, id) WHERE deleted_at IS NULL;
CREATE INDEX sessions_by_environment ON sessions (environment_id);

CREATE TABLE events (
    workspace_id text NOT NULL,
    session_id text NOT NULL,
    seq bigint NOT NULL,
    id text NOT NULL,
    type text NOT NULL,
    -- Whether the event shapes the model's context; such events are read apart from the rest.
    in_context boolean NOT NULL,
    created_at timestamptz NOT NULL,
    -- The public JSON object. Text, not jsonb: it passes through as these bytes.
    body text NOT NULL,
    CONSTRAINT events_pk PRIMARY KEY (session_id, seq),
    CONSTRAINT events_id_once UNIQUE (id)
);

CREATE INDEX events_context ON events (session_id, seq) WHERE in_context;

-- One row for each turn that waits for a runner or is held by one. The state machine's
-- own copy is on the session's row, which is locked first; this one is what claims,
-- renewals and the sweep find their work by.
CREATE TABLE turns (
    workspace_id text NOT NULL,
    session_id text NOT NULL CONSTRAINT turns_pk PRIMARY KEY,
    epoch bigint NOT NULL,
    -- Empty while the turn waits.
    holder text NOT NULL,
    -- By the database's clock; null while the turn waits.
    expires_at timestamptz,
    ready_at timestamptz NOT NULL,
    CONSTRAINT turns_lease_has_end CHECK ((holder = '') = (expires_at IS NULL))
) WITH (
    fillfactor = 60,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 500
);

CREATE INDEX turns_waiting ON turns (ready_at) WHERE holder = '';

-- The first answer to a write that may come twice, kept in the transaction of its effect.
CREATE TABLE idempotency (
    workspace_id text NOT NULL,
    key text NOT NULL,
    fingerprint bytea NOT NULL,
    -- Null only inside the transaction that makes the answer.
    response bytea,
    expires_at timestamptz NOT NULL,
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

CREATE TABLE processed_messages (
    consumer text NOT NULL,
    message_id text NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, message_id)
);

CREATE INDEX processed_messages_by_time ON processed_messages (processed_at);
