-- Stores of text that outlive sessions. `revision` counts the changes of a store's memories;
-- whoever changes one holds the lock of the store's row, so numbers and counts have no gaps.
CREATE TABLE memory_stores (
    workspace_id text NOT NULL,
    id text NOT NULL,
    name text NOT NULL,
    description text NOT NULL DEFAULT '',
    metadata text NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    archived_at timestamptz,
    revision bigint NOT NULL DEFAULT 0,
    memory_count integer NOT NULL DEFAULT 0,
    CONSTRAINT memory_stores_pk PRIMARY KEY (workspace_id, id),
    CONSTRAINT memory_stores_count CHECK (memory_count BETWEEN 0 AND 10000)
);
CREATE INDEX memory_stores_newest ON memory_stores (workspace_id, created_at DESC, id DESC);

-- A memory as it is now. Its text is that of its newest version: the two never differ, and
-- listings that show no text never read any.
CREATE TABLE memories (
    workspace_id text NOT NULL,
    store_id text NOT NULL,
    id text NOT NULL,
    version_id text NOT NULL,
    version integer NOT NULL,
    -- Ordered by its bytes, so that all below a folder stand together.
    path text COLLATE "C" NOT NULL,
    content_sha256 text NOT NULL,
    content_size integer NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    -- The store's revision at its newest change.
    revision bigint NOT NULL,
    CONSTRAINT memories_pk PRIMARY KEY (workspace_id, id),
    CONSTRAINT memories_path UNIQUE (workspace_id, store_id, path),
    CONSTRAINT memories_store FOREIGN KEY (workspace_id, store_id)
        REFERENCES memory_stores (workspace_id, id) ON DELETE CASCADE,
    CONSTRAINT memories_size CHECK (content_size BETWEEN 0 AND 102400),
    CONSTRAINT memories_path_form CHECK (path LIKE '/_%' AND path NOT LIKE '%/' AND octet_length(path) <= 1024)
);
CREATE INDEX memories_changes ON memories (workspace_id, store_id, revision);

-- Every change of a memory, kept as long as its store. Only a redaction touches a row again.
CREATE TABLE memory_versions (
    workspace_id text NOT NULL,
    store_id text NOT NULL,
    id text NOT NULL,
    memory_id text NOT NULL,
    version integer NOT NULL,
    operation text NOT NULL,
    path text,
    content text,
    content_sha256 text,
    content_size integer,
    actor_kind text NOT NULL,
    actor_id text NOT NULL,
    created_at timestamptz NOT NULL,
    redacted_at timestamptz,
    redacted_by_kind text NOT NULL DEFAULT '',
    redacted_by_id text NOT NULL DEFAULT '',
    revision bigint NOT NULL,
    CONSTRAINT memory_versions_pk PRIMARY KEY (workspace_id, id),
    CONSTRAINT memory_versions_number UNIQUE (workspace_id, store_id, memory_id, version),
    CONSTRAINT memory_versions_revision UNIQUE (workspace_id, store_id, revision),
    CONSTRAINT memory_versions_store FOREIGN KEY (workspace_id, store_id)
        REFERENCES memory_stores (workspace_id, id) ON DELETE CASCADE,
    CONSTRAINT memory_versions_operation CHECK (operation IN ('created', 'modified', 'deleted')),
    CONSTRAINT memory_versions_text CHECK (
        redacted_at IS NOT NULL
        OR (path IS NOT NULL AND (operation = 'deleted') = (content IS NULL)
            AND (content IS NULL) = (content_sha256 IS NULL) AND (content IS NULL) = (content_size IS NULL))
    )
);
CREATE INDEX memory_versions_actor ON memory_versions (workspace_id, store_id, actor_kind, actor_id, revision DESC);

-- The direct child of a folder that a path below it belongs to: the path itself, or a folder with its `/`.
CREATE FUNCTION child_of(path text, prefix text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN strpos(substr(path, length(prefix) + 1), '/') = 0 THEN path
    ELSE prefix || split_part(substr(path, length(prefix) + 1), '/', 1) || '/'
END;

-- The first path, in the order of bytes, that can belong to the next child: `0` is the character after `/`, and no
-- path holds a character below a space.
CREATE FUNCTION after_child(path text, prefix text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN strpos(substr(path, length(prefix) + 1), '/') = 0 THEN path || ' '
    ELSE prefix || split_part(substr(path, length(prefix) + 1), '/', 1) || '0'
END;
