"""A model vendor that answers at once, in the shape of OpenAI's streaming chat completions.

    python -m bench.model_server        # prints its port on one line, serves until it is ended

The last user message decides: `words N` gives N words, `call NAME JSON` one tool call, answered by a word once its
result is there. Nothing waits and nothing is random, so what a turn takes is what the platform takes.
"""

import asyncio
import itertools
import re
from typing import Any

import orjson
from aiohttp import web

_WORDS = re.compile(r"words (\d+)")
_CALL = re.compile(r"call (\w+) (\{.*\})", re.DOTALL)
_numbers = itertools.count(1)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content or [])


def _wish(messages: list[dict[str, Any]]) -> tuple[str, bool]:
    """The last thing that the user said, and whether a tool's result came after it."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index]["role"] == "user":
            return _text(messages[index]["content"]), any(one["role"] == "tool" for one in messages[index:])
    return "", False


def _deltas(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    said, has_result = _wish(messages)
    call = _CALL.search(said)
    if call and not has_result:
        function = {"name": call[1], "arguments": call[2]}
        calls = [{"index": 0, "id": f"call_{next(_numbers)}", "type": "function", "function": function}]
        return [{"role": "assistant", "tool_calls": calls}], "tool_calls"
    found = _WORDS.search(said)
    return [{"content": f"word{number} "} for number in range(int(found[1]) if found else 1)], "stop"


def _lines(request: dict[str, Any]) -> bytes:
    deltas, reason = _deltas(request["messages"])
    head = {"id": f"chat-{next(_numbers)}", "object": "chat.completion.chunk", "created": 0, "model": request["model"]}
    usage = {"prompt_tokens": 10, "completion_tokens": len(deltas), "total_tokens": 10 + len(deltas)}
    chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    chunks.append({**head, "choices": [], "usage": usage})
    return b"".join(b"data: %b\n\n" % orjson.dumps(chunk) for chunk in chunks) + b"data: [DONE]\n\n"


async def _complete(request: web.Request) -> web.Response:
    body = _lines(orjson.loads(await request.read()))
    return web.Response(body=body, headers={"content-type": "text/event-stream"})


async def _serve() -> None:
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", _complete)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve())
