"""Repositories that are attached to a session, cloned below /workspace.

A repository is cloned once into a session's folder; what stands there afterwards is the agent's, also when the resource
is detached. A clone that failed is tried again by the next turn.
"""

import asyncio
import os
import ssl
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from kit.addresses import PrivateHosts, checked_url
from kit.errors import DomainError
from kit.telemetry import log, register_secret
from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from managed_agents.vault.v1.repository_secrets_pb2 import OpenRepositoryTokenRequest
from services.worker.runner.workspace.attachments import Attachment, attachments_of
from services.worker.runner.workspace.git.errors import AUTHENTICATION, CLONE, RepositoryFailed
from services.worker.runner.workspace.ground import Ground
from services.worker.runner.workspace.mount import Mount
from services.worker.runner.workspace.placing import Record, opened_folder, own_folder, split, tidy
from services.worker.sandbox.egress import NetworkPolicy
from services.worker.sandbox.folders import remove_tree

KIND = "github_repository"
_AT_ONCE = 2


class RepositoryMount(Mount):
    """Clones with the host's git."""

    name = "repositories"

    def __init__(
        self,
        vault: Any,
        *,
        private: PrivateHosts,
        limits: Any = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`vault` is the stub of RepositorySecretsService; `private` are hosts that the operator allows beside public
        ones, also without TLS; `limits` a CloneLimits.
        """
        self._vault = vault
        self._private = private
        self._limits = limits
        self._tls = tls

    def applies(self, grant: TurnGrant) -> bool:
        """Where a repository is attached."""
        return bool(attachments_of(grant, KIND))

    def prompt_notes(self, grant: TurnGrant) -> Sequence[str]:
        """Where the repositories are."""
        lines = [f"- {each.fields['url']} in {each.mount_path}" for each in attachments_of(grant, KIND)]
        told = (
            "These repositories were given to you, each cloned into its folder; where that is missing, it could not be:"
        )
        return (f"{told}\n" + "\n".join(lines),) if lines else ()

    async def prepare(self, ground: Ground) -> None:
        """Clone what was not cloned yet."""
        record = Record(ground.folder, self.name)
        cloned = await asyncio.to_thread(record.read)
        missing = [each for each in ground.attachments(KIND) if each.id not in cloned]
        if not missing:
            return
        await asyncio.to_thread(tidy, ground.folder)
        slots = asyncio.Semaphore(_AT_ONCE)

        async def mount(attachment: Attachment) -> None:
            async with slots:
                try:
                    await self._mount(ground, attachment)
                except RepositoryFailed as failed:
                    self._tell(ground, attachment, failed)
                else:
                    cloned[attachment.id] = attachment.mount_path
                    await asyncio.to_thread(record.write, cloned)

        async with asyncio.TaskGroup() as group:
            for attachment in missing:
                group.create_task(mount(attachment))

    async def _mount(self, ground: Ground, attachment: Attachment) -> None:
        # Loaded by the first clone: most runners never make one.
        from services.worker.runner.workspace.git.cloning import CloneLimits, Source, clone

        if not await asyncio.to_thread(_is_free, ground.folder, attachment.mount_path):
            raise RepositoryFailed(CLONE, f"Something else stands at {attachment.mount_path} already.")
        source = Source(attachment.fields["url"], attachment.fields["checkout"], await self._token(ground, attachment))
        environment = orjson.loads(ground.grant.environment_json or b"{}")
        policy = NetworkPolicy.of(environment)

        async def guard(url: str) -> list[str]:
            return await self._checked(url, policy)

        folder = await asyncio.to_thread(own_folder, ground.folder)
        try:
            made = await clone(source, folder, guard, self._limits or CloneLimits(), self._tls)
            await asyncio.to_thread(_move, made, ground.folder, attachment.mount_path)
        except OSError as failure:
            log.warning("a repository could not be placed", session_id=ground.session_id, error=repr(failure))
            raise RepositoryFailed(CLONE, f"The clone could not be put into {attachment.mount_path}.") from failure
        finally:
            await asyncio.to_thread(remove_tree, folder)

    async def _token(self, ground: Ground, attachment: Attachment) -> str:
        if not attachment.fields.get("authenticated"):
            return ""
        request = OpenRepositoryTokenRequest(resource_id=attachment.id, session_id=ground.session_id)
        try:
            token = (await self._vault.OpenRepositoryToken(request, retry=True)).token
        except DomainError as refused:
            log.warning("a repository's token was not opened", resource_id=attachment.id, error=repr(refused))
            raise RepositoryFailed(AUTHENTICATION, "The token of the repository could not be opened.") from None
        register_secret(token)
        return token

    async def _checked(self, url: str, policy: NetworkPolicy) -> list[str]:
        """The addresses of a URL that may be fetched from. Plain HTTP is for hosts that the operator named."""
        target = await checked_url(url, allowed=self._private)
        if target.scheme != "https" and not self._private.allows(target.host, target.port):
            raise RepositoryFailed(CLONE, "Repositories are fetched over https only.")
        if not policy.allows(target.host, target.port):
            raise RepositoryFailed(
                CLONE, f"The environment of the session does not allow {target.host}: add it to its allowed hosts."
            )
        return list(target.addresses)

    def _tell(self, ground: Ground, attachment: Attachment, failed: RepositoryFailed) -> None:
        url = attachment.fields["url"]
        log.info("a repository was not cloned", session_id=ground.session_id, kind=failed.kind, why=failed.message)
        ground.tell(failed.kind, f"{url} could not be cloned. {failed.message}", again=True, repository_url=url)


def _is_free(root: Path, inside: str) -> bool:
    """Whether nothing, or an empty folder, stands there."""
    folder, name = split(inside)
    try:
        with opened_folder(root, folder) as folder_fd:
            status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                return False
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder_fd)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        return not os.listdir(inner)
    finally:
        os.close(inner)


def _move(made: Path, root: Path, inside: str) -> None:
    """Put a folder into its place, which is free or empty."""
    folder, name = split(inside)
    with opened_folder(root, folder, make=True) as folder_fd:
        os.rename(made, name, dst_dir_fd=folder_fd)
