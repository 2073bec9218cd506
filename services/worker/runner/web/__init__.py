"""The web tools: `web_fetch` behind its guard chain, and `web_search` over a provider that the operator names.

They run in the runner, not in a session's sandbox, so nothing that a model or an agent definition says may widen what
they reach: what could is set where `Fetcher` (fetch.py) and `Searcher` (search.py) are made, and nowhere else.
"""

from services.worker.runner.web.tools import WEB_TOOLS, Fetches, Searches, WebTools

__all__ = ["WEB_TOOLS", "Fetches", "Searches", "WebTools"]
