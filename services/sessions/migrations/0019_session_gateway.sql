-- Sessions that were begun at the session gateway, their runs, and which version of an agent it runs.

-- Whether what the model says goes into the log in parts while it speaks: whoever follows such a
-- session is shown nothing that a crash could take back.
ALTER TABLE sessions ADD COLUMN text_parts boolean NOT NULL DEFAULT false;

-- Agents without a row run their newest version.
CREATE TABLE agent_publications (
    workspace_id text NOT NULL,
    agent_id text NOT NULL,
    version integer NOT NULL,
    published_at timestamptz NOT NULL,
    published_by text NOT NULL,
    CONSTRAINT agent_publications_pk PRIMARY KEY (workspace_id, agent_id)
);

CREATE TABLE gateway_sessions (
    workspace_id text NOT NULL,
    session_id text NOT NULL,
    agent_id text NOT NULL,
    preview boolean NOT NULL,
    -- Who made it; nobody else gets to see it there.
    owner text NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT gateway_sessions_pk PRIMARY KEY (workspace_id, session_id)
);

-- Written with the message that starts the run, and never again.
CREATE TABLE gateway_runs (
    workspace_id text NOT NULL,
    run_id text NOT NULL,
    session_id text NOT NULL,
    -- Seq of the message.
    first_seq bigint NOT NULL,
    agent_version integer NOT NULL,
    -- JSON object: everything that decided how the run went.
    configuration text NOT NULL,
    trace_id text NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT gateway_runs_pk PRIMARY KEY (workspace_id, run_id)
);

-- Tickets that were spent, until nobody could spend them anyway.
CREATE TABLE gateway_tickets (
    workspace_id text NOT NULL,
    ticket_id text NOT NULL,
    expires_at timestamptz NOT NULL,
    CONSTRAINT gateway_tickets_pk PRIMARY KEY (workspace_id, ticket_id)
);
CREATE INDEX gateway_tickets_by_expiry ON gateway_tickets (expires_at);
