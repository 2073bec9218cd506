"""The secrets of one session, as its sandboxes and its turns use them.

Placeholders follow from the session and the variable's name under a key that no sandbox
knows, so nobody outside of the session can write one down, and one that an agent saved
in a file is still good when another runner goes on. Values are asked of the vault when
they are needed, kept for seconds, and never leave this process but through the proxy.
"""

import asyncio
import hashlib
import hmac
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kit.errors import DomainError
from kit.ids import new_id
from kit.rpc.context import CallContext
from kit.telemetry import log, register_secret
from managed_agents.vault.v1.injections_pb2 import (
    INJECTION_TARGET_KIND_EGRESS,
    INJECTION_TARGET_KIND_PROCESS,
    Injection,
    ListInjectionsRequest,
    ResolveInjectionsRequest,
)
from services.worker.runner.secrets.scrubber import Scrubber
from services.worker.sandbox.egress import parse_rule
from services.worker.sandbox.placeholders import Placeholder, SecretsUnavailable
from services.worker.sandbox.replacing import Replacer
from services.worker.sandbox.spellings import spellings

if TYPE_CHECKING:
    from services.worker.sandbox.authority import Authority

ENVIRONMENT_VARIABLE = "environment_variable"
_ASK_SECONDS = 15.0
# How long what the vault said is believed; a rotation is heard of at once.
_LISTED_SECONDS = 60.0
_OPENED_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose secrets they are: a session with its vaults, in the order in which credentials are looked up."""

    workspace_id: str
    session_id: str
    vault_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """What the session is to be told of one credential."""

    vault_id: str
    credential_id: str
    message: str


class SessionSecrets:
    """One session's; a `SandboxSecrets`."""

    def __init__(self, vault: Any, owner: Owner, runner_id: str, key: bytes) -> None:
        """`vault` is the stub of InjectionService."""
        self.owner = owner
        self.scrubber = Scrubber()
        self.echoes = Replacer({})
        self._vault = vault
        self._runner_id = runner_id
        self._key = key
        self._lock = asyncio.Lock()
        self._listed: list[tuple[Placeholder, Injection]] | None = None
        self._listed_until = 0.0
        # By host, port and variable: until when it is believed, and the value, or None for a refusal.
        self._opened: dict[tuple[str, int, str], tuple[float, str | None]] = {}
        self._echoed: dict[bytes, bytes] = {}
        self._problems: dict[str, Problem] = {}
        self._told: set[str] = set()
        self._authority: Authority | None = None

    @property
    def authority(self) -> "Authority":
        """Signs what the session's proxies show; made when first asked for."""
        if self._authority is None:
            from services.worker.sandbox.authority import Authority

            self._authority = Authority()
        return self._authority

    def forget(self) -> None:
        """Ask the vault again: something was rotated, archived or changed."""
        self._listed_until = 0.0
        self._opened.clear()

    async def placeholders(self) -> Sequence[Placeholder]:
        """One for each environment variable of the session's vaults."""
        async with self._lock:
            if self._listed is None or time.monotonic() >= self._listed_until:
                await self._list()
        return [placeholder for placeholder, _ in self._listed or ()]

    async def open(self, host: str, port: int, names: Collection[str]) -> Mapping[str, str]:
        """Values of these variables for a request to this host, as far as it may have them."""
        async with self._lock:
            now = time.monotonic()
            self._opened = {key: kept for key, kept in self._opened.items() if kept[0] > now}
            if missing := [name for name in sorted(names) if (host, port, name) not in self._opened]:
                target = {"target": INJECTION_TARGET_KIND_EGRESS, "host": host, "port": port, "names": missing}
                found = await self._resolve(**target)
                for name in missing:
                    self._opened[host, port, name] = (time.monotonic() + _OPENED_SECONDS, found.get(name))
            opened = {name: self._opened[host, port, name][1] for name in names}
        return {name: value for name, value in opened.items() if value is not None}

    async def open_for_process(self) -> Mapping[str, str]:
        """Values by variable for a process that names no host: only of unrestricted credentials."""
        return await self._resolve(target=INJECTION_TARGET_KIND_PROCESS)

    def note_refusal(self, name: str, host: str) -> None:
        """A placeholder was on its way to a host that is not allowed."""
        self._note(name, f"The credential in {name} was not sent to {host}: its policy does not allow that host.")

    def note_unreachable(self, name: str, hosts: Sequence[str]) -> None:
        """The environment lets the session reach none of these hosts."""
        shown = ", ".join(hosts)
        self._note(name, f"The credential in {name} is for {shown}, which the environment's network does not allow.")

    def begin_turn(self) -> None:
        """What a former turn told is told again."""
        self._told.clear()

    def take_problems(self) -> list[Problem]:
        """What the session was not told in this turn."""
        problems, self._problems = list(self._problems.values()), {}
        return problems

    def _note(self, name: str, message: str) -> None:
        injection = next((each for _, each in self._listed or () if each.name == name), None)
        if injection is not None and injection.credential_id not in self._told:
            self._told.add(injection.credential_id)
            self._problems[injection.credential_id] = Problem(injection.vault_id, injection.credential_id, message)

    async def _list(self) -> None:
        request = ListInjectionsRequest(session_id=self.owner.session_id, vault_ids=self.owner.vault_ids)
        try:
            answer = await self._ask(self._vault.ListInjections, request)
        except SecretsUnavailable:
            # What was there a minute ago serves on; what may be opened is asked for anew each time.
            if self._listed is None:
                raise
            return
        found: dict[str, tuple[Placeholder, Injection]] = {}
        for injection in answer.injections:
            if injection.type == ENVIRONMENT_VARIABLE and injection.name:
                found.setdefault(injection.name, (self._placeholder(injection), injection))
        self._listed = list(found.values())
        self._listed_until = time.monotonic() + _LISTED_SECONDS

    async def _resolve(self, **target: Any) -> Mapping[str, str]:
        request = ResolveInjectionsRequest(session_id=self.owner.session_id, vault_ids=self.owner.vault_ids, **target)
        answer = await self._ask(self._vault.ResolveInjections, request)
        values: dict[str, str] = {}
        for injection in answer.injections:
            if injection.type == ENVIRONMENT_VARIABLE and injection.name and injection.value:
                values.setdefault(injection.name, injection.value)
        self._know(values)
        return values

    def _know(self, values: Mapping[str, str]) -> None:
        """From here on these are taken out of whatever comes back, also once they were rotated."""
        known = len(self._echoed)
        for name, value in values.items():
            register_secret(value)
            for spelling in spellings(value):
                self._echoed.setdefault(spelling, self._text_for(name).encode())
        if len(self._echoed) != known:
            self.echoes = Replacer(self._echoed)
            self.scrubber.add({value: name for name, value in values.items()})

    async def _ask(self, method: Any, request: Any) -> Any:
        context = CallContext(self.owner.workspace_id, new_id("req"), self._runner_id)
        try:
            return await method(request, context=context, timeout_seconds=_ASK_SECONDS, retry=True)
        except DomainError as failed:
            log.warning("the vault could not be asked", session_id=self.owner.session_id, error=failed.reason)
            raise SecretsUnavailable("The session's credentials can't be asked for now. Try again.") from failed

    def _placeholder(self, injection: Injection) -> Placeholder:
        rules = (parse_rule(host) for host in injection.allowed_hosts)
        return Placeholder(
            injection.name,
            self._text_for(injection.name),
            unrestricted=injection.unrestricted,
            rules=tuple(rule for rule in rules if rule is not None),
            in_headers=injection.in_headers,
            in_body=injection.in_body,
        )

    def _text_for(self, name: str) -> str:
        told = f"placeholder\0{self.owner.session_id}\0{name}"
        return f"vault_placeholder_{hmac.new(self._key, told.encode(), hashlib.sha256).hexdigest()[:40]}"
