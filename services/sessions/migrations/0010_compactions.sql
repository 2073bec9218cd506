-- Where contexts begin: a session that was compacted is read from its newest compaction on.
CREATE INDEX events_compacted ON events (session_id, seq) WHERE type = 'agent.thread_context_compacted';
