"""Query parameters: what a route does not implement, or can't read, is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from services.gateway.errors import InvalidRequest, UnknownQueryParameter
from services.gateway.operation import choice, flag, integer, limit, many, page, text, timestamp
from services.gateway.operation.query import parse

PARAMETERS = (
    limit(),
    page(),
    flag("include_archived"),
    timestamp("created_at[gte]"),
    integer("version", minimum=1, maximum=9),
    text("agent_id"),
    choice("order", ("asc", "desc"), default="asc"),
    many("types[]", max_items=3, names=("types",)),
    many("event_deltas[]", max_items=100, values=("agent.message", "agent.thinking")),
)


def test_defaults() -> None:
    assert parse(b"", PARAMETERS) == {
        "limit": 20,
        "page": "",
        "include_archived": False,
        "created_at[gte]": "",
        "version": None,
        "agent_id": "",
        "order": "asc",
        "types[]": (),
        "event_deltas[]": (),
    }


@pytest.mark.parametrize(
    ("raw", "name", "expected"),
    [
        (b"limit=100", "limit", 100),
        (b"beta=true", "limit", 20),
        (b"beta=true&beta=x", "limit", 20),
        (b"include_archived=true", "include_archived", True),
        (b"include_archived=true&include_archived=true", "include_archived", True),
        (b"created_at%5Bgte%5D=2026-07-12T00:00:00Z", "created_at[gte]", "2026-07-12T00:00:00.000000Z"),
        (b"created_at[gte]=2026-07-12T02:00:00.1234567%2B02:00", "created_at[gte]", "2026-07-12T00:00:00.123456Z"),
        (b"created_at[gte]=2026-07-12T02:00:00+02:00", "created_at[gte]", "2026-07-12T00:00:00.000000Z"),
        (b"types[]=a&types[]=b&types=a", "types[]", ["a", "b"]),
        (b"event_deltas[]=agent.message&event_deltas[]=agent.message", "event_deltas[]", ["agent.message"]),
    ],
)
def test_read(raw: bytes, name: str, expected: Any) -> None:
    assert parse(raw, PARAMETERS)[name] == expected


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (b"limit=0", "limit must be an integer from 1 to 100"),
        (b"limit=101", "limit must be an integer from 1 to 100"),
        (b"limit=", "limit"),
        (b"limit=1.5", "limit"),
        (b"limit=%D9%A1", "limit"),
        (b"limit=99999999999999999999", "limit"),
        (b"limit=1&limit=1", "limit must be given once"),
        (b"include_archived=1", "include_archived must be true or false"),
        (b"include_archived=", "include_archived"),
        (b"include_archived=true&include_archived=false", "include_archived must be given once"),
        (b"page=", "page"),
        (b"page=" + b"a" * 3000, "page"),
        (b"created_at[gte]=2026-07-12", "created_at[gte]"),
        (b"created_at[gte]=2026-07-12T00:00:00", "created_at[gte]"),
        (b"created_at[gte]=2026-13-12T00:00:00Z", "created_at[gte]"),
        (b"created_at[gte]=0001-01-01T00:00:00%2B14:00", "created_at[gte]"),
        (b"version=0", "version"),
        (b"order=up", "order must be one of: asc, desc"),
        (b"types[]=a&types[]=b&types[]=c&types[]=d", "types[]"),
        (b"types[]=", "types[]"),
        (b"event_deltas[]=agent.tool_use", "event_deltas[] accepts: agent.message, agent.thinking"),
        (b"agent_id=%00", "NUL"),
        (b"agent_id=%ff", "UTF-8"),
        (b"agent_id=\xff", "UTF-8"),
        (b"&".join(b"beta=%d" % number for number in range(300)), "256"),
    ],
)
def test_refused(raw: bytes, named: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse(raw, PARAMETERS)
    assert named in refusal.value.message


def test_an_unknown_name_lists_the_accepted_ones_as_declared() -> None:
    with pytest.raises(UnknownQueryParameter) as refusal:
        parse(b"include_archived=true", (limit(), text("status"), text("agent_id"), page()))
    assert refusal.value.message == (
        'Unknown query parameter "include_archived". This route accepts: limit, status, agent_id, page.'
    )
