"""Public JSON of a loop engine's options: headers that are secrets by their names are masked, wherever they stand."""

from __future__ import annotations

import orjson

from kit.http_engine import masked_options

_OPTIONS = "loop_engine_options"
_MARK = b'"loop_engine_options":{'


def render_engine_options(options_json: bytes) -> bytes:
    """The options that a session is frozen on; empty where its engine has none."""
    return b'"loop_engine_options":' + orjson.dumps(masked_options(orjson.loads(options_json))) if options_json else b""


def without_engine_secrets(document_json: bytes) -> bytes:
    """An agent's document; those of its roster are in it where a session shows them."""
    if _MARK not in document_json:
        return document_json
    document = orjson.loads(document_json)
    for agent in (document, *((document.get("multiagent") or {}).get("agents") or ())):
        if options := agent.get(_OPTIONS):
            agent[_OPTIONS] = masked_options(options)
    return orjson.dumps(document)
