"""Made-up logs of gateway sessions, in the shapes that the platform writes."""

from __future__ import annotations

from typing import Any

import orjson

from services.gateway.render.gateway import GatewayEvent, Projector

SESSION = "sess_1"


class Log:
    """A log that grows event by event, as sessions and runners write it."""

    def __init__(self) -> None:
        self.events: list[tuple[int, str, str, bytes]] = []

    def add(self, kind: str, event_id: str = "", **fields: Any) -> str:
        """One event; its id."""
        seq = len(self.events) + 1
        event_id = event_id or f"sevt_{seq}"
        body = {"id": event_id, "type": kind, "seq": seq, **fields}
        self.events.append((seq, event_id, kind, orjson.dumps(body)))
        return event_id

    def message(self, text: str = "Hello") -> str:
        """A message that starts a turn, or is queued."""
        return self.add("user.message", content=[{"type": "text", "text": text}])

    def running(self) -> None:
        """The session goes to work."""
        self.add("session.status_running")
        self.add("session.thread_status_running", session_thread_id="sthr_1")

    def start(self, text: str = "Hello") -> str:
        """A turn begins."""
        event_id = self.message(text)
        self.running()
        return event_id

    def part(self, message_id: str, offset: int, text: str) -> None:
        """Text while the model speaks."""
        self.add("agent.message_part", message_id=message_id, offset=offset, text=text)

    def says(self, text: str, *cuts: int, event_id: str = "") -> None:
        """An answer, in parts up to each cut."""
        event_id = event_id or f"sevt_m{len(self.events)}"
        self.add("span.model_request_start")
        for start, end in zip((0, *cuts), cuts, strict=False):
            self.part(event_id, start, text[start:end])
        self.add("agent.message", event_id, content=[{"type": "text", "text": text}])
        self.add("span.model_request_end", is_error=False)

    def breaks_off(self, text: str) -> None:
        """An answer that failed half way."""
        self.add("span.model_request_start")
        self.part(f"sevt_b{len(self.events)}", 0, text)
        self.add("span.model_request_end", is_error=True)

    def asks(self, kind: str = "agent.tool_use", **fields: Any) -> str:
        """A call that a person has to say something to."""
        told = {"name": "bash", "input": {"command": "ls"}, "evaluated_permission": "ask"} | fields
        return self.add(kind, **told)

    def idle(self, reason: str = "end_turn", **fields: Any) -> None:
        """The turn ends, or waits."""
        self.add("session.thread_status_idle", session_thread_id="sthr_1")
        self.add("session.usage")
        self.add("session.status_idle", stop_reason={"type": reason, **fields})

    def waits(self, *event_ids: str) -> None:
        """The turn waits for a person."""
        self.idle("requires_action", event_ids=list(event_ids))

    def project(self, projector: Projector | None = None) -> list[GatewayEvent]:
        """What the whole log comes to."""
        projector = projector or Projector(SESSION)
        return [event for entry in self.events for event in projector.take(*entry)]

    def told(self) -> list[dict[str, Any]]:
        """The same as clients read it."""
        return [orjson.loads(event.body) for event in self.project()]
