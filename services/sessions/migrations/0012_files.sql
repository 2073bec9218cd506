-- Files of a workspace: uploads, what sessions delivered, artifacts, and copies that sessions
-- mount. The bytes lie in the blob store under sha256, shared by every row that names it.
CREATE TABLE files (
    workspace_id text NOT NULL,
    id text NOT NULL,
    purpose text NOT NULL,
    name text NOT NULL,
    media_type text NOT NULL,
    size_bytes bigint NOT NULL,
    sha256 text NOT NULL,
    downloadable boolean NOT NULL DEFAULT true,
    -- Empty for an upload.
    session_id text NOT NULL DEFAULT '',
    -- What names the file within its session and purpose; empty where nothing does.
    path text NOT NULL DEFAULT '',
    -- The beginning of a text; null where the bytes are none.
    preview text,
    preview_truncated boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    expires_at timestamptz,
    archived_at timestamptz,
    -- Since when the row counts for nothing in the blob store: it was archived or has expired.
    bytes_removed_at timestamptz,
    CONSTRAINT files_pk PRIMARY KEY (workspace_id, id),
    CONSTRAINT files_purpose_known CHECK (purpose IN ('upload', 'output', 'artifact', 'mount')),
    CONSTRAINT files_have_a_size CHECK (size_bytes >= 0),
    CONSTRAINT files_sha256_is_one CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    CONSTRAINT files_scope_fits CHECK ((purpose = 'upload') = (session_id = ''))
);

-- One file per path: a second pass over the same outputs refreshes rows and makes none.
CREATE UNIQUE INDEX files_by_path ON files (workspace_id, session_id, purpose, path)
    WHERE path <> '' AND archived_at IS NULL;

CREATE INDEX files_by_creation ON files (workspace_id, created_at, id)
    WHERE archived_at IS NULL AND purpose <> 'artifact';

CREATE INDEX files_by_session ON files (workspace_id, session_id, created_at, id)
    WHERE archived_at IS NULL AND session_id <> '';

-- For the sweep: which blobs are named, and which rows let go of theirs.
CREATE INDEX files_by_sha256 ON files (sha256) WHERE bytes_removed_at IS NULL;

CREATE INDEX files_that_expire ON files (expires_at) WHERE expires_at IS NOT NULL AND bytes_removed_at IS NULL;
