"""Refusals on sessions and on the events that clients send to them.

Each class stands for one reason of `managed_agents.errors.v1`; the base class picks
the canonical code. A refusal is raised before anything is written, so a caller that
gets one can correct the request and send it again.
"""

from kit.errors import FailedPrecondition, InvalidArgument, NotFound, PermissionDenied


class InvalidRequest(InvalidArgument):
    """A field has a wrong type, form, size or value."""

    reason = "INVALID_REQUEST"


class UnknownField(InvalidArgument):
    """The body carries a field that nothing would act on."""

    reason = "UNKNOWN_FIELD"


class UnsupportedCapability(InvalidArgument):
    """What was asked for can't be done by this build."""

    reason = "UNSUPPORTED_CAPABILITY"


class WorkerEventRefused(PermissionDenied):
    """A worker sent something that only people and their programs send."""

    reason = "WORKER_EVENT_REFUSED"


class ThreadNotFound(NotFound):
    """The session has no such thread."""

    reason = "THREAD_NOT_FOUND"


class SessionNotFound(NotFound):
    """The workspace has no such session, or it was deleted."""

    reason = "SESSION_NOT_FOUND"


class SessionEnded(FailedPrecondition):
    """The session is archived or terminated and takes nothing more."""

    reason = "SESSION_ENDED"


class SessionRunning(FailedPrecondition):
    """A turn is in progress; it has to be interrupted first."""

    reason = "SESSION_RUNNING"


class LoopEngineNotSupported(InvalidArgument):
    """The loop engine is known, but this build can't run it."""

    reason = "LOOP_ENGINE_NOT_SUPPORTED"


class LoopEngineInvalid(InvalidArgument):
    """The loop engine is not known."""

    reason = "LOOP_ENGINE_INVALID"


class SandboxProviderNotRegistered(InvalidArgument):
    """The environment asks for a sandbox backend that this build does not have."""

    reason = "SANDBOX_PROVIDER_NOT_REGISTERED"


class InvalidInitialEvents(InvalidArgument):
    """`initial_events` is malformed."""

    reason = "INVALID_INITIAL_EVENTS"


class TooManyInitialEvents(InvalidArgument):
    """`initial_events` is longer than a session may start with."""

    reason = "TOO_MANY_INITIAL_EVENTS"


class InvalidInitialEventType(InvalidArgument):
    """An event of this type can't start a session."""

    reason = "INVALID_INITIAL_EVENT_TYPE"


class InvalidEventType(InvalidArgument):
    """Clients can't append an event of this type here."""

    reason = "INVALID_EVENT_TYPE"


class InvalidSystemMessage(InvalidArgument):
    """A system.message stands where it isn't taken."""

    reason = "INVALID_SYSTEM_MESSAGE"


class InvalidDefineOutcome(InvalidArgument):
    """A user.define_outcome of a live session is malformed."""

    reason = "INVALID_DEFINE_OUTCOME"


class OutcomeGraderUnavailable(InvalidArgument):
    """No grader is configured, so an outcome could never be measured."""

    reason = "OUTCOME_GRADER_UNAVAILABLE"


class OutcomeActive(FailedPrecondition):
    """The session works towards an outcome, and takes one at a time."""

    reason = "OUTCOME_ACTIVE"


class BudgetInvalidShape(InvalidArgument):
    """`budget` is not a limit object."""

    reason = "BUDGET_INVALID_SHAPE"


class BudgetInvalidAmount(InvalidArgument):
    """The amount is not a positive whole number of cents in a string."""

    reason = "BUDGET_INVALID_AMOUNT"


class BudgetInvalidCurrency(InvalidArgument):
    """The currency is not USD."""

    reason = "BUDGET_INVALID_CURRENCY"


class BudgetModelWithoutListPrice(InvalidArgument):
    """The session's model has no list price to meter it by."""

    reason = "BUDGET_MODEL_WITHOUT_LIST_PRICE"


class BudgetCreateOnly(FailedPrecondition):
    """A session that was created without a budget never gets one."""

    reason = "BUDGET_CREATE_ONLY"


class BudgetNotRaised(FailedPrecondition):
    """A new ceiling has to be over what the session spent."""

    reason = "BUDGET_NOT_RAISED"


class BudgetReached(FailedPrecondition):
    """A session at its ceiling takes nothing that would start work."""

    reason = "BUDGET_REACHED"


class VaultNotFound(InvalidArgument):
    """A vault id names no vault. It is part of a body, so the answer is a 400."""

    reason = "VAULT_NOT_FOUND"


class ImmutableField(InvalidArgument):
    """The field is fixed when the session is created."""

    reason = "IMMUTABLE_FIELD"


class EventNotFound(InvalidArgument):
    """The event that a page should start after is not in this log."""

    reason = "EVENT_NOT_FOUND"


class InvalidAgentRef(InvalidArgument):
    """`agent` is neither an id nor one of the two reference objects."""

    reason = "INVALID_AGENT_REF"


class InvalidAgentOverrides(InvalidArgument):
    """The override object carries a field that a session can't override."""

    reason = "INVALID_AGENT_OVERRIDES"


class InvalidAgentOverrideField(InvalidArgument):
    """An override is malformed."""

    reason = "INVALID_AGENT_OVERRIDE_FIELD"


class AgentModelRequired(InvalidArgument):
    """A session can't run without a model."""

    reason = "AGENT_MODEL_REQUIRED"


class AgentToolsClearedWithSkills(InvalidArgument):
    """Skills are read with tools, so they can't stay where the tools go."""

    reason = "AGENT_TOOLS_CLEARED_WITH_SKILLS"


class OverriddenMcpServerNotFound(InvalidArgument):
    """A toolset of the effective agent binds a server that nothing declares."""

    reason = "AGENT_MCP_SERVER_NOT_FOUND"
