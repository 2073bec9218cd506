"""Composition root of the vault."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kit.config import ConfigError
from kit.lifecycle import Service
from kit.migrate import migrate
from kit.postgres import Database
from kit.rpc.server import Server
from managed_agents.vault.v1.keys_pb2_grpc import add_KeysServiceServicer_to_server
from managed_agents.vault.v1.repository_secrets_pb2_grpc import add_RepositorySecretsServiceServicer_to_server
from managed_agents.vault.v1.vault_pb2_grpc import add_SettingsServiceServicer_to_server
from services.vault.config import VaultSettings, load_settings, model_environment
from services.vault.domain import settings as rules
from services.vault.domain.errors import SealBroken
from services.vault.domain.sealing import Sealer
from services.vault.handlers.keys import KeysHandler
from services.vault.handlers.repository_secrets import RepositorySecretsHandler
from services.vault.handlers.settings import SettingsHandler
from services.vault.store.settings import MasterKeyStore

SCHEMA = "vault"
MIGRATIONS = Path(__file__).parent / "migrations"
_CHECK, _CHECK_ROW = b"the vault opens", "master_key_checks:1"


async def build() -> Service:
    """The vault as the process environment describes it."""
    return compose(load_settings(), model_environment())


def compose(settings: VaultSettings, environ: Mapping[str, str]) -> Service:
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

    async def prepare() -> None:
        await migrate(dsn, SCHEMA, MIGRATIONS)
        await database.open()
        await check_master_key(database, sealer)

    service = Service.from_settings(SCHEMA, settings)
    service.add("database", prepare, database.close)
    service.add("rpc", server.start, server.stop)
    return service


async def check_master_key(database: Database, sealer: Sealer) -> None:
    """ConfigError where the database was sealed with another key; nothing is changed then."""
    async with database.platform_transaction() as tx:
        stored = await MasterKeyStore(tx).load_or_insert(await sealer.seal(_CHECK, associated=_CHECK_ROW))
    try:
        await sealer.open(stored, associated=_CHECK_ROW)
    except SealBroken as error:
        raise ConfigError(
            "The secret key is not the one that this database was sealed with. Start the vault with the former "
            "MANAGED_AGENTS_SECRET_KEY; without it the sealed settings can't be read."
        ) from error
