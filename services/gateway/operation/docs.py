"""The reference page at `/docs`: the OpenAPI document as one page that needs nothing else.

It loads no script and no style from anywhere, so it works on a machine without a way
out and shows what this very process serves.
"""

from __future__ import annotations

import json
from html import escape
from typing import Any

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:0;color:#1d2330;background:#fff;display:flex}
nav{position:sticky;top:0;height:100vh;overflow:auto;width:19rem;flex:none;padding:1rem;background:#f5f6f8}
nav h2{font-size:.8rem;margin:1rem 0 .2rem;text-transform:uppercase;color:#5b6474}
nav a{display:block;color:inherit;text-decoration:none;font-size:.85rem;white-space:nowrap;overflow:hidden}
nav a:hover,nav a:focus{text-decoration:underline}
main{padding:1rem 2rem;max-width:60rem;min-width:0}
section{border-top:1px solid #dde1e8;padding:1rem 0}
h3{margin:0;font-size:1rem;overflow-wrap:anywhere}
code,pre{font:13px/1.45 ui-monospace,monospace}
pre{background:#f5f6f8;padding:.7rem;overflow:auto}
table{border-collapse:collapse;width:100%}
td,th{text-align:left;padding:.2rem .8rem .2rem 0;vertical-align:top;border-bottom:1px solid #eceff3}
.m{display:inline-block;min-width:3.6rem;font-weight:600}
@media(max-width:50rem){body{display:block}nav{position:static;width:auto;height:auto}}
@media(prefers-color-scheme:dark){body{background:#14171d;color:#e4e7ec}nav,pre{background:#1d222b}
section,td,th{border-color:#303743}nav h2{color:#9aa3b2}}
"""


def page(document: dict[str, Any]) -> bytes:
    """The whole page."""
    operations = [
        (tag, method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        for tag in operation["tags"]
    ]
    info = document["info"]
    schemas = document["components"]["schemas"]
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{escape(info['title'])} API</title><style>{_STYLE}</style>",
        f'<nav aria-label="Operations">{_navigation(operations)}</nav><main>',
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info['description'])}</p>",
        '<p>The same as data: <a href="/openapi.json">/openapi.json</a></p>',
        *(_section(method, path, operation) for _tag, method, path, operation in operations),
        "<h2>Shapes</h2>",
        *(_shape(name, schema) for name, schema in sorted(schemas.items())),
        "</main></html>",
    ]
    return "".join(parts).encode()


def _navigation(operations: list[tuple[str, str, str, dict[str, Any]]]) -> str:
    parts: list[str] = []
    for tag in dict.fromkeys(operation[0] for operation in operations):
        parts.append(f"<h2>{escape(tag)}</h2>")
        parts += [
            f'<a href="#{_anchor(method, path)}"><span class="m">{method}</span>{escape(path)}</a>'
            for owner, method, path, _operation in operations
            if owner == tag
        ]
    return "".join(parts)


def _section(method: str, path: str, operation: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(each['name'])}</code></td><td>{each['in']}</td>"
        f"<td><code>{escape(json.dumps(each['schema']))}</code></td><td>{escape(each.get('description', ''))}</td></tr>"
        for each in operation["parameters"]
    )
    table = f"<table><tr><th>Parameter</th><th>In</th><th>Form</th><th></th></tr>{rows}</table>" if rows else ""
    body = operation.get("requestBody")
    takes = f"<p>Body: {_reference(body['content']['application/json']['schema'])}</p>" if body else ""
    answers = "".join(
        f"<p>{status}: {_reference(content['schema'])}</p>"
        for status, response in operation["responses"].items()
        for content in response.get("content", {}).values()
    )
    return (
        f'<section id="{_anchor(method, path)}"><h3><span class="m">{method}</span><code>{escape(path)}</code></h3>'
        f"<p>{escape(operation['summary'])}. {escape(operation.get('description', ''))}</p>"
        f"{table}{takes}{answers}<pre>{escape(_curl(method, path, bool(body)))}</pre></section>"
    )


def _shape(name: str, schema: dict[str, Any]) -> str:
    rendered, shown = escape(json.dumps(schema, indent=2)), escape(name)
    return f'<details id="shape-{shown}"><summary><code>{shown}</code></summary><pre>{rendered}</pre></details>'


def _reference(schema: dict[str, Any]) -> str:
    target = schema.get("$ref", "").rpartition("/")[2]
    return (
        f'<a href="#shape-{escape(target)}">{escape(target)}</a>' if target else escape(schema.get("description", ""))
    )


def _curl(method: str, path: str, has_body: bool) -> str:
    verb = "" if method == "GET" else f" -X {method}"
    body = " \\\n  -H 'content-type: application/json' -d '{}'" if has_body else ""
    return f'curl{verb} "$BASE_URL{path}"{body}'


def _anchor(method: str, path: str) -> str:
    return method.lower() + path.replace("/", "-").replace("{", "").replace("}", "")
