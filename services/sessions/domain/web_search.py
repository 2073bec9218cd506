"""Whether an agent may enable `web_search`: only where the operator has named a provider. Pure.

`web_fetch` needs nobody and may always be enabled. An entry that is not enabled is a declaration for later, and taken.
"""

from typing import Any

from services.sessions.domain.session_errors import UnsupportedCapability
from services.sessions.domain.tools import BUILT_IN_TOOLSET

SEARCH = "web_search"


def refuse_search(tools: list[dict[str, Any]], *, field: str = "tools", given: Any = None) -> None:
    """Refuses an entry that enables the search. `given` are the tools as the caller counted them."""
    for at, tool in enumerate(tools):
        if tool["type"] != BUILT_IN_TOOLSET:
            continue
        for index, config in enumerate(tool["configs"]):
            if config["name"] == SEARCH and config["enabled"]:
                path = f"{field}.{_position(given, at)}.configs.{index}"
                raise UnsupportedCapability(
                    f"{path} enables {SEARCH}, which can't run here: no search provider is configured. Leave the entry"
                    " out, or send it with enabled: false.",
                    field=f"{path}.enabled",
                    capability=SEARCH,
                )


def refuse_search_in_session(document: dict[str, Any]) -> None:
    """The same for the agent of a session and those of its roster."""
    refuse_search(document.get("tools") or [], field="agent.tools")
    roster = (document.get("multiagent") or {}).get("agents") or []
    for at, member in enumerate(roster):
        refuse_search(member.get("tools") or [], field=f"agent.multiagent.agents.{at}.tools")


def _position(given: Any, at: int) -> int:
    """Where the toolset stands in what the caller sent: groups of custom tools are stored one by one."""
    if isinstance(given, list):
        for index, entry in enumerate(given):
            if isinstance(entry, dict) and entry.get("type") == BUILT_IN_TOOLSET:
                return index
    return at
