"""What the admission of a session asks about memory: are these stores there, and what is kept of them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kit.postgres import Tx
from services.sessions.domain.memory_mounts import place, read_memory_entries
from services.sessions.handlers.definitions import can_exist
from services.sessions.store.memory_stores import MemoryStoreTable


async def attach_memory(
    tx: Tx, resources: Sequence[Mapping[str, Any]], taken: Iterable[str] = ()
) -> dict[int, dict[str, Any]]:
    """The memory entries of a request as a session keeps them, by their index in it.

    `taken` are the places in the sandbox where its other resources stand. Costs one
    statement where there is such an entry, and none where there is not. An entry that is
    wrong, or whose store is not there or archived, is INVALID_ARGUMENT.
    """
    wanted = read_memory_entries(resources)
    if not wanted:
        return {}
    store_ids = [each.memory_store_id for each in wanted if can_exist(each.memory_store_id)]
    return place(wanted, await MemoryStoreTable(tx).active(store_ids), taken)
