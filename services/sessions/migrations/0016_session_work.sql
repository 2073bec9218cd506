-- Sessions whose tools are run by workers of their environment: the worker protocol `session`.
ALTER TABLE sessions ADD COLUMN on_worker boolean NOT NULL DEFAULT false;
