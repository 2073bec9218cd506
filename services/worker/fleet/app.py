"""Puts a worker together: options, platform, protocol, signals. `run` is the whole program.

Exit codes: 0 stopped when asked or done with `--once`, 1 the platform can't be reached with `--once`, 2 an option is
unusable, 3 the platform refuses this key or environment. Only the code 1 is worth a new start by a service manager.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import socket
import sys
import time
from collections.abc import Mapping

from kit.redaction import register_secret
from services.worker.fleet.backoff import Backoff
from services.worker.fleet.errors import AccessRefused, OptionUnusable, Refused, Unreachable
from services.worker.fleet.metrics import Metrics, MetricsServer
from services.worker.fleet.options import KEY_VARIABLE, Options
from services.worker.fleet.platform import Access, Platform, segment, settled, tls_context
from services.worker.fleet.pool import Pool
from services.worker.fleet.proxies import proxy_for
from services.worker.fleet.reporter import LogHandler, Reporter, Seldom
from services.worker.fleet.stopping import Stopping

STOPPED, UNREACHABLE, UNUSABLE, REFUSED = 0, 1, 2, 3
TOOL, SESSION = "tool", "session"
_PR_SET_DUMPABLE = 4
_STATUS_SECONDS = 1.0


def run(options: Options, key: str | None, environment: Mapping[str, str]) -> int:
    """Work until asked to stop; the exit code."""
    hide(key)
    register_secret(key)
    reporter = Reporter(as_json=options.as_json, level="debug" if options.verbose else "info")
    handler = LogHandler(reporter)
    logging.getLogger().addHandler(handler)
    import uvloop

    try:
        return uvloop.run(_live(options, key, environment, reporter))
    except OptionUnusable as unusable:
        reporter.error(str(unusable))
        return UNUSABLE
    except AccessRefused as refused:
        reporter.error("the platform refuses this worker", reason=str(refused))
        return REFUSED
    except Unreachable as away:
        reporter.error("the platform cannot be reached", reason=str(away))
        return UNREACHABLE
    finally:
        reporter.close()
        logging.getLogger().removeHandler(handler)


def hide(key: str | None) -> None:
    """Take the key out of what other processes of this user can read of this one: its environment and its memory."""
    if key is None or sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.getenv.restype = ctypes.c_void_p
        name = os.fsencode(KEY_VARIABLE)
        if (at := libc.getenv(name)) is not None:
            ctypes.memset(at, ord("*"), len(ctypes.string_at(at)))
        os.environ.pop(KEY_VARIABLE, None)
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


async def _live(options: Options, key: str | None, environment: Mapping[str, str], reporter: Reporter) -> int:
    with Stopping(reporter.info) as stopping:
        return await work(options, key, environment, reporter=reporter, stopping=stopping, metrics=Metrics())


async def work(
    options: Options,
    key: str | None,
    environment: Mapping[str, str],
    *,
    reporter: Reporter,
    stopping: Stopping,
    metrics: Metrics,
) -> int:
    """The worker without its process. Raises OptionUnusable, AccessRefused, and Unreachable with `--once`."""
    if options.worker_id == "worker_1":
        reporter.warning("every worker that is process 1 of a container is called worker_1; name it with --worker-id")
    try:
        tls = tls_context(options.ca_file)
    except OSError as error:
        raise OptionUnusable(f"--ca-file: {options.ca_file} holds no certificates: {error}.") from None
    access = Access(key=key, proxy=proxy_for(options.url, environment), tls=tls)
    # Who is told to ask seldom is connected for as long as it asks.
    metrics.connected_seconds = max(metrics.connected_seconds, 3 * options.interval_seconds)
    server = await _metrics_server(options, metrics, reporter)
    try:
        async with Platform(options.url, access) as platform:
            protocol = await _protocol(options, platform, stopping, metrics, reporter)
            if protocol is not None:
                await _serve(protocol, options, key, environment, platform, stopping, metrics, reporter)
    finally:
        if server is not None:
            await server.stop()
    reporter.info("stopped", completed=metrics.count("completed"), failed=metrics.count("failed"))
    return STOPPED


async def _serve(
    protocol: str,
    options: Options,
    key: str | None,
    environment: Mapping[str, str],
    platform: Platform,
    stopping: Stopping,
    metrics: Metrics,
    reporter: Reporter,
) -> None:
    # Only the one that is spoken is loaded.
    if protocol == TOOL:
        from services.worker.fleet.tool.serving import ToolWorker as Worker
    else:
        from services.worker.fleet.session.serving import SessionWorker as Worker
    worker = await Worker.open(options, key, environment, platform, stopping, metrics, reporter)
    drawing = asyncio.create_task(_draw(options, protocol, metrics, reporter))
    try:
        reporter.info(
            "ready",
            worker=options.worker_id,
            platform=options.url,
            environment=options.environment_id or ("of the key" if key else "any"),
            protocol=protocol,
            workdir=str(options.workdir),
            sandbox=worker.sandbox,
            concurrency=options.concurrency,
        )
        await Pool(
            options, take=worker.take, serve=worker.serve, stopping=stopping, metrics=metrics, reporter=reporter
        ).run()
    finally:
        await settled(drawing)
        await worker.aclose()


async def _protocol(
    options: Options, platform: Platform, stopping: Stopping, metrics: Metrics, reporter: Reporter
) -> str | None:
    """Which protocol the environment speaks; None where asked to stop before it could be told.

    Without an id it is the tool protocol, whose claims the key alone can scope.
    """
    if options.environment_id is None:
        return TOOL
    backoff, seldom = Backoff(), Seldom()
    while True:
        try:
            answer = await platform.call("GET", f"/v1/environments/{segment(options.environment_id)}")
            metrics.heard()
            return _named_protocol(options.environment_id, answer)
        except Refused as refused:
            raise AccessRefused.of(refused) from refused
        except Unreachable as away:
            if options.once:
                raise
            metrics.calls_failed += 1
            wait = backoff.next_seconds(away.retry_after_seconds)
            if seldom.now(str(away)):
                reporter.warning("waiting for the platform", reason=str(away), seconds=round(wait, 1))
            if await stopping.sleep(wait):
                return None


def _named_protocol(environment_id: str, answer: object) -> str:
    document = answer if isinstance(answer, dict) else {}
    protocol = document.get("worker_protocol")
    if protocol in (TOOL, SESSION):
        return str(protocol)
    config = document.get("config")
    kind = config.get("type") if isinstance(config, dict) else ""
    raise AccessRefused(
        f"{environment_id} is not a self-hosted environment but {document.get('hosting_type') or kind}; "
        "its work is done by the platform itself"
    )


async def _metrics_server(options: Options, metrics: Metrics, reporter: Reporter) -> MetricsServer | None:
    if options.metrics_port is None:
        return None
    server = MetricsServer(metrics, options.metrics_host, options.metrics_port)
    try:
        await server.start()
    except (OSError, socket.gaierror) as error:
        raise OptionUnusable(
            f"--metrics-port: {options.metrics_host}:{options.metrics_port} cannot be listened on: {error.strerror}."
        ) from None
    reporter.info("metrics are served", url=f"http://{options.metrics_host}:{server.port}/metrics")
    return server


async def _draw(options: Options, protocol: str, metrics: Metrics, reporter: Reporter) -> None:
    """Keep the last line of a terminal true."""
    if not reporter.draws:
        return
    began = time.monotonic()
    while True:
        minutes, seconds = divmod(int(time.monotonic() - began), 60)
        state = f"{metrics.running} running" if metrics.running else "waiting for work"
        link = "" if metrics.connected else " · no connection"
        done = f"{metrics.count('completed')} done · {metrics.count('failed')} failed"
        reporter.status(f"{options.worker_id} · {protocol} · {state}{link} · {done} · {minutes}:{seconds:02d}")
        await asyncio.sleep(_STATUS_SECONDS)
