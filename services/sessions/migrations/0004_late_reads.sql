-- Where the log stood when a queued input was read: the seq of the first event that was
-- written with the reading. Null for everything else. A stream that resumes between the
-- two is shown the input as it looks now, before that event.
ALTER TABLE events ADD COLUMN read_seq bigint;

CREATE INDEX events_read_late ON events (session_id, read_seq) WHERE read_seq IS NOT NULL;
