"""Refusals on agents and environments.

Each class stands for one reason of `managed_agents.errors.v1`. All are raised before
anything is written, so a caller can correct the request and send it again. Refusals
that every resource shares (a malformed or unknown field) are in `session_errors`.
"""

from kit.errors import Aborted, FailedPrecondition, InvalidArgument, NotFound


class InvalidJson(InvalidArgument):
    """The body is not JSON, or not a JSON object."""

    reason = "INVALID_JSON"


class AgentNotFound(NotFound):
    """The workspace has no such agent."""

    reason = "AGENT_NOT_FOUND"


class AgentVersionNotFound(NotFound):
    """The agent exists, but never had this version."""

    reason = "AGENT_VERSION_NOT_FOUND"


class AgentVersionConflict(Aborted):
    """The caller expects another version than the current one."""

    reason = "AGENT_VERSION_CONFLICT"


class AgentArchived(FailedPrecondition):
    """The agent takes no change and no new session any more."""

    reason = "AGENT_ARCHIVED"


class InvalidModel(InvalidArgument):
    """The model is missing or malformed."""

    reason = "INVALID_MODEL"


class InvalidModelSpeed(InvalidArgument):
    """The speed is outside its set."""

    reason = "INVALID_MODEL_SPEED"


class InvalidModelEffort(InvalidArgument):
    """The effort is outside its set."""

    reason = "INVALID_MODEL_EFFORT"


class UnsupportedModelField(InvalidArgument):
    """A model field that this platform can't honour."""

    reason = "UNSUPPORTED_MODEL_FIELD"


class McpServerMismatch(InvalidArgument):
    """Toolsets and MCP servers don't match each other."""

    reason = "AGENT_MCP_SERVER_NOT_FOUND"


class InvalidDomainList(InvalidArgument):
    """The domain list of a web tool breaks a rule."""

    reason = "INVALID_DOMAIN_LIST"


class EnvironmentNotFound(NotFound):
    """The workspace has no such environment."""

    reason = "ENVIRONMENT_NOT_FOUND"


class EnvironmentArchived(FailedPrecondition):
    """The environment takes no change and no new session any more."""

    reason = "ENVIRONMENT_ARCHIVED"


class EnvironmentInUse(FailedPrecondition):
    """A session names the environment."""

    reason = "ENVIRONMENT_IN_USE"


class DefaultEnvironmentStays(FailedPrecondition):
    """The workspace's fallback environment can be neither archived nor deleted."""

    reason = "INVALID_REQUEST"


class OutcomeNotFound(NotFound):
    """The workspace has no such outcome definition."""

    reason = "OUTCOME_NOT_FOUND"


class OutcomeArchived(FailedPrecondition):
    """The outcome definition takes no change and no evaluation any more."""

    reason = "OUTCOME_ARCHIVED"


class UnsupportedHostingType(InvalidArgument):
    """The hosting type can't be honoured by this platform."""

    reason = "UNSUPPORTED_HOSTING_TYPE"


class InvalidEnvironmentConfig(InvalidArgument):
    """The environment's config is not usable."""

    reason = "INVALID_ENVIRONMENT_CONFIG"
