-- Items of the session protocol (kind `session`): one for each session that a worker is needed for. Their states are
-- told by these columns and the common ones: queued is `pending`, stopped is `stopped`, and what is `claimed` is
-- starting until its first heartbeat, active from then on, and stopping once it was asked to stop.
ALTER TABLE work_items
    ADD COLUMN metadata text NOT NULL DEFAULT '{}',
    -- Not handed out before.
    ADD COLUMN available_at timestamptz,
    -- The current attempt: when a poll was answered with it, to whom, and the digest of the token that went with it.
    ADD COLUMN polled_at timestamptz,
    ADD COLUMN polled_by text NOT NULL DEFAULT '',
    ADD COLUMN token_sha256 bytea,
    ADD COLUMN acknowledged_at timestamptz,
    ADD COLUMN started_at timestamptz,
    ADD COLUMN heartbeat_at timestamptz,
    -- The heartbeat before, and whether the newest one repeated it: its answer may have been lost, once.
    ADD COLUMN previous_heartbeat_at timestamptz,
    ADD COLUMN heartbeat_repeated boolean NOT NULL DEFAULT false,
    ADD COLUMN ttl_seconds integer NOT NULL DEFAULT 0,
    -- The token of the attempt before: its holder may be told that it holds nothing any more.
    ADD COLUMN lost_token_sha256 bytea,
    ADD COLUMN stop_requested_at timestamptz,
    -- Of the newest word of the sessions service that counted.
    ADD COLUMN duty_seq bigint NOT NULL DEFAULT 0,
    -- The call that waited for a worker when the item was made, and how many items in a row left it waiting.
    ADD COLUMN waiting_call_id text NOT NULL DEFAULT '',
    ADD COLUMN fruitless integer NOT NULL DEFAULT 0,
    -- Calls that its worker may have begun have to be settled before anybody gets the session again.
    ADD COLUMN settle_due boolean NOT NULL DEFAULT false,
    -- It ended, and whether another item is needed has to be asked.
    ADD COLUMN follow_up_due boolean NOT NULL DEFAULT false;

CREATE UNIQUE INDEX work_items_one_of_session ON work_items (session_id)
    WHERE kind = 'session' AND finished_at IS NULL;
CREATE INDEX work_items_sessions_queued ON work_items (workspace_id, environment_id, created_at, id)
    WHERE kind = 'session' AND status = 'pending';
CREATE INDEX work_items_sessions_held ON work_items (lease_expires_at) WHERE kind = 'session' AND status = 'claimed';
CREATE INDEX work_items_sessions_due ON work_items (id) WHERE settle_due OR follow_up_due;
CREATE INDEX work_items_by_token ON work_items (token_sha256) WHERE token_sha256 IS NOT NULL;
CREATE INDEX work_items_by_lost_token ON work_items (lost_token_sha256) WHERE lost_token_sha256 IS NOT NULL;

-- Workers that name themselves when they poll, and when they did last; written now and then.
CREATE TABLE polling_workers (
    workspace_id   text NOT NULL,
    environment_id text NOT NULL,
    worker_id      text NOT NULL,
    polled_at      timestamptz NOT NULL,
    PRIMARY KEY (workspace_id, environment_id, worker_id)
);
CREATE INDEX polling_workers_by_time ON polling_workers (polled_at);
