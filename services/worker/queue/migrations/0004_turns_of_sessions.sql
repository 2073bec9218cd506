-- Whole sessions are handed out by when they came, or came back, so one that comes back again and again takes turns.
DROP INDEX work_items_sessions_queued;
CREATE INDEX work_items_sessions_queued ON work_items
    (workspace_id, environment_id, (greatest(created_at, available_at, polled_at)), id)
    WHERE kind = 'session' AND status = 'pending';
