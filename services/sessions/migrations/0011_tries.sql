-- Which request made the answer, by an id that grows with time: a repeat of a later request
-- is not answered by what an earlier one with the same content was told.
ALTER TABLE idempotency ADD COLUMN try_id text NOT NULL DEFAULT '';
