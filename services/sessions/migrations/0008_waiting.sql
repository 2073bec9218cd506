-- Since when a session waits for answers; null while it doesn't. What was parked before this
-- column was there counts from the idle event that followed its last start.
ALTER TABLE sessions ADD COLUMN parked_at timestamptz;

UPDATE sessions s
SET parked_at = coalesce(
        (
            SELECT min(idle.created_at) FROM events idle
            WHERE idle.session_id = s.id AND idle.type = 'session.status_idle'
              AND idle.seq > (
                  SELECT max(running.seq) FROM events running
                  WHERE running.session_id = s.id AND running.type = 'session.status_running'
              )
        ),
        s.updated_at
    ),
    version = version + 1
WHERE s.status = 'requires_action';

CREATE INDEX sessions_parked ON sessions (workspace_id, parked_at, id) WHERE parked_at IS NOT NULL;

-- What became of each steer, by the id that its sender gave it: a repeat gets the same receipt.
CREATE TABLE steers (
    workspace_id text NOT NULL,
    session_id text NOT NULL,
    input_id text NOT NULL,
    steer_text text NOT NULL,
    state text NOT NULL,
    turn_id text NOT NULL,
    CONSTRAINT steers_pk PRIMARY KEY (session_id, input_id),
    CONSTRAINT steers_state_known CHECK (state IN ('pending', 'delivered', 'rejected', 'outcome_unknown'))
);
