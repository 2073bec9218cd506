"""Whether the model vendor that the environment names is there and takes the key. The key itself is never shown."""

from typing import Any

from cli import config
from cli.finding import Finding, failed, ok, warning

_SECONDS = 5.0


async def check_model(runtime: dict[str, Any] | None) -> tuple[Finding, str | None]:
    """The model vendor that the environment names, and what time it says it is."""
    model = config.model_vendor()
    vendor, base, key = model["vendor"], model["base_url"].rstrip("/"), model["api_key"]
    saved = next(iter((runtime or {}).get("models") or []), {}).get("provider", vendor)
    if saved != vendor:
        # It was started with other variables, or settings were saved, which win over variables; its key is its own.
        return ok("model", f"{saved}, as the running platform tells (not tried)"), None
    if vendor == "demo":
        advice = (
            "Set ANTHROPIC_API_KEY or OPENAI_API_KEY, or MANAGED_AGENTS_MODEL_VENDOR, MANAGED_AGENTS_MODEL_BASE_URL"
            " and MANAGED_AGENTS_MODEL_API_KEY."
        )
        return warning("model", "none configured: the built-in demo model answers, by rules", advice), None
    if vendor not in ("anthropic", "openai"):
        return failed("model", f"unknown vendor {vendor!r}", "Use anthropic, openai or demo."), None
    if vendor == "anthropic":
        url = f"{base}/v1/models?limit=1"
        headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
    else:
        url, headers = f"{base}/models", {"authorization": f"Bearer {key}"}
    return await _ask_vendor(vendor, url, headers, has_key=bool(key))


async def _ask_vendor(vendor: str, url: str, headers: dict[str, str], *, has_key: bool) -> tuple[Finding, str | None]:
    import httpx2

    shown = url.partition("?")[0]
    try:
        async with httpx2.AsyncClient(timeout=_SECONDS) as client:
            answer = await client.get(url, headers=headers)
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        advice = "Check the network, the proxy variables and MANAGED_AGENTS_MODEL_BASE_URL."
        return warning("model", f"{vendor}: {shown} can't be reached ({type(error).__name__})", advice), None
    clock = answer.headers.get("date")
    if answer.status_code in (401, 403):
        told = "refuses the key" if has_key else "wants a key, and none is set"
        return warning("model", f"{vendor}: {shown} {told}", "Set a valid key for this vendor."), clock
    if answer.status_code >= 500 or answer.status_code == 429:
        advice = "The vendor has a problem or a limit; turns are tried again by themselves."
        return warning("model", f"{vendor}: {shown} answers {answer.status_code}", advice), clock
    if answer.status_code >= 400:
        # Many compatible servers list no models, and work.
        return ok("model", f"{vendor}: {shown} is reachable (answers {answer.status_code} to a listing)"), clock
    return ok("model", f"{vendor}: {shown} answers"), clock
