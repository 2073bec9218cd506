-- Skills and their versions; the packages lie in the store of blobs, named by their hash. And how often
-- sessions used the web, which their usage tells.

CREATE TABLE skills (
    workspace_id text NOT NULL,
    id text NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    -- The slug of every package of the skill, and the folder under which sessions find it.
    name text NOT NULL,
    display_name text NOT NULL,
    CONSTRAINT skills_pk PRIMARY KEY (workspace_id, id),
    CONSTRAINT skills_name_unique UNIQUE (workspace_id, name)
);

CREATE INDEX skills_by_creation ON skills (workspace_id, created_at, id);

CREATE TABLE skill_versions (
    workspace_id text NOT NULL,
    id text NOT NULL,
    skill_id text NOT NULL,
    created_at timestamptz NOT NULL,
    -- Microseconds since 1970, by which older clients name a version; grows within a skill.
    version bigint NOT NULL,
    description text NOT NULL,
    sha256 text NOT NULL,
    size_bytes bigint NOT NULL,
    CONSTRAINT skill_versions_pk PRIMARY KEY (workspace_id, id),
    CONSTRAINT skill_versions_of_skill FOREIGN KEY (workspace_id, skill_id)
        REFERENCES skills (workspace_id, id) ON DELETE CASCADE,
    CONSTRAINT skill_versions_version_unique UNIQUE (workspace_id, skill_id, version)
);

-- The sweep of blobs asks whether anybody names one.
CREATE INDEX skill_versions_by_blob ON skill_versions (sha256);

ALTER TABLE sessions ADD COLUMN web_search_requests bigint NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN web_fetch_requests bigint NOT NULL DEFAULT 0;
