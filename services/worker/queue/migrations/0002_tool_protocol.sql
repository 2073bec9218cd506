-- The column was never filled. json keeps the bytes of the caller as they are, escapes that jsonb refuses among them.
ALTER TABLE work_items
    ALTER COLUMN payload TYPE json USING payload::json,
    ALTER COLUMN result TYPE json USING result::json,
    -- Grows with every write: whoever decides by what it remembers names the revision that it remembers.
    ADD COLUMN revision bigint NOT NULL DEFAULT 0,
    ADD COLUMN claimed_at timestamptz,
    ADD COLUMN accepted_at timestamptz,
    -- The session ended, or stopped its work. What a worker runs may end with a result all the same.
    ADD COLUMN stopped_at timestamptz,
    -- The replica on which somebody waits for the end.
    ADD COLUMN waiter text NOT NULL DEFAULT '',
    -- Until when it may be without a worker, and until when somebody waits for its end.
    ADD COLUMN queue_until timestamptz,
    ADD COLUMN wait_until timestamptz,
    -- Why it ended without a result.
    ADD COLUMN end_code text CHECK (end_code IN ('work_queue_timeout', 'work_outcome_unknown', 'work_lease_lost')),
    DROP CONSTRAINT work_items_status_check,
    ADD CONSTRAINT work_items_status_check
        CHECK (status IN ('pending', 'claimed', 'completed', 'failed', 'stopped')),
    -- The last holder is kept, so that it can be told that its report has arrived.
    DROP CONSTRAINT work_items_lease,
    ADD CONSTRAINT work_items_lease CHECK (
        CASE status
            WHEN 'pending' THEN lease_holder IS NULL AND lease_expires_at IS NULL
            WHEN 'claimed' THEN lease_holder IS NOT NULL AND lease_expires_at IS NOT NULL
            ELSE true
        END
    ),
    DROP CONSTRAINT work_items_finished,
    ADD CONSTRAINT work_items_finished
        CHECK ((status IN ('completed', 'failed', 'stopped')) = (finished_at IS NOT NULL)),
    -- A queue is mostly rows that are no longer of interest.
    SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, fillfactor = 80);

DROP INDEX work_items_by_environment;
-- Listings and counts.
CREATE INDEX work_items_by_time ON work_items (workspace_id, environment_id, created_at DESC, id DESC);
-- What can be claimed: the sessions of an environment one after another, and the items of each in their order.
CREATE INDEX work_items_pending ON work_items (workspace_id, environment_id, session_id, created_at, id)
    WHERE status = 'pending' AND kind <> 'session';
-- What a session stops.
CREATE INDEX work_items_live ON work_items (session_id) WHERE finished_at IS NULL;
-- Claims that nobody accepted, by when they lapse.
CREATE INDEX work_items_unaccepted ON work_items (lease_expires_at)
    WHERE status = 'claimed' AND accepted_at IS NULL AND kind <> 'session';
-- Items that somebody waits for, by when the wait is over.
CREATE INDEX work_items_awaited ON work_items (wait_until) WHERE finished_at IS NULL AND kind <> 'session';
-- Items that are kept for a while yet.
CREATE INDEX work_items_finished_at ON work_items (finished_at) WHERE finished_at IS NOT NULL;

-- Sessions that have ended: what is put in for one of them is never handed out.
CREATE TABLE ended_sessions (
    session_id   text PRIMARY KEY,
    workspace_id text NOT NULL,
    ended_at     timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ended_sessions_by_time ON ended_sessions (ended_at);

-- What this service has read of the sessions' log.
CREATE TABLE processed_messages (
    consumer     text NOT NULL,
    message_id   text NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, message_id)
);
CREATE INDEX processed_messages_by_time ON processed_messages (processed_at);
