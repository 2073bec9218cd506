"""What a session's turn is told of its memory stores, and when their folders ask anybody."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest

from managed_agents.sessions.v1.sessions_pb2 import Session
from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from services.worker.runner.loop.context import Call
from services.worker.runner.workspace.ground import Ground
from services.worker.runner.workspace.memory import MemoryMount
from services.worker.tools import ToolOutcome, VisibleRoot
from tests.unit.runner.memory_model import ModelStore

NOTES = {
    "id": "sesrsc_1",
    "type": "memory_store",
    "memory_store_id": "memstore_1",
    "mount_path": "/mnt/memory/notes",
    "access": "read_write",
    "name": "Notes",
    "description": "What the team knows.",
    "instructions": "Keep it short.",
}
MANUAL = NOTES | {
    "id": "sesrsc_2",
    "memory_store_id": "memstore_2",
    "mount_path": "/mnt/memory/manual",
    "access": "read_only",
    "name": "Manual",
    "description": "",
    "instructions": None,
}
CALL = Call("sevt_1", "toolu_1", "bash", {})


def grant(*resources: dict[str, Any], epoch: int = 1) -> TurnGrant:
    return TurnGrant(session=Session(id="sess_1", resources_json=orjson.dumps(list(resources))), epoch=epoch)


@dataclass
class Message:
    """A hint on the message bus."""

    subject: str
    data: bytes


@dataclass
class Counted:
    """A store that counts who asks."""

    store: ModelStore = field(default_factory=ModelStore)
    pulls: list[int] = field(default_factory=list)
    pushes: int = 0

    async def pull(self, store_id: str, known_revision: int) -> Any:
        """Counted."""
        self.pulls.append(known_revision)
        async for part in self.store.pull(store_id, known_revision):
            yield part

    async def push(self, *arguments: Any) -> Any:
        """Counted."""
        self.pushes += 1
        return await self.store.push(*arguments)


@pytest.fixture
def counted() -> Counted:
    return Counted()


@pytest.fixture
def mount(counted: Counted) -> MemoryMount:
    made = MemoryMount(None)
    made._client = counted  # type: ignore[assignment]
    return made


def ground(folder: Path, granted: TurnGrant, memory: dict[str, Any] | None = None) -> Ground:
    (folder / "mnt/session/tool_outputs").mkdir(parents=True, exist_ok=True)
    return Ground(granted, folder, lambda *_: None, {} if memory is None else memory)


def test_a_session_without_stores_is_none_of_its_business(mount: MemoryMount) -> None:
    assert not mount.applies(grant()) and not mount.applies(grant({"id": "r", "type": "file", "mount_path": "/x"}))
    assert list(mount.roots(grant())) == [] and list(mount.prompt_notes(grant())) == []


def test_the_prompt_names_each_store_with_path_access_and_instructions(mount: MemoryMount) -> None:
    [note] = mount.prompt_notes(grant(NOTES, MANUAL))
    notes, manual = note.split("- /mnt/memory/notes: ")[1].split("- /mnt/memory/manual: ")
    assert "'Notes', read and write" in notes and "What the team knows." in notes and "Keep it short." in notes
    assert "'Manual', read only" in manual and "How to use it" not in manual and "What it holds" not in manual


def test_a_read_only_store_is_a_root_that_nobody_writes(mount: MemoryMount) -> None:
    assert list(mount.roots(grant(NOTES, MANUAL))) == [
        VisibleRoot("/mnt/memory/notes", writable=True),
        VisibleRoot("/mnt/memory/manual", writable=False),
    ]


async def test_a_turn_asks_once_and_then_only_when_something_was_heard(
    mount: MemoryMount, counted: Counted, tmp_path: Path
) -> None:
    counted.store.write("/a", "one")
    place = ground(tmp_path, grant(NOTES))
    for _ in range(3):
        await mount.follow(place)
    assert counted.pulls == [0]
    await mount.hear(Message("memory.changed.memstore_other", b"9"))
    await mount.hear(Message("memory.changed.memstore_1", b"1"))
    await mount.follow(place)
    assert counted.pulls == [0]
    counted.store.write("/a", "two")
    await mount.hear(Message("memory.changed.memstore_1", b"2"))
    await mount.follow(place)
    await mount.follow(place)
    assert counted.pulls == [0, 1]
    assert (tmp_path / "mnt/memory/notes/a").read_text() == "two"
    mount.doubt()
    await mount.follow(place)
    assert counted.pulls == [0, 1, 2]
    await mount.follow(ground(tmp_path, grant(NOTES, epoch=2), place.memory))
    assert counted.pulls == [0, 1, 2, 2]


async def test_a_tool_that_changed_nothing_asks_nobody(mount: MemoryMount, counted: Counted, tmp_path: Path) -> None:
    place = ground(tmp_path, grant(NOTES))
    await mount.follow(place)
    assert await mount.after_tool(place, CALL, ToolOutcome("")) == []
    assert (counted.pulls, counted.pushes) == ([0], 0)
    (tmp_path / "mnt/memory/notes/b").write_text("new")
    assert await mount.after_tool(place, CALL, ToolOutcome("")) == []
    assert (counted.pulls, counted.pushes) == ([0], 1)
    # What the session wrote itself is heard too, and is no news.
    await mount.hear(Message("memory.changed.memstore_1", b"1"))
    await mount.follow(place)
    assert counted.pulls == [0]


async def test_what_happened_to_the_store_itself_is_heard(mount: MemoryMount, counted: Counted, tmp_path: Path) -> None:
    place = ground(tmp_path, grant(NOTES))
    await mount.follow(place)
    counted.store.state = "deleted"
    await mount.hear(Message("memory.changed.memstore_1", b"0"))
    await mount.follow(place)
    assert "was deleted" in (await mount.after_tool(place, CALL, ToolOutcome("")))[0]
    await mount.hear(Message("memory.changed.memstore_1", b"no number"))


async def test_a_store_that_can_not_be_reached_is_asked_once_in_a_turn(
    mount: MemoryMount, counted: Counted, tmp_path: Path
) -> None:
    place = ground(tmp_path, grant(NOTES))

    async def fail(*_: Any) -> Any:
        counted.pulls.append(-1)
        raise OSError("away")
        yield

    counted.pull = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="away"):
        await mount.follow(place)
    await mount.follow(place)
    assert counted.pulls == [-1]
    assert "not stored yet" in (await mount.after_tool(place, CALL, ToolOutcome("")))[0]
