"""Refusals on skills, each with one reason of `managed_agents.errors.v1`; nothing was written before any."""

from kit.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound


class SkillNotFound(NotFound):
    """The workspace has no such skill."""

    reason = "SKILL_NOT_FOUND"


class SkillVersionNotFound(NotFound):
    """The skill exists, but has no such version."""

    reason = "SKILL_VERSION_NOT_FOUND"


class SkillNameTaken(AlreadyExists):
    """A skill of the workspace has this name already."""

    reason = "SKILL_NAME_TAKEN"


class InvalidSkillPackage(InvalidArgument):
    """The package breaks a rule; the message names the entry."""

    reason = "INVALID_SKILL_PACKAGE"


class SkillVersionRequired(FailedPrecondition):
    """It is the only version that the skill has."""

    reason = "SKILL_VERSION_REQUIRED"
