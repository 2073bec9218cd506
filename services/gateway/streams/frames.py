"""Frames of an event stream, rendered once per event and projection.

A frame carries `id:` (the seq), `event:` (the type; the published client yields nothing
without it) and `data:` (the stored bytes). Previews carry no id, so they never move a
cursor. Published-contract callers get only the types that their client knows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from managed_agents.sessions.v1.events_pb2 import Event, Preview

from ..render.events import is_published, render_event

PING = b": ping\n\n"
ENDING_TYPES = frozenset({"session.status_terminated", "session.deleted"})
UNREAD = b'"processed_at":null'
_EVENT_ID = re.compile(rb'"(sevt_[0-9A-Za-z]+)"')


@dataclass(frozen=True, slots=True)
class Frame:
    """One event, ready to be sent. `published` is empty where that projection leaves it out."""

    seq: int
    event_id: str
    type: str
    is_unread: bool
    local: bytes
    published: bytes

    def bytes_for(self, published: bool) -> bytes:
        """The frame in one projection; may be empty."""
        return self.published if published else self.local

    def update_for(self, published: bool) -> bytes:
        """The frame without its id: a browser must not go back to this older seq when it reconnects."""
        _, _, rest = self.bytes_for(published).partition(b"\n")
        return rest


def frame_of(event: Event) -> Frame:
    """Both projections of a stored event."""
    local = _frame(event, event.body)
    published = b""
    if is_published(event.type):
        body = render_event(event, published=True)
        published = local if body is event.body else _frame(event, body)
    is_unread = event.type in ("user.message", "system.message") and UNREAD in event.body
    return Frame(event.seq, event.id, event.type, is_unread, local, published)


def preview_frame(preview: Preview) -> bytes:
    """A frame that announces or continues an event that is not stored yet."""
    return b"event: %b\ndata: %b\n\n" % (preview.frame.encode(), preview.body)


def previewed_id(preview: Preview) -> str:
    """The id of the event that a preview is about; empty where it names none."""
    found = _EVENT_ID.search(preview.body)
    return found.group(1).decode() if found else ""


def error_frame(body: bytes) -> bytes:
    """An error after the stream has begun, in the envelope of any refusal."""
    return b"event: error\ndata: %b\n\n" % body


def _frame(event: Event, body: bytes) -> bytes:
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (event.seq, event.type.encode(), body)
