"""The six tools bound to one session: its files, its shell, its spill folder.

`Toolbox.run` is the whole of what a caller needs: it checks the input, runs the
tool, and answers with an outcome whatever happens, the tool's own bugs included.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

from services.worker.tools import bash, edit, glob, grep, read, write
from services.worker.tools.files import FileView
from services.worker.tools.outcome import ToolFailed, ToolInputInvalid, ToolOutcome
from services.worker.tools.overflow import OpenSpill, Scrub, limit_text
from services.worker.tools.regex import HAS_LINEAR_ENGINE
from services.worker.tools.shell import PersistentShell, Watch
from services.worker.tools.spec import ToolSpec, check

log = logging.getLogger(__name__)

_MODULES: dict[str, ModuleType] = {module.SPEC.name: module for module in (bash, read, write, edit, glob, grep)}
TOOL_SPECS: dict[str, ToolSpec] = {name: module.SPEC for name, module in _MODULES.items()}
# Of its own, so that long searches never keep name look-ups or other work of the process waiting.
_threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="tools")
_WRITERS = frozenset({"write", "edit"})


def validate_input(name: str, value: object) -> dict[str, Any]:
    """Return the tool's input in its one spelling, or raise ToolInputInvalid."""
    spec = TOOL_SPECS.get(name)
    if spec is None:
        raise ToolInputInvalid(name, None, f"there is no such tool; known are {', '.join(TOOL_SPECS)}")
    return check(spec, value)


class Toolbox:
    """Runs tools for one session.

    `open_spill` makes a spill file with the given id in its name; `watch` may
    end a running command; `refuse_writes` says why nothing may be written now;
    `scrub` takes out of every output what must not be shown, spill files included.
    """

    def __init__(
        self,
        *,
        files: FileView,
        shell: PersistentShell,
        new_spill: Callable[[str], OpenSpill] | None = None,
        watch: Watch | None = None,
        refuse_writes: Callable[[], str | None] = lambda: None,
        scrub: Scrub | None = None,
    ) -> None:
        self._scrub = scrub
        self._files = files
        self._shell = shell
        self._new_spill = new_spill
        self._watch = watch
        self._refuse_writes = refuse_writes

    async def run(self, name: str, value: object) -> ToolOutcome:
        """Run one tool; failures come back as outcomes with `is_error`."""
        try:
            arguments = validate_input(name, value)
            if name in _WRITERS and (refusal := self._refuse_writes()):
                raise ToolFailed(refusal)
            if name == "bash":
                return await bash.run(
                    self._shell, arguments, open_spill=self._spill(), watch=self._watch, scrub=self._scrub
                )
            if name == "grep" and not HAS_LINEAR_ENGINE:
                text = await grep.run_killable(self._files, arguments)
            else:
                loop = asyncio.get_running_loop()
                text = await loop.run_in_executor(_threads, _MODULES[name].run, self._files, arguments)
        except ToolFailed as error:
            return self.limit(str(error), is_error=True)
        except Exception:
            reference = secrets.token_hex(4)
            log.exception("tool %s failed unexpectedly (%s)", name, reference)
            return ToolOutcome(f"{name} failed inside the platform (reference {reference}).", is_error=True)
        return self.limit(text)

    def limit(self, text: str, *, is_error: bool = False) -> ToolOutcome:
        """Apply the overflow contract to text of any origin."""
        if self._scrub is not None:
            text = self._scrub.text(text)
        return limit_text(text, self._spill(), is_error=is_error)

    def _spill(self) -> OpenSpill | None:
        return self._new_spill(secrets.token_hex(5)) if self._new_spill else None
