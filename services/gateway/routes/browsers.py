"""How a browser gets its cookie at the session gateway: a ticket from the application's server, exchanged once."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from functools import partial
from typing import Any

import orjson

from kit.clock import rfc3339
from kit.errors import PermissionDenied
from managed_agents.sessions.v1.gateway_pb2 import GetPublicationRequest, RedeemTicketRequest

from ..admission.browsers import TICKET_SECONDS, Browsers
from ..admission.credentials import presented
from ..operation import Answer, Call, Operation
from ..schemas.gateway import BrowserSession, Ticket, TicketCreate, TicketExchange
from .gateway import BASES, TAG


class BrowserRoutes:
    """The two routes of each door."""

    def __init__(self, browsers: Browsers) -> None:
        self._browsers = browsers

    async def create_ticket(self, call: Call, *, preview: bool) -> bytes:
        """POST …/tickets."""
        if call.admitted.principal.is_browser:
            raise PermissionDenied("A browser can't make tickets. Ask with an API key, from a server.")
        # Whether there is such an agent for the caller.
        await call.ask(call.clients.gateway.GetPublication, GetPublicationRequest(agent_id=call.path["agent_id"]))
        key = presented(call.headers)
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest() if key else ""
        ticket, claims = self._browsers.ticket(
            digest, call.path["agent_id"], preview=preview, user=call.body.user or "", seconds=call.body.seconds
        )
        return orjson.dumps({"ticket": ticket, "expiresAt": _moment(claims.expires_at)})

    async def exchange_ticket(self, call: Call, *, preview: bool) -> Answer:
        """POST …/cookie."""
        self._browsers.check_origin(call.headers, "POST")
        ticket = self._browsers.open_ticket(call.body.ticket, call.path["agent_id"], preview=preview)
        request = RedeemTicketRequest(ticket_id=ticket.id, keep_seconds=2 * TICKET_SECONDS)
        await call.ask(call.clients.gateway.RedeemTicket, request)
        cookie, claims = self._browsers.cookie(ticket, call.headers)
        body = {"expiresAt": _moment(claims.expires_at), "user": claims.user or None}
        return Answer(orjson.dumps(body), headers=(("set-cookie", cookie), ("cache-control", "no-store")))

    def operations(self) -> tuple[Operation, ...]:
        """The table of these routes."""
        return tuple(each for preview, base in BASES.items() for each in self._at(base, preview))

    def _at(self, base: str, preview: bool) -> tuple[Operation, ...]:
        return (
            Operation(
                "POST",
                f"{base}/tickets",
                _named("create_ticket", partial(self.create_ticket, preview=preview)),
                tag=TAG,
                summary="Make a ticket that a page exchanges for its cookie",
                description="For servers: a browser never holds an API key.",
                body=TicketCreate,
                response=Ticket,
                optional_body=True,
            ),
            Operation(
                "POST",
                f"{base}/cookie",
                _named("exchange_ticket", partial(self.exchange_ticket, preview=preview)),
                tag=TAG,
                summary="Exchange a ticket for the cookie of a browser",
                description="Once, within a minute, from this origin or one that is allowed.",
                body=TicketExchange,
                response=BrowserSession,
                needs_credential=False,
            ),
        )


def _named(name: str, handler: Any) -> Any:
    handler.__name__ = name
    return handler


def _moment(seconds: int) -> str:
    return rfc3339(datetime.fromtimestamp(seconds, UTC))
