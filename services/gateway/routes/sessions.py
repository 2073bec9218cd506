"""Sessions."""

from __future__ import annotations

from urllib.parse import parse_qsl

import orjson

from managed_agents.sessions.v1 import sessions_pb2 as pb
from managed_agents.sessions.v1.common_pb2 import Page

from ..errors import InvalidRequest, UnknownQueryParameter
from ..operation import Call, Operation, choice, flag, integer, limit, many, page, text, timestamp
from ..render.sessions import LOCAL_STATUS, PUBLISHED_STATUS, render_encoded, render_session, statuses_named
from ..render.splice import collection
from ..schemas.sessions import DeletedSession, Session, SessionCreate, SessionPage, SessionUpdate

TAG = "Sessions"
LIST_QUERY = (
    limit(),
    many("statuses[]", max_items=16, names=("statuses", "status"), description="Only sessions in one of these."),
    text("agent_id", max_length=128, description="Only sessions of this agent."),
    page(),
    integer("agent_version", minimum=1, maximum=2_147_483_647, description="With agent_id: only of this version."),
    text("deployment_id", max_length=128, description="Only sessions of this deployment."),
    text("memory_store_id", max_length=128, description="Only sessions that mount this store."),
    choice("order", ("asc", "desc"), default="desc", description="By creation."),
    timestamp("created_at[gt]", description="Created after."),
    timestamp("created_at[gte]", description="Created at or after."),
    timestamp("created_at[lt]", description="Created before."),
    timestamp("created_at[lte]", description="Created at or before."),
    flag("include_archived", description="Archived sessions too; for published-contract callers."),
)


async def create_session(call: Call) -> bytes:
    """POST /v1/sessions."""
    request = pb.CreateSessionRequest(definition_json=call.raw_body, idempotency=call.idempotency())
    answer = await call.ask(call.clients.sessions.CreateSession, request)
    return render_session(answer.session, published=call.published)


async def get_session(call: Call) -> bytes:
    """GET /v1/sessions/{session_id}."""
    answer = await call.ask(call.clients.sessions.GetSession, pb.GetSessionRequest(session_id=call.path["session_id"]))
    return render_session(answer.session, published=call.published)


async def list_sessions(call: Call) -> bytes:
    """GET /v1/sessions."""
    _refuse_local_archive_filter(call)
    query = call.query
    request = pb.ListSessionsRequest(
        page=Page(limit=query["limit"], cursor=query["page"]),
        agent_id=query["agent_id"],
        agent_version=query["agent_version"] or 0,
        deployment_id=query["deployment_id"],
        memory_store_id=query["memory_store_id"],
        statuses=read_statuses(call),
        include_archived=query["include_archived"],
        ascending=query["order"] == "asc",
        created_at_gt=query["created_at[gt]"],
        created_at_gte=query["created_at[gte]"],
        created_at_lt=query["created_at[lt]"],
        created_at_lte=query["created_at[lte]"],
        takes_encoded=True,
    )
    answer = await call.ask(call.clients.sessions.ListSessions, request)
    # A service of a former build knows nothing of encoded ones.
    encoded = answer.encoded_sessions or [each.SerializeToString() for each in answer.sessions]
    return collection([render_encoded(each, published=call.published) for each in encoded], answer.page_info)


async def update_session(call: Call) -> bytes:
    """POST /v1/sessions/{session_id}."""
    request = pb.UpdateSessionRequest(session_id=call.path["session_id"], patch_json=call.raw_body)
    answer = await call.ask(call.clients.sessions.UpdateSession, request)
    return render_session(answer.session, published=call.published)


async def archive_session(call: Call) -> bytes:
    """POST /v1/sessions/{session_id}/archive."""
    request = pb.ArchiveSessionRequest(session_id=call.path["session_id"])
    answer = await call.ask(call.clients.sessions.ArchiveSession, request)
    return render_session(answer.session, published=call.published)


async def stop_session(call: Call) -> bytes:
    """POST /v1/sessions/{session_id}/stop."""
    request = pb.StopSessionRequest(session_id=call.path["session_id"])
    answer = await call.ask(call.clients.sessions.StopSession, request)
    return render_session(answer.session, published=call.published)


async def delete_session(call: Call) -> bytes:
    """DELETE /v1/sessions/{session_id}."""
    session_id = call.path["session_id"]
    await call.ask(call.clients.sessions.DeleteSession, pb.DeleteSessionRequest(session_id=session_id))
    return orjson.dumps({"id": session_id, "type": "session_deleted"})


def read_statuses(call: Call) -> list[pb.SessionStatus.ValueType]:
    """The statuses that the query narrows to, in the caller's own words."""
    found: list[pb.SessionStatus.ValueType] = []
    for word in call.query["statuses[]"]:
        named = statuses_named(word, published=call.published)
        if not named:
            vocabulary = PUBLISHED_STATUS if call.published else LOCAL_STATUS
            accepted = ", ".join(dict.fromkeys(vocabulary.values()))
            raise InvalidRequest(f"statuses[] accepts: {accepted}.", field="statuses[]")
        found += named
    return found


def _refuse_local_archive_filter(call: Call) -> None:
    """The local list never took this filter, and ignoring it would answer another question."""
    if call.published:
        return
    names = {name for name, _ in parse_qsl(call.scope.get("query_string", b"").decode("latin-1"), True)}
    if "include_archived" in names:
        accepted = ", ".join(each.name for each in LIST_QUERY if each.name != "include_archived")
        raise UnknownQueryParameter(f'Unknown query parameter "include_archived". This route accepts: {accepted}.')


OPERATIONS = (
    Operation(
        "GET",
        "/v1/sessions",
        list_sessions,
        tag=TAG,
        summary="List sessions, newest first",
        query=LIST_QUERY,
        response=SessionPage,
    ),
    Operation(
        "POST",
        "/v1/sessions",
        create_session,
        tag=TAG,
        summary="Create a session",
        description="With `initial_events` it starts running at once; a refusal creates nothing.",
        body=SessionCreate,
        response=Session,
        idempotent_write=True,
    ),
    Operation(
        "GET",
        "/v1/sessions/{session_id}",
        get_session,
        tag=TAG,
        summary="Retrieve a session",
        holders="session",
        response=Session,
    ),
    Operation(
        "POST",
        "/v1/sessions/{session_id}",
        update_session,
        tag=TAG,
        summary="Change title, metadata, budget, or the agent's tools and servers",
        body=SessionUpdate,
        response=Session,
    ),
    Operation(
        "POST",
        "/v1/sessions/{session_id}/archive",
        archive_session,
        tag=TAG,
        summary="Archive a session for good",
        response=Session,
    ),
    Operation(
        "POST",
        "/v1/sessions/{session_id}/stop",
        stop_session,
        tag=TAG,
        summary="End a session for good",
        response=Session,
    ),
    Operation(
        "DELETE",
        "/v1/sessions/{session_id}",
        delete_session,
        tag=TAG,
        summary="Delete a session from listings and stop its work",
        response=DeletedSession,
    ),
)
