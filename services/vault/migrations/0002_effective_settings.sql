-- The last document that was found sound, beside the saved one: where a row of `settings`
-- is damaged from outside, this one stays in effect until a sound one is saved.
CREATE TABLE effective_settings (
    workspace_id text PRIMARY KEY,
    revision     bigint NOT NULL CHECK (revision > 0),
    document     jsonb NOT NULL,
    -- Sealed for `settings:<workspace_id>`, as in `settings`.
    secrets      bytea NOT NULL,
    updated_at   timestamptz NOT NULL DEFAULT now()
);

INSERT INTO effective_settings (workspace_id, revision, document, secrets)
SELECT workspace_id, revision, document, secrets FROM settings;
