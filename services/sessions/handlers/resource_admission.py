"""What resources refer to: looked up, copied and judged in the transaction that attaches them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kit.ids import new_id
from kit.postgres import Tx
from services.sessions.domain import resources as rules
from services.sessions.domain.memory_errors import MemoryStoreUnknown
from services.sessions.domain.mount_paths import check_free, store_path
from services.sessions.domain.resource_errors import FileUnknown, InvalidResource
from services.sessions.domain.resources import FileRequest, RepositoryRequest, ResourceRequest, StoreRequest
from services.sessions.store.memory_stores import MemoryStoreTable
from services.sessions.store.resources import CopyOf, ResourceStore


@dataclass(slots=True)
class AdmittedResources:
    """Resources that may be attached: as the session keeps them, and what vault is to keep of them."""

    resources: list[dict[str, Any]] = field(default_factory=list)
    # Secrets by resource id.
    tokens: dict[str, str] = field(default_factory=dict)


async def admit_resources(
    tx: Tx,
    session_id: str,
    requests: Sequence[ResourceRequest],
    now: datetime,
    attached: Sequence[dict[str, Any]] = (),
) -> AdmittedResources:
    """Makes instances of sound requests, beside those that are attached already; refused by the first that can't be."""
    admitted = AdmittedResources()
    if not requests:
        return admitted
    copies = _copies(requests)
    stores = await _stores(tx, requests)
    await _copy(tx, session_id, copies, now)
    taken = rules.taken_paths(attached) + [each.sandbox_path for each in requests if not isinstance(each, StoreRequest)]
    for request in requests:
        resource_id = new_id("sesrsc")
        if isinstance(request, FileRequest):
            made = rules.file_resource(request, resource_id, copies[request.field].file_id, now)
        elif isinstance(request, RepositoryRequest):
            made = rules.repository_resource(request, resource_id, now)
            if request.token is not None:
                admitted.tokens[resource_id] = request.token
        else:
            store = stores[request.memory_store_id]
            path = store_path(request.mount_path, store.name, taken, f"{request.field}.mount_path")
            check_free(path, taken, f"{request.field}.mount_path")
            taken.append(path)
            made = rules.store_resource(request, resource_id, store.name, store.description, path, now)
        admitted.resources.append(made)
    return admitted


def _copies(requests: Sequence[ResourceRequest]) -> dict[str, CopyOf]:
    return {
        request.field: CopyOf(new_id("file"), request.file_id, request.sandbox_path)
        for request in requests
        if isinstance(request, FileRequest)
    }


async def _copy(tx: Tx, session_id: str, copies: dict[str, CopyOf], now: datetime) -> None:
    if not copies:
        return
    made = await ResourceStore(tx).copy_files(session_id, list(copies.values()), now)
    for name, copy in copies.items():
        if copy.file_id not in made:
            path = f"{name}.file_id" if name else "file_id"
            raise FileUnknown(f"File not found: {copy.source_id}.", field=path, file_id=copy.source_id)


async def _stores(tx: Tx, requests: Sequence[ResourceRequest]) -> dict[str, Any]:
    wanted = [request for request in requests if isinstance(request, StoreRequest)]
    if not wanted:
        return {}
    found = await MemoryStoreTable(tx).active([request.memory_store_id for request in wanted])
    seen: set[str] = set()
    for request in wanted:
        path = f"{request.field}.memory_store_id"
        if request.memory_store_id not in found:
            raise MemoryStoreUnknown(
                f"There is no active memory store {request.memory_store_id}.",
                field=path,
                memory_store_id=request.memory_store_id,
            )
        if request.memory_store_id in seen:
            raise InvalidResource(f"{path}: a memory store can be attached once.", field=path)
        seen.add(request.memory_store_id)
    return found
