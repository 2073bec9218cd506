"""SkillsService: packages of instructions, for the gateway; runners download them."""

from collections.abc import AsyncIterator
from typing import Any

from kit import failpoints
from kit.clock import Clock, rfc3339
from kit.ids import new_id
from kit.pages import InvalidCursor, decode_cursor, encode_cursor
from kit.postgres import Database, Tx
from kit.rpc.server import current_context
from managed_agents.sessions.v1 import skills_pb2 as pb
from managed_agents.sessions.v1 import skills_pb2_grpc
from managed_agents.sessions.v1.common_pb2 import PageInfo
from services.sessions.blobs import Blob, BlobStore
from services.sessions.blobs.choice import Blobs
from services.sessions.domain.session_errors import InvalidRequest
from services.sessions.domain.skill_errors import InvalidSkillPackage, SkillVersionNotFound
from services.sessions.domain.skill_package import SkillPackage
from services.sessions.handlers.definitions import can_exist, once, page_limit, position_after, read_position
from services.sessions.operations.blob_holds import hold
from services.sessions.operations.skill_uploads import PackageReader, pieces
from services.sessions.store.skills import LATEST, Package, Skill, SkillStore, SkillVersion, skill_not_found

MAX_DISPLAY_NAME_CHARACTERS = 255
SOURCES = ("custom", "anthropic")


class SkillsHandler(skills_pb2_grpc.SkillsServiceServicer):
    """Serves skills out of this service's database, and their packages out of the workspace's store of blobs."""

    def __init__(self, database: Database, clock: Clock, blobs: Blobs) -> None:
        self._database = database
        self._clock = clock
        self._blobs = blobs
        self._reader = PackageReader()

    async def CreateSkill(self, request_iterator: Any, context: Any) -> pb.CreateSkillResponse:
        """Takes a package and makes a skill of it."""
        head, package = await self._reader.read(request_iterator, pb.CreateSkillRequest())
        name = package.manifest.name
        label = _display_name(head.display_name) or name
        blobs, blob = await self._keep(package)
        kept = Package(name, package.manifest.description, blob.sha256, blob.size)

        async def create(tx: Tx) -> pb.CreateSkillResponse:
            store, now, skill_id = SkillStore(tx), self._clock.now(), new_id("skill")
            await store.insert(skill_id, label, name, now)
            await store.add_version(new_id("skver"), skill_id, kept, now)
            await failpoints.point("skills.before_commit")
            return pb.CreateSkillResponse(skill=_skill(await store.load(skill_id)))

        async with self._database.transaction(current_context().workspace_id) as tx:
            await hold(tx, blobs, blob)
            return await once(tx, head.idempotency, pb.CreateSkillResponse, lambda: create(tx))

    async def GetSkill(self, request: Any, context: Any) -> pb.GetSkillResponse:
        """Reads one."""
        async with self._database.read(current_context().workspace_id) as tx:
            return pb.GetSkillResponse(skill=_skill(await SkillStore(tx).load(_known(request.skill_id))))

    async def ListSkills(self, request: Any, context: Any) -> pb.ListSkillsResponse:
        """Pages newest first. Nothing here is of another source than the workspace's own uploads."""
        limit = page_limit(request.page)
        if request.source and request.source not in SOURCES:
            raise InvalidRequest(f"source must be one of {', '.join(SOURCES)}.", field="source")
        scope = f"skills?source={request.source}"
        before = read_position(request.page, scope)
        if request.source == "anthropic":
            return pb.ListSkillsResponse(page_info=PageInfo())
        async with self._database.read(current_context().workspace_id) as tx:
            found = await SkillStore(tx).page(limit=limit + 1, before=before)
        page = found[:limit]
        cursor = position_after(scope, page[-1].created_at, page[-1].id) if len(found) > limit else ""
        return pb.ListSkillsResponse(skills=[_skill(each) for each in page], page_info=PageInfo(next_cursor=cursor))

    async def DeleteSkill(self, request: Any, context: Any) -> pb.DeleteSkillResponse:
        """Removes a skill; the sweep of blobs removes its packages."""
        async with self._database.transaction(current_context().workspace_id) as tx:
            await SkillStore(tx).delete(_known(request.skill_id))
        return pb.DeleteSkillResponse()

    async def CreateSkillVersion(self, request_iterator: Any, context: Any) -> pb.CreateSkillVersionResponse:
        """Takes a package as the newest version."""
        head, package = await self._reader.read(request_iterator, pb.CreateSkillVersionRequest())
        skill_id = _known(head.skill_id)
        blobs, blob = await self._keep(package)
        kept = Package(package.manifest.name, package.manifest.description, blob.sha256, blob.size)

        async def create(tx: Tx) -> pb.CreateSkillVersionResponse:
            store, now = SkillStore(tx), self._clock.now()
            name = await store.lock(skill_id)
            if kept.name != name:
                raise InvalidSkillPackage(
                    f"The package is named {kept.name}, the skill {name}; a skill keeps its name.", field="files"
                )
            await store.add_version(new_id("skver"), skill_id, kept, now)
            await failpoints.point("skills.before_commit")
            await store.touch(skill_id, now)
            return pb.CreateSkillVersionResponse(version=_version(await store.version(skill_id, LATEST)))

        async with self._database.transaction(current_context().workspace_id) as tx:
            await hold(tx, blobs, blob)
            return await once(tx, head.idempotency, pb.CreateSkillVersionResponse, lambda: create(tx))

    async def GetSkillVersion(self, request: Any, context: Any) -> pb.GetSkillVersionResponse:
        """Reads one."""
        return pb.GetSkillVersionResponse(version=_version(await self._find(request.skill_id, request.version)))

    async def ListSkillVersions(self, request: Any, context: Any) -> pb.ListSkillVersionsResponse:
        """Pages newest first."""
        skill_id, limit = _known(request.skill_id), page_limit(request.page)
        scope = f"skills/{skill_id}/versions"
        before = _read_number(request.page.cursor, scope)
        async with self._database.read(current_context().workspace_id) as tx:
            found = await SkillStore(tx).versions(skill_id, limit=limit + 1, before=before)
        page = found[:limit]
        cursor = encode_cursor(scope, {"version": page[-1].version}) if len(found) > limit else ""
        return pb.ListSkillVersionsResponse(
            versions=[_version(each) for each in page], page_info=PageInfo(next_cursor=cursor)
        )

    async def DeleteSkillVersion(self, request: Any, context: Any) -> pb.DeleteSkillVersionResponse:
        """Removes one that is not the last."""
        skill_id = _known(request.skill_id)
        if request.version == LATEST or not can_exist(request.version):
            raise SkillVersionNotFound("A version is deleted by its id.", skill_id=skill_id)
        async with self._database.transaction(current_context().workspace_id) as tx:
            store = SkillStore(tx)
            await store.lock(skill_id)
            version = await store.version(skill_id, request.version)
            await store.delete_version(skill_id, version.id)
            await store.touch(skill_id, self._clock.now())
        return pb.DeleteSkillVersionResponse(version_id=version.id)

    async def DownloadSkillVersion(self, request: Any, context: Any) -> AsyncIterator[pb.DownloadSkillVersionResponse]:
        """Streams the package of a version."""
        version = await self._find(request.skill_id, request.version)
        store = await self._blobs.of(current_context().workspace_id)
        answer = pb.DownloadSkillVersionResponse(version=_version(version))
        chunks = store.open(version.sha256)
        try:
            async for chunk in chunks:
                answer.data = chunk
                yield answer
                answer = pb.DownloadSkillVersionResponse()
        finally:
            await chunks.aclose()  # type: ignore[attr-defined]

    async def _find(self, skill_id: str, version: str) -> SkillVersion:
        if not can_exist(version):
            raise SkillVersionNotFound("A version is named by its id, its number or latest.", skill_id=skill_id)
        async with self._database.read(current_context().workspace_id) as tx:
            return await SkillStore(tx).version(_known(skill_id), version)

    async def _keep(self, package: SkillPackage) -> tuple[BlobStore, Blob]:
        """Puts the package where it is safe; the row follows."""
        store = await self._blobs.of(current_context().workspace_id)
        blob = await store.put(pieces(package.archive))
        await failpoints.point("skills.stored")
        return store, blob


def _known(skill_id: str) -> str:
    if not can_exist(skill_id):
        raise skill_not_found(skill_id.replace("\x00", ""))
    return skill_id


def _display_name(text: str) -> str:
    label = text.strip()
    if len(label) > MAX_DISPLAY_NAME_CHARACTERS or not label.isprintable():
        raise InvalidRequest(
            f"display_name must be one line of at most {MAX_DISPLAY_NAME_CHARACTERS} characters.", field="display_name"
        )
    return label


def _read_number(cursor: str, scope: str) -> int | None:
    if not cursor:
        return None
    position = decode_cursor(cursor, scope)
    version = position.get("version") if isinstance(position, dict) else None
    if type(version) is not int or not 0 <= version < 2**63:
        raise InvalidCursor("The page cursor was not issued by this listing.", field="page")
    return version


def _skill(skill: Skill) -> pb.Skill:
    return pb.Skill(
        id=skill.id,
        display_name=skill.display_name,
        name=skill.latest.name,
        source=SOURCES[0],
        latest_version=_version(skill.latest),
        created_at=rfc3339(skill.created_at),
        updated_at=rfc3339(skill.updated_at),
    )


def _version(version: SkillVersion) -> pb.SkillVersion:
    return pb.SkillVersion(
        id=version.id,
        skill_id=version.skill_id,
        name=version.name,
        description=version.description,
        version=str(version.version),
        created_at=rfc3339(version.created_at),
        size_bytes=version.size_bytes,
        sha256=version.sha256,
    )
