-- JSON object with the options of the engine that a session is frozen on, null for one
-- without. Headers in it name credentials as ${NAME}; there are no secrets in it.
ALTER TABLE sessions ADD COLUMN loop_engine_options text;
