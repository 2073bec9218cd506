"""A sound body of every operation that takes one, and the ids that their paths ask for."""

from __future__ import annotations

import base64
import copy
import hashlib
from typing import Any

import httpx2

SCHEMA = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
AGENT = {
    "name": "tester",
    "description": "Tests.",
    "model": {"id": "default", "speed": "standard"},
    "system": "Do as you are told.",
    "tools": [
        {
            "type": "agent_toolset_20260401",
            "default_config": {"enabled": True, "permission_policy": {"type": "always_allow"}},
            "configs": [{"name": "bash", "enabled": True, "permission_policy": {"type": "always_ask"}}],
        },
        {"type": "custom", "name": "lookup", "description": "Looks a word up.", "input_schema": SCHEMA},
        {"type": "mcp_toolset", "mcp_server_name": "docs"},
    ],
    "mcp_servers": [{"type": "url", "name": "docs", "url": "https://mcp.example.com/docs"}],
    "skills": [{"type": "custom", "skill_id": "skill_x", "version": "1"}],
    "metadata": {"purpose": "test"},
    "guardrails": {
        "input": {
            "max_characters": 1_000,
            "deny_patterns": [{"pattern": "(?i)secret", "code": "no_secrets", "message": "No secrets."}],
            "endpoint": {"url": "https://guard.example.com/check", "timeout_seconds": 1.5, "on_failure": "block"},
        },
        "output": {"max_characters": 1_000, "code": "too_long", "message": "Too long."},
    },
    "gateway_session": {
        "environment_id": "env_default",
        "vault_ids": ["vlt_x"],
        "resources": [{"type": "file", "file_id": "file_x", "mount_path": "/data.csv"}],
    },
}
ENVIRONMENT = {
    "name": "tester",
    "description": "Tests.",
    "config": {
        "type": "cloud",
        "networking": {
            "type": "limited",
            "allowed_hosts": ["example.com"],
            "allow_mcp_servers": True,
            "allow_package_managers": True,
        },
    },
    "metadata": {"purpose": "test"},
}
HELD = {"id": "work_x", "worker_id": "tester", "attempt": 1}
TEXT = [{"type": "text", "text": "hello"}]
# Options of an engine that is reached by nobody.
OUTSIDE = {
    "url": "http://127.0.0.1:1/step",
    "headers": {"Authorization": "Bearer ${AGENT_TOKEN}", "X-Tenant": "acme"},
    "max_rounds": 2,
    "timeout_seconds": 5,
}
SESSION = {
    "agent": {"type": "agent", "id": "AGENT", "version": 1},
    "environment_id": "env_default",
    "title": "test",
    "metadata": {"purpose": "test"},
    "resources": [],
    "vault_ids": [],
    "loop_engine": "builtin",
    "initial_events": [{"type": "user.message", "content": TEXT}],
}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}}
EVENTS = {
    "events": [
        {"type": "user.message", "content": [*TEXT, IMAGE]},
        {"type": "user.interrupt", "session_thread_id": "sthr_x"},
        {"type": "user.tool_confirmation", "tool_use_id": "sevt_x", "result": "deny", "deny_message": "no"},
        {"type": "user.custom_tool_result", "custom_tool_use_id": "sevt_x", "content": TEXT, "is_error": False},
        {
            "type": "user.define_outcome",
            "description": "It works.",
            "rubric": {"type": "text", "content": "It answers 200."},
            "max_iterations": 3,
        },
        {"type": "user.steer", "input_id": "steer_1", "text": "smaller"},
        {"type": "system.message", "content": TEXT},
    ]
}
SETTINGS = {
    "schema_version": 1,
    "model": {
        "vendor": "openai",
        "base_url": "http://127.0.0.1:1/v1",
        "api_key": "sk-test",
        "default_model": "m",
        "options": {},
    },
    "loop_engine": {
        "provider": "builtin",
        "options": {"default_max_steps": 7, "approval_mode": "interactive", "requires_action_timeout_seconds": 60},
    },
    "storage": {
        "metadata": {"provider": "postgres", "options": {}},
        "artifacts": {"provider": "local", "options": {}},
    },
    "memory": {"enabled": False, "provider": "none", "options": {}},
    "sandbox": {"provider": "local", "options": {}},
}
OUTCOME = {
    "name": "test",
    "description": "test",
    "objective": "It works.",
    "criteria": ["It answers 200."],
    "pass_threshold": 0.5,
    "metadata": {"purpose": "test"},
}
VAULT = {"display_name": "test", "metadata": {"purpose": "test"}}
SERVER, PLAIN_SERVER = "https://mcp.example.com/docs", "https://mcp.example.com/plain"
OAUTH = {
    "type": "mcp_oauth",
    "mcp_server_url": SERVER,
    "access_token": "token",
    "expires_at": "2099-01-01T00:00:00Z",
    "refresh": {
        "client_id": "client",
        "refresh_token": "token",
        "token_endpoint": "https://auth.example.com/token",
        "token_endpoint_auth": {"type": "client_secret_basic", "client_secret": "secret"},
        "resource": SERVER,
        "scope": "read",
    },
}
VARIABLE = {
    "type": "environment_variable",
    "secret_name": "DEPLOY_KEY",
    "secret_value": "secret",
    "networking": {"type": "limited", "allowed_hosts": ["api.example.com"]},
    "injection_location": {"header": True, "body": False},
}
FLAT_VARIABLE = {
    "name": "test",
    "auth_type": "environment_variable",
    "variable_name": "DEPLOY_KEY",
    "value": "secret",
    "network": {"type": "limited", "allowed_hosts": ["api.example.com"]},
    "injection_locations": ["request_headers"],
    "metadata": {"purpose": "test"},
}
FLAT_OAUTH = {
    "name": "test",
    "auth_type": "mcp_oauth",
    "mcp_server_url": SERVER,
    "value": "token",
    "expires_at": "2099-01-01T00:00:00Z",
    "refresh": OAUTH["refresh"],
    "metadata": {"purpose": "test"},
}
BEARER = {"type": "static_bearer", "mcp_server_url": SERVER, "token": "token"}
CREDENTIALS = [*({**VAULT, "auth": auth} for auth in (OAUTH, BEARER, VARIABLE)), FLAT_OAUTH, FLAT_VARIABLE]
# Of the type of the credential that is there: neither that nor what it is found by can change.
CREDENTIAL_CHANGES = [
    {**VAULT, "auth": {key: value for key, value in OAUTH.items() if key != "mcp_server_url"}},
    {key: value for key, value in FLAT_OAUTH.items() if key not in ("auth_type", "mcp_server_url")},
]
ROTATION = {
    "value": "secret",
    "actor": "tester",
    "metadata": {"purpose": "test"},
    "expires_at": "2099-01-01T00:00:00Z",
}
# What is in base64 can be wrong; as plain text nothing is.
HELLO = {"content": "aGVsbG8=", "encoding": "base64"}
FILES = [
    {"name": "notes.txt", "media_type": "text/plain", **HELLO, "expires_in_seconds": 3_600},
    {"filename": "notes.txt", "mime_type": "text/plain", **HELLO},
]
ARTIFACTS = [
    {"path": "/artifacts/report.md", "name": "report.md", "media_type": "text/markdown", **HELLO},
    {"path": "/artifacts/report.md", "filename": "report.md", "mime_type": "text/markdown", **HELLO},
]


def package(name: str) -> dict[str, Any]:
    """The files of a skill of that name."""
    manual = f"---\nname: {name}\ndescription: Says hello.\n---\n\nSay hello.".encode()
    file = {"name": f"{name}/SKILL.md", "content": base64.b64encode(manual).decode(), "encoding": "base64"}
    return {"files": [file]}


SKILLS = [{**package("judged-skill"), label: "Judged"} for label in ("display_name", "display_title")]
REPOSITORY = {
    "type": "github_repository",
    "url": "https://github.com/example/example",
    "authorization_token": "token",
    "checkout": {"type": "branch", "name": "main"},
    "mount_path": "/workspace/example",
}
RESOURCES = [{"type": "file", "file_id": "FILE", "mount_path": "/data.csv"}, REPOSITORY]
STORE = {"name": "test", "description": "test", "metadata": {"purpose": "test"}}
MEMORY = {"path": "/notes/test", "content": "hello"}
DIGEST = hashlib.sha256(MEMORY["content"].encode()).hexdigest()
MEMORY_CHANGE = {**MEMORY, "precondition": {"type": "content_sha256", "content_sha256": DIGEST}}
# A sound body of every operation that takes one in JSON, or several. Of what may come as a form too, the forms are
# tried elsewhere.
BODIES: dict[str, Any] = {
    "POST /v1/agents": [AGENT, {**AGENT, "loop_engine": "http", "loop_engine_options": OUTSIDE}],
    "POST /v1/agents/{agent_id}": {**AGENT, "version": 1},
    "PUT /v1/agents/{agent_id}": {**AGENT, "expected_version": 1},
    "POST /v1/agents/{agent_id}/publish": {"version": 1},
    "POST /v1/environments": ENVIRONMENT,
    "POST /v1/environments/{environment_id}": ENVIRONMENT,
    "PUT /v1/environments/{environment_id}": ENVIRONMENT,
    "POST /v1/sessions": [SESSION, {**SESSION, "loop_engine": {"provider": "http", "options": OUTSIDE}}],
    "POST /v1/sessions/{session_id}": {
        "title": "test",
        "metadata": {"purpose": "test"},
        "agent": {"tools": AGENT["tools"][:2], "mcp_servers": []},
    },
    "POST /v1/sessions/{session_id}/events": EVENTS,
    "POST /v1/sessions/{session_id}/messages": {"content": TEXT, "stream": False},
    "POST /v1/runs": {
        "agent": {"type": "agent", "id": "AGENT", "version": 1},
        "input": TEXT,
        "response_mode": "async",
        "max_wait_seconds": 1.5,
        "session": {
            "title": "test",
            "metadata": {"purpose": "test"},
            "resources": [],
            "vault_ids": [],
            "loop_engine": "builtin",
        },
    },
    "POST /v1/agents/{agent_id}/step": [
        {
            "session_id": "20261018T210512-k3f9/order-status#0",
            "system": "You answer questions about orders.",
            "tools": [{"name": "get_order", "description": "Reads one order.", "input_schema": SCHEMA}],
            "message": "Where is my order?",
            "step": 1,
        },
        {"session_id": "never begun", "tool_results": [{"id": "sevt_x", "ok": False, "error": "No such order."}]},
    ],
    "POST /v1/outcomes": OUTCOME,
    "PUT /v1/outcomes/{outcome_id}": OUTCOME,
    "POST /v1/sessions/{session_id}/outcomes": {
        "outcome_id": "out_x",
        "status": "passed",
        "score": 0.5,
        "summary": "It holds.",
        "metadata": {"purpose": "test"},
    },
    "POST /v1/sessions/{session_id}/outcomes/evaluate": {"outcome_id": "out_x"},
    "POST /v1/api-keys": {"name": "test", "role": "member", "owner_name": "test", "workspace_id": "wrkspc_test"},
    "POST /v1/environments/{environment_id}/worker-keys": {
        "name": "test",
        "expires_at": "2099-01-01T00:00:00Z",
        "metadata": {"purpose": "test"},
    },
    "POST /v1/x/worker/claim": [
        {"worker_id": "tester", "session_id": "sess_x", "wait_ms": 5},
        {"worker_id": "tester", "environment_id": "env_x", "environment_key": "mawk_x"},
    ],
    "POST /v1/x/worker/accept": HELD,
    "POST /v1/x/worker/heartbeat": HELD,
    "POST /v1/x/worker/complete": {**HELD, "result": {"stdout": "", "exitCode": 0}, "failed": False},
    "POST /v1/environments/{environment_id}/work/{work_id}/stop": [{"force": True}, {"force": False}],
    "POST /v1/environments/{environment_id}/work/{work_id}": {"metadata": {"purpose": "test"}},
    "PATCH /v1/environments/{environment_id}/work/{work_id}": {"metadata": {"purpose": "test"}},
    "POST /v1/x/settings/validate": SETTINGS,
    "POST /v1/x/settings/test": {"area": "model", "config": SETTINGS["model"]},
    "PUT /v1/x/settings": {"revision": 0, "config": SETTINGS},
    "POST /v1/files": FILES,
    "POST /v1/sessions/{session_id}/artifacts": ARTIFACTS,
    "POST /v1/sessions/{session_id}/resources": RESOURCES,
    "PATCH /v1/sessions/{session_id}/resources/{resource_id}": {"authorization_token": "token"},
    "POST /v1/sessions/{session_id}/resources/{resource_id}": {"authorization_token": "token"},
    "POST /v1/skills": SKILLS,
    "POST /v1/skills/{skill_id}/versions": package("plain-skill"),
    "POST /v1/memory_stores": STORE,
    "POST /v1/memory_stores/{memory_store_id}": STORE,
    "PUT /v1/memory_stores/{memory_store_id}": STORE,
    "POST /v1/memory_stores/{memory_store_id}/memories": MEMORY,
    "POST /v1/memory_stores/{memory_store_id}/memories/{memory_id}": MEMORY_CHANGE,
    "PUT /v1/memory_stores/{memory_store_id}/memories/{memory_id}": MEMORY_CHANGE,
    "PATCH /v1/memory_stores/{memory_store_id}/memories/{memory_id}": MEMORY_CHANGE,
}
for _prefix in ("/v1/vaults", "/v1/credential-vaults"):
    _one = f"{_prefix}/{{vault_id}}/credentials/{{credential_id}}"
    BODIES |= {
        f"POST {_prefix}": [VAULT, {"name": "test"}],
        f"POST {_prefix}/{{vault_id}}": [VAULT, {"name": "test"}],
        f"POST {_prefix}/{{vault_id}}/credentials": CREDENTIALS,
        f"POST {_one}": CREDENTIAL_CHANGES,
        f"POST {_one}/rotate": ROTATION,
        f"POST {_one}/mark-used": {"actor": "tester", "metadata": {"purpose": "test"}},
    }
for _door in ("/api/agents/{agent_id}/eve/v1", "/api/agents/{agent_id}/preview/eve/v1"):
    _answers = [{"requestId": "sevt_x", "optionId": "deny", "text": "No."}]
    _sends = [{"message": TEXT}, {"sessionId": "sess_x", "inputResponses": _answers}, {"turnId": "run_x"}]
    BODIES |= {
        f"POST {_door}/session": _sends,
        f"POST {_door}/session/{{session_id}}": [{"message": TEXT}, {"inputResponses": _answers}, {"turnId": "run_x"}],
        f"POST {_door}/session/{{session_id}}/cancel": {"turnId": "run_x"},
        f"POST {_door}/tickets": {"user": "somebody", "seconds": 60},
        f"POST {_door}/cookie": {"ticket": "ticket"},
    }
# These take no body at all, too.
OPTIONAL = tuple(name for name in BODIES if name.endswith(("/mark-used", "/tickets", "/cancel", "/publish", "/stop")))


def bodies_of(operation: str, known: dict[str, str]) -> list[dict[str, Any]]:
    """The sound bodies of an operation, with ids that exist."""
    bodies = copy.deepcopy(BODIES[operation])
    bodies = bodies if isinstance(bodies, list) else [bodies]
    for body in bodies:
        if operation in ("POST /v1/sessions", "POST /v1/runs"):
            body["agent"]["id"] = known["agent_id"]
        if "file_id" in body:
            body["file_id"] = known["file_id"]
    return bodies


def one_of_each(url: str) -> dict[str, str]:
    """One resource of each kind, by the name of its id in paths."""
    with httpx2.Client(base_url=url) as http:

        def made(path: str, body: dict[str, Any]) -> str:
            answer = http.post(path, json=body)
            assert answer.is_success, f"{path}: {answer.text}"
            return answer.json()["id"]

        def first(path: str, name: str = "id") -> str:
            return http.get(path).json()["data"][0][name]

        agent = made("/v1/agents", {"name": "plain", "model": "default", "system": "s"})
        environment = made("/v1/environments", {"name": "plain", "config": {"type": "cloud"}})
        session = made(
            "/v1/sessions", {"agent": agent, "resources": [{**REPOSITORY, "mount_path": "/workspace/plain"}]}
        )
        vault = made("/v1/vaults", VAULT)
        skill = made("/v1/skills", package("plain-skill"))
        store = made("/v1/memory_stores", STORE)
        run = http.post(f"/api/agents/{agent}/eve/v1/session", json={"message": "LEN:1"})
        return {
            "run_id": run.headers["run-id"],
            "agent_id": agent,
            "environment_id": environment,
            "session_id": session,
            "thread_id": first(f"/v1/sessions/{session}/threads"),
            "resource_id": first(f"/v1/sessions/{session}/resources"),
            "file_id": made("/v1/files", FILES[0]),
            "artifact_id": made(f"/v1/sessions/{session}/artifacts", {**ARTIFACTS[0], "path": "/artifacts/plain.md"}),
            "outcome_id": made("/v1/outcomes", {"name": "plain"}),
            "key_id": made(f"/v1/environments/{environment}/worker-keys", {"name": "plain"}),
            "vault_id": vault,
            "credential_id": made(
                f"/v1/vaults/{vault}/credentials", {**VAULT, "auth": {**OAUTH, "mcp_server_url": PLAIN_SERVER}}
            ),
            "skill_id": skill,
            "version": first(f"/v1/skills/{skill}/versions", "version"),
            "memory_store_id": store,
            "memory_id": made(f"/v1/memory_stores/{store}/memories", {**MEMORY, "path": "/notes/plain"}),
            "version_id": first(f"/v1/memory_stores/{store}/memory_versions"),
            "model_id": "demo",
            "work_id": "work_x",
        }
