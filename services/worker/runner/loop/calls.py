"""A call of the model, as far as the log tells of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.worker.runner.models.base import Block

WITHHELD = "The answer to this call was withheld: it goes against what the agent may be asked."
START_THREAD, SEND_TO_THREAD = "start_thread", "send_to_thread"


def failed_result(call: "Call", text: str) -> Block:
    """What a model is told of a call that has no result of its own."""
    return {
        "type": "tool_result",
        "tool_use_id": call.block_id,
        "content": [{"type": "text", "text": text}],
        "is_error": True,
    }


@dataclass(slots=True)
class Call:
    """A call of the newest answer, as far as the log tells."""

    event_id: str
    block_id: str
    # What the model calls it.
    name: str
    input: Mapping[str, Any]
    custom: bool = False
    # `allow`, `ask` or `deny`; empty for a custom tool, which the client runs or not.
    permission: str = ""
    # The client's decision: None, or `allow` or `deny`.
    decision: str | None = None
    deny_message: str = ""
    # The event that told of the client's leave.
    allowed_by: str = ""
    # Whether a guardrail keeps from the model what was answered.
    withheld: bool = False
    result: Block | None = None
    # Whether the result came from the log, rather than from this turn itself.
    result_is_stored: bool = False
    # For a tool of an MCP server: the server, and what that calls the tool.
    server_name: str = ""
    server_tool: str = ""
    # Whether a worker that serves the session runs it, and answers by itself.
    by_worker: bool = False

    @property
    def is_of_thread(self) -> bool:
        """Whether a thread answers the call. Only coordinators are allowed tools of these names."""
        return not self.custom and self.permission == "allow" and self.name in (START_THREAD, SEND_TO_THREAD)

    @property
    def runs_on_worker(self) -> bool:
        """Whether a worker has it, or will, without anybody's further leave."""
        return self.by_worker and (self.permission == "allow" or self.decision == "allow")

    @property
    def answered(self) -> bool:
        """Whether the log holds a result."""
        return self.result is not None
