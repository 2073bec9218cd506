"""Sessions that are frozen on an outside agent, and runners that may reach it."""

from contextlib import AbstractAsyncContextManager
from typing import Any

import orjson

from managed_agents.sessions.v1 import sessions_pb2
from services.worker.runner.app import Runner
from tests.integration.runner.harness import World
from tests.support.http_agent import HttpAgent


async def remote_session(platform: World, agent: HttpAgent, *tools: Any, **fields: Any) -> str:
    """A session whose turns the agent runs. `options` are the engine's, `session` fields of the request."""
    options, session = fields.pop("options", {}), fields.pop("session", {})
    definition = {"name": "tester", "model": "default", "system": "Be brief.", "tools": list(tools), **fields}
    body = {
        "agent": await platform.agent(definition),
        "environment_id": "env_default",
        "loop_engine": "http",
        "loop_engine_options": agent.options(**options),
        **session,
    }
    request = sessions_pb2.CreateSessionRequest(definition_json=orjson.dumps(body))
    return (await platform.clients.sessions.CreateSession(request)).session.id


def runner(platform: World, *arguments: Any, **options: Any) -> AbstractAsyncContextManager[Runner]:
    """A runner whose operator lets it reach the agents of tests."""
    return platform.runner(*arguments, **{"allowed_private_hosts": "127.0.0.1", **options})
