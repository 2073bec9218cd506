-- A session keeps the backend that its environment meant when it was made, and takes no
-- work once the environment means none. What the environment declares now is copied to its
-- sessions with the change itself, whoever makes it: a session's lock then shows it without
-- another read, and the new version makes every replica read the row again that writes by
-- what it remembers.
ALTER TABLE sessions ADD COLUMN environment_now text;

CREATE FUNCTION tell_sessions_of_environment() RETURNS trigger
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    UPDATE sessions SET environment_now = NEW.config, version = version + 1
    WHERE id IN (
        SELECT id FROM sessions
        WHERE workspace_id = NEW.workspace_id AND environment_id = NEW.id AND deleted_at IS NULL
        ORDER BY id FOR NO KEY UPDATE
    );
    RETURN NULL;
END
$$;

CREATE TRIGGER environments_tell_sessions
AFTER UPDATE OF config ON environments
FOR EACH ROW WHEN (OLD.config IS DISTINCT FROM NEW.config)
EXECUTE FUNCTION tell_sessions_of_environment();

UPDATE sessions SET environment_now = e.config
FROM environments e
WHERE e.workspace_id = sessions.workspace_id AND e.id = sessions.environment_id
  AND e.updated_at > sessions.created_at AND sessions.deleted_at IS NULL;
