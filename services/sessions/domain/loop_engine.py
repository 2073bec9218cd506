"""Which engine runs a session's turns: who may choose it, what is refused, and what the session is frozen on.

A session's own choice goes before that of its agent, and that before the settings' default. Options that the choice
leaves out come from the next level that chose the same engine. What comes out is stored with the session, so later
changes of agent and settings don't reach it. An engine that this build lacks is refused; none is ever put in its place.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import orjson

from kit import http_engine
from kit.http_engine import HTTP_ENGINE
from services.sessions.domain.session_errors import (
    BudgetModelWithoutListPrice,
    InvalidRequest,
    LoopEngineInvalid,
    LoopEngineNotSupported,
    UnsupportedCapability,
)

BUILTIN_ENGINE = "builtin"
ENGINE, OPTIONS = "loop_engine", "loop_engine_options"
_AVAILABLE = (BUILTIN_ENGINE, HTTP_ENGINE)
# Engines that the contract knows, with why this build can't run them.
UNAVAILABLE_ENGINES = {
    "pi": "the adapter for a locally installed engine is not part of this build",
    "harness": "it has no executable adapter",
    "codex": "it has no executable adapter",
    "claude": "it has no executable adapter",
}


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine that somebody chose, with the options that came with it."""

    engine: str = BUILTIN_ENGINE
    options: Mapping[str, Any] = field(default_factory=dict)

    def options_json(self) -> str | None:
        """The options as they are stored; None for an engine without."""
        return orjson.dumps(dict(self.options)).decode() if self.engine == HTTP_ENGINE else None

    def to_fields(self) -> dict[str, Any]:
        """The choice as fields of an agent's document."""
        return {ENGINE: self.engine} | ({OPTIONS: dict(self.options)} if self.engine == HTTP_ENGINE else {})


BUILTIN = EngineChoice()


def read_choice(body: Mapping[str, Any], stored: EngineChoice | None = None) -> EngineChoice | None:
    """The choice that a body's `loop_engine` and `loop_engine_options` make; None where it makes none.

    `stored` is what the body replaces: its options stay where the body names the same engine without any.
    """
    engine, options, field_name = body.get(ENGINE), body.get(OPTIONS), OPTIONS
    if isinstance(engine, dict):
        engine, inner = _spelled_out(engine)
        if inner is not None:
            if options is not None:
                raise InvalidRequest("loop_engine_options and loop_engine.options can't both be sent.", field=OPTIONS)
            options, field_name = inner, f"{ENGINE}.options"
    if engine is None:
        if options in (None, {}):
            return None
        if stored is None or ENGINE in body:
            raise InvalidRequest("loop_engine_options must come with the loop_engine that they are for.", field=OPTIONS)
        engine = stored.engine
    return EngineChoice(_engine(engine), _options(engine, options, field_name, stored))


def choice_of(document: Mapping[str, Any]) -> EngineChoice | None:
    """The choice that an agent's stored document holds."""
    engine = document.get(ENGINE)
    return None if engine is None else EngineChoice(engine, document.get(OPTIONS) or {})


def settings_choice(provider: str, options: Mapping[str, Any]) -> EngineChoice:
    """What the settings choose, as vault tells it; an engine that this build lacks is refused as any is."""
    return EngineChoice(_engine(provider), options)


def frozen(own: EngineChoice | None, agents: EngineChoice | None, default: EngineChoice) -> EngineChoice:
    """The engine of a new session, with everything that it needs."""
    levels = [each for each in (own, agents, default) if each is not None]
    engine, options = levels[0].engine, dict(levels[0].options)
    if engine != HTTP_ENGINE:
        return EngineChoice(engine)
    for each in levels[1:]:
        if each.engine == engine:
            options = http_engine.joined_options(options, each.options)
    if "url" not in options:
        raise InvalidRequest(
            "loop_engine_options.url is required for http, and neither the agent nor the settings name one.",
            field=f"{OPTIONS}.url",
        )
    return EngineChoice(engine, http_engine.joined_options(options, {}))


def refuse_budget(engine: EngineChoice) -> None:
    """A ceiling is no ceiling where an outside agent calls models of its own: nothing tells what they cost."""
    if engine.engine == HTTP_ENGINE:
        raise BudgetModelWithoutListPrice(
            "budget can't be enforced: the session's loop engine is http, and what the models of an outside agent cost"
            " is not known here.",
            field="budget",
            details='{"error_code":"model_not_budgetable"}',
        )


def refuse_other_engines(engine: EngineChoice, document: Mapping[str, Any]) -> None:
    """Threads run on the engine of their session, so an agent of the roster that chose another one is refused."""
    for at, member in enumerate((document.get("multiagent") or {}).get("agents") or ()):
        chosen = choice_of(member)
        if chosen is not None and (chosen.engine != engine.engine or frozen(chosen, None, engine) != engine):
            raise UnsupportedCapability(
                f"agent.multiagent.agents.{at} runs on the loop engine {chosen.engine} by its own definition, and a"
                f" session's threads all run on that of the session, which is {engine.engine} here.",
                field=f"agent.multiagent.agents.{at}",
                capability="multiagent",
            )


def public_fields(document: dict[str, Any]) -> dict[str, Any]:
    """A document with its engine's options as readers see them; the same object where there are none."""
    options = document.get(OPTIONS)
    return document | {OPTIONS: http_engine.masked_options(options)} if options else document


def _spelled_out(named: Mapping[str, Any]) -> tuple[Any, Any]:
    """Engine and options of `{provider, options?}`."""
    if unknown := sorted(str(name)[:64] for name in named.keys() - {"provider", "options"}):
        raise LoopEngineInvalid(
            f"loop_engine.{unknown[0]} is not known: loop_engine is {_told()}, or an object of provider and options.",
            field=f"{ENGINE}.{unknown[0]}",
        )
    if named.get("provider") is None:
        raise LoopEngineInvalid(f"loop_engine.provider must be {_told()}.", field=f"{ENGINE}.provider")
    return named["provider"], named.get("options")


def _engine(requested: Any) -> str:
    if isinstance(requested, str) and requested in UNAVAILABLE_ENGINES:
        reason = UNAVAILABLE_ENGINES[requested]
        raise LoopEngineNotSupported(
            f"loop_engine {requested} can't be used: {reason}. Available: {', '.join(_AVAILABLE)}.",
            field=ENGINE,
        )
    if not isinstance(requested, str) or requested not in _AVAILABLE:
        raise LoopEngineInvalid(f"loop_engine must be {_told()}, or left out.", field=ENGINE)
    return requested


def _options(engine: str, options: Any, field_name: str, stored: EngineChoice | None) -> dict[str, Any]:
    known = dict(stored.options) if stored is not None and stored.engine == engine else {}
    if engine == BUILTIN_ENGINE:
        if options not in (None, {}):
            raise InvalidRequest(f"{field_name} must be empty: builtin takes none.", field=field_name)
        return {}
    if options is None:
        return known

    def refuse(path: str, problem: str) -> NoReturn:
        named = f"{field_name}.{path}" if path else field_name
        raise InvalidRequest(f"{named} {problem}.", field=named)

    return http_engine.read_options(options, refuse, known)


def _told() -> str:
    return " or ".join(_AVAILABLE)
