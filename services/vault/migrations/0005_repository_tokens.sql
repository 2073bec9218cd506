-- Tokens of repositories that are attached to sessions, sealed.
CREATE TABLE repository_tokens (
    workspace_id text NOT NULL,
    -- The resource of the session.
    id           text NOT NULL,
    session_id   text NOT NULL,
    sealed       bytea NOT NULL,
    put_at       timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT repository_tokens_pk PRIMARY KEY (workspace_id, id)
);

CREATE INDEX repository_tokens_by_id ON repository_tokens (id);
