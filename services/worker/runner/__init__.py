"""The runner: claims turns from the sessions service and runs the agent loop (models, tools, sandboxes).

Serves RunnerService. Calls TurnsService (sessions) and GetModelAccess (vault). Hears `runners.<runner_id>.signals`,
publishes `sessions.preview.<session_id>`. Owns nothing durable: whatever it knows is rebuilt from the log.
"""
