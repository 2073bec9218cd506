"""An MCP server as a program: a small one that any Python runs, and a real one where the package is at hand."""

# Speaks the protocol's handshake by hand, since a sandbox sees no packages of ours.
SMALL = r"""
import json, os, sys, time
TOOLS = ("variable", "write", "keep", "die", "connect", "sleep")
print("this line is no message", flush=True)
print("starting", file=sys.stderr, flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, params = message["method"], message.get("params") or {}
    result, error = {}, None
    if method == "initialize":
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "small", "version": "1"}}
    elif method == "tools/list":
        schema = {"type": "object"}
        result = {"tools": [{"name": name, "description": name, "inputSchema": schema} for name in TOOLS]}
    elif method == "tools/call":
        name, given = params["name"], params.get("arguments") or {}
        text = name
        if name == "variable":
            text = os.environ.get(given["name"], "unset")
        elif name == "write":
            with open(given["path"], "w") as stream:
                stream.write("from the server")
        elif name == "keep":
            with open(given["path"], "w") as stream:
                stream.write(os.environ.get(given["name"], "unset"))
        elif name == "die":
            print("I die of", given["cause"], file=sys.stderr, flush=True)
            os._exit(3)
        elif name == "sleep":
            time.sleep(60)
        elif name == "connect":
            import socket
            try:
                socket.create_connection((given["host"], given["port"]), 2).close()
                text = "connected"
            except OSError as problem:
                text = f"not connected: {type(problem).__name__}"
        result = {"content": [{"type": "text", "text": text}]}
    else:
        error = {"code": -32601, "message": "Method not found"}
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    answer |= {"error": error} if error else {"result": result}
    print(json.dumps(answer), flush=True)
"""

REAL = """
import os
from mcp.server.mcpserver import MCPServer

server = MCPServer("real", log_level="CRITICAL")


@server.tool()
def variable(name: str) -> str:
    \"\"\"Reads a variable of the environment.\"\"\"
    return os.environ.get(name, "unset")


server.run("stdio")
"""
