"""What a worker does with an item of work, in as few lines as a test of the other side needs."""

import asyncio
import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


async def perform(kind: str, payload: Mapping[str, Any], folder: Path) -> tuple[Any, bool]:
    """The result of an item in a folder, and whether it failed."""
    if kind == "exec":
        return await _exec(payload, folder), False
    try:
        return _file_work(kind, folder / payload["path"], payload), False
    except OSError as error:
        return {"error": {"code": "input_output_error", "message": f"{payload['path']}: {error.strerror}"}}, True


async def _exec(payload: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        payload["command"],
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    timed_out = False
    try:
        async with asyncio.timeout(payload.get("timeout_ms", 120_000) / 1000):
            out, err = await process.communicate()
    except TimeoutError:
        timed_out, out, err = True, b"", b""
    finally:
        if process.returncode is None:
            os.killpg(process.pid, 9)
            await process.wait()
    code = 124 if timed_out else process.returncode
    return {
        "stdout": out.decode("utf-8", "replace"),
        "stderr": err.decode("utf-8", "replace"),
        "exitCode": code,
        "timedOut": timed_out,
    }


def _file_work(kind: str, path: Path, payload: Mapping[str, Any]) -> dict[str, Any]:
    if kind == "list":
        return {"entries": sorted(each.name for each in path.iterdir())}
    if kind == "read":
        data = path.read_bytes()
        try:
            return {"content": data.decode(), "encoding": "utf-8"}
        except UnicodeDecodeError:
            return {"content": base64.b64encode(data).decode(), "encoding": "base64"}
    content = payload["content"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(base64.b64decode(content) if payload.get("encoding") == "base64" else content.encode())
    return {}
