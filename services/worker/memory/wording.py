"""What the agent is told about a folder of memory."""

from collections.abc import Sequence

# A newer text up to this length is quoted; a longer one is in the file.
MAX_QUOTED_CHARACTERS = 2_000
MAX_NAMED = 20
# What one pass over a folder says, about.
MAX_TOLD_CHARACTERS = 20_000


class Wording:
    """Sentences on one folder, added to its notes."""

    def __init__(self, mount_path: str, notes: list[str]) -> None:
        self._mount_path = mount_path
        self._notes = notes
        self._room = MAX_TOLD_CHARACTERS

    def conflict(self, path: str, newer: str | None, *, deleting: bool) -> None:
        """The store has something else than the agent knew."""
        where = f"{self._mount_path}{path}"
        if newer is None:
            self._add(
                f"{where} was deleted in the store meanwhile, so your change was not stored. The file is gone; "
                "write it again if it should be there."
            )
            return
        if deleting:
            said = f"{where} was changed in the store meanwhile, so it was not deleted. The file is back"
        else:
            said = f"{where} was changed in the store meanwhile, so your change was not stored. The file is replaced"
        self._add(f"{said}, with the newer text" + _quoted(newer))

    def kept(self, path: str, copy: str) -> None:
        """A text was moved out of the way."""
        self._add(f"What was in {self._mount_path}{path} before is in {copy}; nothing of it was lost.")

    def left_over(self, copy: str) -> None:
        """A text that an interrupted pass had moved."""
        self._add(f"An earlier step was cut off. A text that was in {self._mount_path} is in {copy}.")

    def not_stored(self, path: str, reason: str) -> None:
        """The store can't take a file."""
        self._add(f"{self._mount_path}{path} is not stored in the memory: {reason.rstrip('.')}.")

    def too_many(self, most: int) -> None:
        """There is more than is looked at."""
        self._add(
            f"{self._mount_path} has more than {most} files and folders. What lies beyond is not stored, and "
            "nothing is deleted in the memory until there are fewer."
        )

    def deleted(self, paths: Sequence[str]) -> None:
        """Deletions that were written through."""
        if paths:
            self._add(
                f"Deleted from the memory {self._mount_path}: {_list(paths)}. Earlier versions stay in its history."
            )

    def undone(self, paths: Sequence[str]) -> None:
        """Changes of a folder that may only be read."""
        self._add(f"{self._mount_path} is read-only. What was changed there was undone: {_list(paths)}.")

    def replaced(self) -> None:
        """The folder itself is another one."""
        self._add(f"The folder {self._mount_path} was moved or replaced; it was filled anew from the memory store.")

    def hidden(self, path: str) -> None:
        """A memory has no file."""
        self._add(
            f"The memory {path} of {self._mount_path} has no file here, since its name is too long for one or a file "
            "or folder of the same name is in its way. It stays in the store."
        )

    def no_folder(self) -> None:
        """Something else is where the folder was."""
        self._add(f"{self._mount_path} is no folder any more. Nothing is stored until it is one again.")

    def state(self, state: str) -> None:
        """The store itself changed."""
        if state == "active":
            return
        ends = "was deleted. Its folder keeps what it has" if state == "deleted" else "was archived. It can be read"
        self._add(f"The memory store of {self._mount_path} {ends}; changes in it are not stored any more.")

    def _add(self, sentence: str) -> None:
        if self._room > 0:
            self._notes.append(f"[Memory: {sentence}]")
        self._room -= len(sentence)
        if self._room <= 0 < self._room + len(sentence):
            self._notes.append(f"[Memory: more is to be told of {self._mount_path} than fits here; look through it.]")


def _quoted(text: str) -> str:
    return f":\n{text}" if len(text) <= MAX_QUOTED_CHARACTERS else "; read it before you change it again."


def _list(paths: Sequence[str]) -> str:
    named = ", ".join(paths[:MAX_NAMED])
    return named if len(paths) <= MAX_NAMED else f"{named} and {len(paths) - MAX_NAMED} more"
