CREATE TABLE work_items (
    id               text PRIMARY KEY,
    workspace_id     text NOT NULL,
    environment_id   text NOT NULL,
    session_id       text NOT NULL,
    kind             text NOT NULL CHECK (kind IN ('exec', 'read', 'write', 'list', 'session')),
    payload          jsonb NOT NULL,
    status           text NOT NULL CHECK (status IN ('pending', 'claimed', 'completed', 'failed')),
    lease_holder     text,
    lease_epoch      bigint NOT NULL DEFAULT 0,
    lease_expires_at timestamptz,
    attempt          integer NOT NULL DEFAULT 0,
    result           jsonb,
    created_at       timestamptz NOT NULL DEFAULT now(),
    finished_at      timestamptz,
    CONSTRAINT work_items_lease CHECK ((status = 'claimed') = (lease_holder IS NOT NULL)),
    CONSTRAINT work_items_finished CHECK ((status IN ('completed', 'failed')) = (finished_at IS NOT NULL))
);

CREATE INDEX work_items_by_environment ON work_items (workspace_id, environment_id, status);
