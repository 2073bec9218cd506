-- What a session spent, by model: a JSON array of [model, input tokens, output tokens, cache reads, 5m cache writes,
-- 1h cache writes, picodollars at list price as text or null]. Exact, since prices may have six decimals.
ALTER TABLE sessions ADD COLUMN spend text NOT NULL DEFAULT '[]';

-- What was spent before this was counted can't be told by model, so it has no list price.
UPDATE sessions
SET spend = json_build_array(json_build_array(
        'unknown', input_tokens, output_tokens, cache_read_input_tokens, cache_creation_5m_input_tokens,
        cache_creation_1h_input_tokens, NULL
    ))::text,
    version = version + 1
WHERE input_tokens + output_tokens + cache_read_input_tokens
      + cache_creation_5m_input_tokens + cache_creation_1h_input_tokens > 0;
