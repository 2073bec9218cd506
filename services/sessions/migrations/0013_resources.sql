-- Sessions by what is attached to them, for those that have anything attached.
CREATE INDEX sessions_by_resource ON sessions USING gin ((resources::jsonb) jsonb_path_ops) WHERE resources <> '[]';
