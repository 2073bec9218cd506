"""Why a command ends without having done its work, in words for the person at the terminal."""


class CannotStart(Exception):
    """The platform can't be started; the message says why and what to do."""


class CommandFailed(Exception):
    """A command ran into something that it can't get past."""


class KeyNeeded(CommandFailed):
    """The platform lets nobody in without a key, or not with this one."""
