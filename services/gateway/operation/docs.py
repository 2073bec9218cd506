"""The reference page at `/docs`: the OpenAPI document as one page that needs nothing else.

It loads no script and no style from anywhere, so it works on a machine without a way
out and shows what this very process serves.
"""

from __future__ import annotations

import json
import re
from html import escape
from typing import Any

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:0;color:#1d2330;background:#fff;display:flex}
nav{position:sticky;top:0;height:100vh;overflow:auto;width:19rem;flex:none;padding:1rem;background:#f5f6f8}
nav h2{font-size:.8rem;margin:1rem 0 .2rem;text-transform:uppercase;color:#5b6474}
nav a{display:grid;grid-template-columns:4rem 1fr;gap:.3rem;padding:.1rem 0;color:inherit;text-decoration:none}
nav a{font-size:.85rem;overflow-wrap:anywhere}
nav a:hover,nav a:focus{text-decoration:underline}
:focus-visible{outline:2px solid #2563eb;outline-offset:2px}
.skip{position:absolute;left:-100rem;padding:.5rem 1rem;background:#fff;color:#1d2330;z-index:1}
.skip:focus{left:.5rem;top:.5rem}
main{padding:1rem 2rem;max-width:60rem;min-width:0}
section,details{scroll-margin-top:1rem}
section{border-top:1px solid #dde1e8;padding:1rem 0}
h3{margin:0;font-size:1rem;overflow-wrap:anywhere}
code,pre{font:13px/1.45 ui-monospace,monospace}
pre{background:#f5f6f8;padding:.7rem;overflow:auto;white-space:pre-wrap;overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%}
td,th{text-align:left;padding:.2rem .8rem .2rem 0;vertical-align:top;border-bottom:1px solid #eceff3}
td:nth-child(3){overflow-wrap:anywhere}
.m{display:inline-block;min-width:4rem;margin-right:.3rem;font-weight:600}
nav .m{margin:0}
@media(max-width:50rem){body{display:block}nav{position:static;width:auto;height:auto}}
@media(prefers-color-scheme:dark){body{background:#14171d;color:#e4e7ec}nav,pre{background:#1d222b}
section,td,th{border-color:#303743}nav h2{color:#9aa3b2}
a{color:#8ab4f8}.skip{background:#1d222b;color:#e4e7ec}:focus-visible{outline-color:#8ab4f8}}
"""
_CODE = re.compile(r"`([^`]+)`")
_PARAMETER = re.compile(r"\{(\w+)\}")


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
        '<a class="skip" href="#content">Skip to the reference</a>',
        f'<nav aria-label="Operations">{_navigation(operations)}</nav><main id="content" tabindex="-1">',
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{_prose(info['description'])}</p>",
        '<p>The same as data: <a href="/openapi.json">/openapi.json</a>. In the samples <code>BASE_URL</code> is the'
        " address of this page without its path.</p>",
        *(_section(method, path, operation, schemas) for _tag, method, path, operation in operations),
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
            f'<a href="#{_anchor(method, path)}"><span class="m">{method}</span><span>{_breakable(path)}</span></a>'
            for owner, method, path, _operation in operations
            if owner == tag
        ]
    return "".join(parts)


def _section(method: str, path: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(each['name'])}</code></td><td>{each['in']}</td>"
        f"<td><code>{escape(json.dumps(each['schema']))}</code></td><td>{_prose(each.get('description', ''))}</td></tr>"
        for each in operation["parameters"]
    )
    table = f"<table><tr><th>Parameter</th><th>In</th><th>Form</th><th>Meaning</th></tr>{rows}</table>" if rows else ""
    body = operation.get("requestBody")
    schema = body["content"]["application/json"]["schema"] if body else None
    takes = f"<p>Body: {_reference(schema)}</p>" if schema else ""
    sample = schemas[_target(schema)]["examples"][0] if schema else None
    answers = "".join(
        f"<p>{status}: {_reference(content['schema'])}</p>"
        for status, response in operation["responses"].items()
        for content in response.get("content", {}).values()
    )
    return (
        f'<section id="{_anchor(method, path)}"><h3><span class="m">{method}</span><code>{escape(path)}</code></h3>'
        f"<p>{_prose(operation['summary'])}. {_prose(operation.get('description', ''))}</p>"
        f'{table}{takes}{answers}<pre tabindex="0" aria-label="Sample">{escape(_curl(method, path, sample))}</pre>'
        "</section>"
    )


def _shape(name: str, schema: dict[str, Any]) -> str:
    rendered, shown = escape(json.dumps(schema, indent=2)), escape(name)
    # A link to what is inside opens it, so the id is there.
    content = f'<pre id="shape-{shown}" tabindex="0">{rendered}</pre>'
    return f"<details><summary><code>{shown}</code></summary>{content}</details>"


def _reference(schema: dict[str, Any]) -> str:
    target = _target(schema)
    return (
        f'<a href="#shape-{escape(target)}">{escape(target)}</a>' if target else _prose(schema.get("description", ""))
    )


def _target(schema: dict[str, Any]) -> str:
    return schema.get("$ref", "").rpartition("/")[2]


def _curl(method: str, path: str, body: Any) -> str:
    """A command that works once the names in capitals are filled in."""
    verb = "" if method == "GET" else f" -X {method}"
    address = _PARAMETER.sub(lambda found: found[1].upper(), path)
    # In quotes of a shell, a quote is written by leaving them for it.
    sent = json.dumps(body, ensure_ascii=False).replace("'", "'\\''")
    data = f" \\\n  -H 'content-type: application/json' \\\n  -d '{sent}'" if body is not None else ""
    return f'curl{verb} "$BASE_URL{address}"{data}'


def _prose(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", escape(text))


def _breakable(path: str) -> str:
    """A path that may go on in the next line after any of its slashes."""
    return escape(path).replace("/", "/<wbr>")


def _anchor(method: str, path: str) -> str:
    return method.lower() + path.replace("/", "-").replace("{", "").replace("}", "")
