"""Refusals of the vault."""

from kit.errors import (
    Aborted,
    AlreadyExists,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
)


class InvalidSettings(InvalidArgument):
    """A settings document is malformed; the message names the path."""

    reason = "INVALID_SETTINGS"


class SettingsRevisionConflict(Aborted):
    """The settings were saved by someone else since the caller read them."""

    reason = "SETTINGS_REVISION_CONFLICT"


class SealBroken(Internal):
    """A sealed value does not open with the master key."""

    reason = "SEAL_BROKEN"


class UnknownMasterKey(SealBroken):
    """A value was sealed with a master key that the provider doesn't have."""


class KeyRotationUnavailable(FailedPrecondition):
    """The master key comes from where no version can be added."""

    reason = "KEY_ROTATION_UNAVAILABLE"


class RunnersOnly(PermissionDenied):
    """Only a runner may open what is sealed."""

    reason = "PERMISSION_DENIED"


class OperatorsOnly(PermissionDenied):
    """Only the operator's command line may look after the master key."""

    reason = "PERMISSION_DENIED"


class InvalidField(InvalidArgument):
    """A field has a wrong type, form, size or value."""

    reason = "INVALID_REQUEST"


class UnknownField(InvalidArgument):
    """A field that nothing would act on."""

    reason = "UNKNOWN_FIELD"


class ImmutableField(InvalidArgument):
    """The field can't be changed."""

    reason = "IMMUTABLE_FIELD"


class RepositoryTokenNotFound(NotFound):
    """No token is kept for the repository."""

    reason = "REPOSITORY_TOKEN_NOT_FOUND"


class VaultNotFound(NotFound):
    """No such vault, or it is archived."""

    reason = "VAULT_NOT_FOUND"


class VaultUnknown(InvalidArgument):
    """A request names a vault that doesn't exist."""

    reason = "VAULT_NOT_FOUND"


class VaultArchived(InvalidArgument):
    """A request names a vault that is archived."""

    reason = "VAULT_ARCHIVED"


class VaultFull(FailedPrecondition):
    """The vault holds as many credentials as it may."""

    reason = "VAULT_FULL"


class CredentialNotFound(NotFound):
    """No such credential in the vault."""

    reason = "CREDENTIAL_NOT_FOUND"


class CredentialArchived(FailedPrecondition):
    """The credential is archived, and its secrets are erased."""

    reason = "CREDENTIAL_ARCHIVED"


class CredentialKeyTaken(AlreadyExists):
    """A live credential of the vault has this URL or variable name."""

    reason = "CREDENTIAL_KEY_TAKEN"


class CredentialRefreshFailed(FailedPrecondition):
    """The token could not be refreshed, or there is nothing to refresh it with."""

    reason = "CREDENTIAL_REFRESH_FAILED"


class AuthorizationServerFixed(InvalidArgument):
    """The authorization server changes only together with the tokens."""

    reason = "AUTHORIZATION_SERVER_FIXED"
