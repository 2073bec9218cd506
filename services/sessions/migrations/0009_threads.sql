-- Threads beside a session's primary one. Each is a row of `sessions` under the thread's own
-- id, with a log and turns of its own, and belongs to the session that `root_id` names.
ALTER TABLE sessions
    ADD COLUMN root_id text,
    -- What a session knows of its threads, as services/sessions/domain/thread_state.py writes it.
    ADD COLUMN threads text NOT NULL DEFAULT '',
    -- A session runs on without a turn of its own while its threads do.
    DROP CONSTRAINT sessions_running_has_turn,
    ADD CONSTRAINT sessions_running_has_turn CHECK (
        (status IN ('running', 'rescheduling')) = (turn_state <> 'none') OR (status = 'running' AND threads <> '')
    );

CREATE INDEX sessions_threads ON sessions (root_id, created_at, id) WHERE root_id IS NOT NULL;

-- Listings show sessions alone.
CREATE INDEX sessions_listed ON sessions (workspace_id, created_at, id)
    WHERE deleted_at IS NULL AND root_id IS NULL;
CREATE INDEX sessions_listed_by_agent ON sessions (workspace_id, agent_id, created_at, id)
    WHERE deleted_at IS NULL AND root_id IS NULL;
DROP INDEX sessions_by_creation;
DROP INDEX sessions_by_agent;

-- Events of a thread that its session has not taken note of yet. Written with the event, and
-- removed in the transaction that carries it into the session.
CREATE TABLE thread_news (
    workspace_id text NOT NULL,
    root_id text NOT NULL,
    thread_id text NOT NULL,
    seq bigint NOT NULL,
    CONSTRAINT thread_news_pk PRIMARY KEY (root_id, thread_id, seq)
);
