"""Composition root of the vault."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kit.addresses import PrivateHosts
from kit.clock import SystemClock
from kit.config import ConfigError
from kit.lifecycle import Service
from kit.migrate import migrate
from kit.nats import Nats, connect
from kit.outbox import Relay
from kit.postgres import Database
from kit.rpc.server import Server
from managed_agents.vault.v1.injections_pb2_grpc import add_InjectionServiceServicer_to_server
from managed_agents.vault.v1.keys_pb2_grpc import add_KeysServiceServicer_to_server
from managed_agents.vault.v1.repository_secrets_pb2_grpc import add_RepositorySecretsServiceServicer_to_server
from managed_agents.vault.v1.vault_pb2_grpc import add_SettingsServiceServicer_to_server
from managed_agents.vault.v1.vaults_pb2_grpc import (
    add_SealingServiceServicer_to_server,
    add_VaultsServiceServicer_to_server,
)
from services.vault.config import VaultSettings, load_settings, model_environment
from services.vault.domain import settings as rules
from services.vault.domain.errors import SealBroken
from services.vault.domain.sealing import Sealer
from services.vault.handlers.injections import InjectionsHandler
from services.vault.handlers.keys import KeysHandler
from services.vault.handlers.repository_secrets import RepositorySecretsHandler
from services.vault.handlers.sealing import SealingHandler
from services.vault.handlers.settings import SettingsHandler
from services.vault.handlers.vaults import VaultsHandler
from services.vault.operations.announcements import STREAM, SUBJECTS, Announcements
from services.vault.operations.outward import Outward
from services.vault.operations.parts import Parts
from services.vault.operations.refreshing import Refresher
from services.vault.operations.repeats import Repeats
from services.vault.operations.rewrapping import Rewrapper
from services.vault.store.settings import MasterKeyStore
from services.vault.sweeper import Sweeper

SCHEMA = "vault"
MIGRATIONS = Path(__file__).parent / "migrations"
_CHECK, _CHECK_ROW = b"the vault opens", "master_key_checks:1"


async def build() -> Service:
    """The vault as the process environment describes it."""
    settings = load_settings()
    # Without a bus the vault works all the same: events wait in their table, and nobody hears of a rotation early.
    nats = await connect(settings.nats_server(), SCHEMA) if settings.nats_url else None
    return compose(settings, model_environment(), nats)


def compose(settings: VaultSettings, environ: Mapping[str, str], nats: Nats | None = None) -> Service:
    """Wires the vault. ConfigError for a faulty secret key or model environment."""
    try:
        sealer = Sealer(settings.master_keys())
        rules.from_environment(environ)
    except ValueError as error:
        raise ConfigError(f"The vault can't start: {error}.") from error
    dsn = settings.database_dsn()
    database = Database(dsn, SCHEMA)
    server = Server(settings.listen_address(), service=SCHEMA, internal_token=settings.internal_token())
    server.add(add_SettingsServiceServicer_to_server, SettingsHandler(database, sealer, environ))
    server.add(add_KeysServiceServicer_to_server, KeysHandler(database))
    server.add(add_RepositorySecretsServiceServicer_to_server, RepositorySecretsHandler(database, sealer))
    relay = Relay(database, nats, STREAM, [SUBJECTS]) if nats is not None else None
    parts = _parts(settings, database, sealer, Announcements(nats, relay))
    rewrapper = Rewrapper(database, sealer)
    server.add(add_VaultsServiceServicer_to_server, VaultsHandler(parts))
    server.add(add_InjectionServiceServicer_to_server, InjectionsHandler(parts))
    server.add(add_SealingServiceServicer_to_server, SealingHandler(database, sealer, rewrapper))

    async def prepare() -> None:
        await database.open()
        await check_master_key(database, sealer)
        await migrate(dsn, SCHEMA, MIGRATIONS)
        await keep_master_key(database, sealer)
        await parts.repeats.load()

    service = Service.from_settings(SCHEMA, settings)
    service.add("database", prepare, database.close)
    if nats is not None and relay is not None:
        service.add("nats", stop=nats.close)
        service.add("relay", relay.start, relay.stop)
    service.add("renewals", stop=parts.refresher.close)
    service.add_task("rewrapper", rewrapper.run)
    service.add_task("sweeper", Sweeper(database).run)
    service.add("rpc", server.start, server.stop)
    return service


def _parts(settings: VaultSettings, database: Database, sealer: Sealer, announcements: Announcements) -> Parts:
    clock, outward = SystemClock(), Outward(PrivateHosts.parse(settings.allowed_private_hosts))
    return Parts(
        database=database,
        sealer=sealer,
        clock=clock,
        announcements=announcements,
        outward=outward,
        refresher=Refresher(database, sealer, clock, outward, announcements, enabled=settings.refreshes()),
        repeats=Repeats(database, sealer),
    )


async def check_master_key(database: Database, sealer: Sealer) -> None:
    """ConfigError where the database was sealed with another key; nothing was touched by then."""
    async with database.platform_read() as tx:
        stored = await MasterKeyStore(tx).find()
    if stored is not None:
        await _open_check(sealer, stored)


async def keep_master_key(database: Database, sealer: Sealer) -> None:
    """Leaves what only this master key opens, unless another replica was first."""
    async with database.platform_transaction() as tx:
        stored = await MasterKeyStore(tx).load_or_insert(await sealer.seal(_CHECK, associated=_CHECK_ROW))
    await _open_check(sealer, stored)


async def _open_check(sealer: Sealer, stored: bytes) -> None:
    try:
        await sealer.open(stored, associated=_CHECK_ROW)
    except SealBroken as error:
        raise ConfigError(
            "The secret key is not the one that this database was sealed with. Put the former key file in its place "
            "(secret.key in the data folder, unless MANAGED_AGENTS_SECRET_KEY_FILE names another), or start with the "
            "former MANAGED_AGENTS_SECRET_KEY; without it the sealed settings and credentials can't be read."
        ) from error
