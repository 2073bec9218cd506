"""Refusals on the resources of sessions. Each is raised before anything is written."""

from kit.errors import InvalidArgument, NotFound


class ResourceNotFound(NotFound):
    """The session has no such resource."""

    reason = "RESOURCE_NOT_FOUND"


class InvalidResource(InvalidArgument):
    """A resource is malformed, or what was asked for can't be done with one of its kind."""

    reason = "INVALID_RESOURCE"


class FileUnknown(InvalidArgument):
    """A resource names a file that the workspace does not have, or has no more."""

    reason = "FILE_NOT_FOUND"


class InvalidMountPath(InvalidArgument):
    """A mount path breaks one of the rules on paths."""

    reason = "INVALID_MOUNT_PATH"


class MountPathTaken(InvalidArgument):
    """A mount path is that of another resource, or lies in or around one."""

    reason = "MOUNT_PATH_TAKEN"


class TooManyResources(InvalidArgument):
    """More resources of a kind than a session may have."""

    reason = "TOO_MANY_RESOURCES"


class ResourceFixed(InvalidArgument):
    """A memory store is attached when the session is created, and stays."""

    reason = "RESOURCE_FIXED"
