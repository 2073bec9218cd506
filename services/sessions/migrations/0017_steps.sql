-- Conversations of the HTTP agent protocol. A caller's name for one may be longer than an index
-- entry can be, so it is found by its SHA-256; it names its session for ever, also after the
-- session has ended.
CREATE TABLE step_conversations (
    workspace_id text NOT NULL,
    agent_id text NOT NULL,
    digest bytea NOT NULL,
    name text NOT NULL,
    -- Empty only inside the transaction that makes the session.
    session_id text NOT NULL,
    -- The tools of the first step, canonical.
    tools text NOT NULL,
    -- The system prompt of the first step where the session runs by it.
    system text,
    created_at timestamptz NOT NULL,
    CONSTRAINT step_conversations_pk PRIMARY KEY (workspace_id, agent_id, digest)
);

-- Every step that was taken, written with the events that it brought. Its answer stands in the
-- session's log, from `first_seq` on.
CREATE TABLE steps (
    workspace_id text NOT NULL,
    session_id text NOT NULL,
    number integer NOT NULL,
    -- SHA-256 of what the step brings.
    fingerprint bytea NOT NULL,
    -- SHA-256 of the caller's own name for the step.
    key bytea,
    first_seq bigint NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT steps_pk PRIMARY KEY (workspace_id, session_id, number)
);
CREATE UNIQUE INDEX steps_by_key ON steps (workspace_id, session_id, key) WHERE key IS NOT NULL;
CREATE INDEX steps_by_fingerprint ON steps (workspace_id, session_id, fingerprint);
