-- The outcome that a session works towards: [id, seq, number, iteration, stage] as JSON, empty
-- where none was ever declared. What readers see is `outcome_evaluations`; it is only touched
-- by a move that changes it.
ALTER TABLE sessions ADD COLUMN outcome text NOT NULL DEFAULT '';

-- Puts changes into a session's list of evaluations, in their order. A change names its
-- outcome: what it says replaces what was said of that one, and a new outcome comes last.
CREATE FUNCTION merge_outcomes(stored text, changes jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    merged jsonb := stored;
    change jsonb;
BEGIN
    FOR change IN SELECT * FROM jsonb_array_elements(changes) LOOP
        IF merged -> -1 ->> 'outcome_id' = change ->> 'outcome_id' THEN
            merged := (merged - -1) || jsonb_build_array((merged -> -1) || change);
        ELSE
            merged := merged || jsonb_build_array(change);
        END IF;
    END LOOP;
    RETURN merged::text;
END
$$;

-- Definitions of quality checks, for `/v1/outcomes`.
CREATE TABLE outcomes (
    workspace_id text NOT NULL,
    id text NOT NULL,
    name text NOT NULL,
    description text,
    objective text NOT NULL DEFAULT '',
    -- JSON array of strings.
    criteria text NOT NULL DEFAULT '[]',
    pass_threshold double precision NOT NULL,
    metadata text NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    archived_at timestamptz,
    CONSTRAINT outcomes_pk PRIMARY KEY (workspace_id, id),
    CONSTRAINT outcomes_threshold_is_a_share CHECK (pass_threshold BETWEEN 0 AND 1)
);

CREATE INDEX outcomes_by_creation ON outcomes (workspace_id, created_at, id);

-- What a session was found to be by such a check.
CREATE TABLE session_outcomes (
    workspace_id text NOT NULL,
    id text NOT NULL,
    session_id text NOT NULL,
    outcome_id text NOT NULL,
    status text NOT NULL,
    score double precision,
    summary text,
    -- `caller` for a recorded one, `transcript` for the built-in evaluator.
    evaluator text NOT NULL,
    -- JSON array of {criterion, matched}; empty for a recorded one.
    criteria text NOT NULL DEFAULT '[]',
    metadata text NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL,
    CONSTRAINT session_outcomes_pk PRIMARY KEY (workspace_id, id),
    CONSTRAINT session_outcomes_status_known CHECK (status IN ('passed', 'inconclusive', 'failed')),
    CONSTRAINT session_outcomes_score_is_a_share CHECK (score BETWEEN 0 AND 1)
);

CREATE INDEX session_outcomes_by_creation ON session_outcomes (workspace_id, session_id, created_at, id);
