"""Refusals of the vault."""

from kit.errors import Aborted, Internal, InvalidArgument, PermissionDenied


class InvalidSettings(InvalidArgument):
    """A settings document is malformed; the message names the path."""

    reason = "INVALID_SETTINGS"


class SettingsRevisionConflict(Aborted):
    """The settings were saved by someone else since the caller read them."""

    reason = "SETTINGS_REVISION_CONFLICT"


class SealBroken(Internal):
    """A sealed value does not open with the master key."""

    reason = "SEAL_BROKEN"


class RunnersOnly(PermissionDenied):
    """Only a runner may open model access."""

    reason = "PERMISSION_DENIED"
