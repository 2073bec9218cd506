-- Counts the moves of a session, so that a replica that has seen the last one can write the
-- next one in a single statement, without reading the row first.
ALTER TABLE sessions ADD COLUMN version bigint NOT NULL DEFAULT 0;
