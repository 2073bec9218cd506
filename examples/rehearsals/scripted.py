"""A server for small scripted agents that speak the HTTP agent protocol; nothing but the standard library.

An agent is a generator. It gets what the user says first, and yields one of two things:

    message = yield "a reply"                      → what the user says next
    results = yield [call("tool", argument=1)]     → the results, in order: {"ok": True, "result": …} or
                                                     {"ok": False, "error": "…"}

Each session has a generator of its own, so any number of conversations may interleave.
"""

import argparse
import json
import threading
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Agent = Callable[[str], Generator[Any, Any, None]]


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"name": tool, "arguments": arguments}


class Conversations:
    """One generator per session."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._open: dict[str, Generator[Any, Any, None]] = {}
        self._calls: dict[str, int] = {}
        self._lock = threading.Lock()

    def step(self, request: dict[str, Any]) -> dict[str, Any]:
        session = request["session_id"]
        with self._lock:
            try:
                if session not in self._open:
                    self._open[session] = self._agent(request["message"])
                    answer = next(self._open[session])
                elif "message" in request:
                    answer = self._open[session].send(request["message"])
                else:
                    answer = self._open[session].send(request["tool_results"])
            except StopIteration:
                return {"reply": "Is there anything else?"}
            if isinstance(answer, str):
                return {"reply": answer}
            return {"tool_calls": [{"id": self._new_id(session), **each} for each in answer]}

    def _new_id(self, session: str) -> str:
        self._calls[session] = self._calls.get(session, 0) + 1
        return f"c{self._calls[session]}"


def server(agent: Agent, port: int = 0) -> ThreadingHTTPServer:
    """A server on this machine; port 0 takes any that is free."""
    conversations = Conversations(agent)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            content = json.dumps(conversations.step(request)).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            return

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main(agent: Agent) -> None:
    parser = argparse.ArgumentParser(description="A scripted agent for a rehearsal.")
    parser.add_argument("--port", type=int, default=8787)
    with server(agent, parser.parse_args().port) as running:
        print(f"Listening on http://127.0.0.1:{running.server_address[1]}/step. Ctrl-C stops it.", flush=True)
        try:
            running.serve_forever()
        except KeyboardInterrupt:
            return
