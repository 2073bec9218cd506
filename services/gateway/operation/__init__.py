"""How a route is declared, checked, run and documented: once, in an operation table.

    OPERATIONS = (
        Operation(
            "POST", "/v1/things", create_thing,
            tag="Things",
            summary="Create a thing",
            body=ThingCreate,                  # a Shape of schemas/; unknown fields are refused
            response=Thing,                    # for the document only; nothing validates answers
            idempotent_write=True,             # documents Idempotency-Key; use call.idempotency()
        ),
        Operation(
            "GET", "/v1/things/{thing_id}/parts", list_parts,
            tag="Things",
            summary="List parts",
            query=(limit(), page(), flag("include_archived")),   # None: the route ignores every parameter
            response=PartPage,
        ),
        Operation(
            "GET", "/v1/things/{thing_id}/stream", stream_thing,
            tag="Things",
            summary="Follow a thing",
            stream=True,                       # answers text/event-stream; no HEAD
        ),
    )

    async def create_thing(call: Call) -> bytes:
        request = CreateThingRequest(definition_json=call.raw_body, idempotency=call.idempotency())
        answer = await call.ask(call.clients.things.CreateThing, request)
        return render_thing(answer.thing, published=call.published)

Who may use a route: readers where it reads, members where it writes; `needs="admin"` or
`needs="operator"` for more, `workers=True` to take a worker's key too, which then must be
of the environment that the path names.

A handler gets a `Call`: `call.path["thing_id"]`, `call.query["limit"]` (every declared
parameter is there, with its default), `call.body` (the validated Shape), `call.raw_body`
(the caller's own bytes, already known to be sound JSON), `call.published` (which
projection the caller reads), `call.clients`, `call.ask(rpc, request)` (adds context
and deadline; reads are retried once), `call.follow(rpc, request)` (a server stream),
`call.idempotency()`, `call.headers`, `call.receive`.

It answers with `bytes` (a JSON body with the operation's status), with an `Answer`
(other status or headers), or with any ASGI response, as streams do. It raises a
`DomainError` to refuse. `await call.ask(...)` raises the service's refusal as it is.

Handlers that need a part of the process beside the clients (such as the stream hub) are
methods of a class that is given it, and whose `operations()` returns the table; see
`routes/runtime.py`.

`routes/<resource>.py` export OPERATIONS; `app.py` joins them. The same tuple makes the
served routes and `/openapi.json`, so the document can't drift from what is served.
"""

from .call import Answer, Call
from .declaration import Operation
from .query import Parameter, choice, flag, integer, limit, many, page, text, timestamp

__all__ = [
    "Answer",
    "Call",
    "Operation",
    "Parameter",
    "choice",
    "flag",
    "integer",
    "limit",
    "many",
    "page",
    "text",
    "timestamp",
]
