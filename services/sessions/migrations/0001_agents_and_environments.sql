-- What sessions are made of: agents with their immutable versions, and environments.
--
-- Definitions are text, not jsonb: they are rendered once when saved, and every read
-- passes them through unchanged.

CREATE TABLE agents (
    workspace_id text NOT NULL,
    id text NOT NULL,
    created_at timestamptz NOT NULL,
    -- The newest version, repeated here so that reading an agent touches one row.
    version integer NOT NULL,
    updated_at timestamptz NOT NULL,
    document text NOT NULL,
    model text NOT NULL,
    model_id text NOT NULL,
    archived_at timestamptz,
    CONSTRAINT agents_pk PRIMARY KEY (workspace_id, id),
    CONSTRAINT agents_version_counts_from_one CHECK (version >= 1),
    CONSTRAINT agents_model_named CHECK (model_id <> '')
);

CREATE INDEX agents_by_creation ON agents (workspace_id, created_at, id);
CREATE INDEX agents_active_by_creation ON agents (workspace_id, created_at, id) WHERE archived_at IS NULL;

CREATE TABLE agent_versions (
    workspace_id text NOT NULL,
    agent_id text NOT NULL,
    version integer NOT NULL,
    created_at timestamptz NOT NULL,
    document text NOT NULL,
    model text NOT NULL,
    model_id text NOT NULL,
    CONSTRAINT agent_versions_pk PRIMARY KEY (workspace_id, agent_id, version),
    CONSTRAINT agent_versions_count_from_one CHECK (version >= 1)
);

CREATE TABLE environments (
    workspace_id text NOT NULL,
    -- `env_default` exists once in each workspace.
    id text NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    name text NOT NULL,
    description text,
    -- JSON object of string pairs.
    metadata text NOT NULL DEFAULT '{}',
    -- What was declared, as JSON. No type checks it: a record that can't be read any
    -- more is reported as such and can be repaired by an update.
    config text NOT NULL,
    scope text NOT NULL,
    archived_at timestamptz,
    CONSTRAINT environments_pk PRIMARY KEY (workspace_id, id),
    CONSTRAINT environments_scope_known CHECK (scope IN ('organization', 'account'))
);

CREATE INDEX environments_by_creation ON environments (workspace_id, created_at, id);
