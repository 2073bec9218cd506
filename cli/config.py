"""What the command line takes from its environment, and what it lets each process it starts see of it."""

import os
from collections.abc import Mapping

from kit.cost_profile import from_any_folder

PREFIX = "MANAGED_AGENTS_"

# Needed by any Python process to find itself, its locale, its certificates and its way out.
_COMMON = {"PATH", "HOME", "USER", "LANG", "LANGUAGE", "TZ", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "PYTHONUTF8"}
_COMMON |= {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"}
_COMMON |= {name for proxy in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY") for name in (proxy, proxy.lower())}
_COMMON_PREFIXES = ("LC_", "OTEL_")

# Given to single processes by the supervisor, never passed on from its own environment.
_PARTICULAR = {
    "API_KEY",
    "COST_PROFILE",
    "DATABASE_URL",
    "DATA_DIR",
    "FORMER_SECRET_KEY",
    "HOST",
    "INTERNAL_TOKEN_FILE",
    "LISTEN",
    "NATS_URL",
    "PORT",
    "READY_FD",
    "SECRET_KEY",
    "SECRET_KEY_FILE",
    "SUPERVISOR_FD",
}


def database_url() -> str | None:
    return os.environ.get(f"{PREFIX}DATABASE_URL") or None


def nats_url() -> str | None:
    return os.environ.get(f"{PREFIX}NATS_URL") or None


def api_key() -> str | None:
    """The key that the gateway asks for, if one is configured."""
    return os.environ.get(f"{PREFIX}API_KEY") or None


def cost_profile() -> str:
    """The list prices of models, or where they stand; empty without."""
    return from_any_folder(os.environ.get(f"{PREFIX}COST_PROFILE", ""))


def secret_key() -> dict[str, str]:
    """The vault's master secret as the operator gave it; empty when the data folder's own key is to be used."""
    names = (f"{PREFIX}SECRET_KEY", f"{PREFIX}SECRET_KEY_FILE", f"{PREFIX}FORMER_SECRET_KEY")
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def vault() -> tuple[str, str]:
    """Address of a vault elsewhere and the file with its token, where the operator names them."""
    read = os.environ.get
    return read(f"{PREFIX}VAULT_ADDRESS", ""), read(f"{PREFIX}INTERNAL_TOKEN_FILE", "")


def common() -> dict[str, str]:
    """The variables that every service gets: nothing that could be a secret of this machine's owner."""
    return {name: value for name, value in os.environ.items() if _is_common(name)}


def everything() -> dict[str, str]:
    """For the vault alone: settings may refer to any variable of the operator by name."""
    return {name: value for name, value in os.environ.items() if name.removeprefix(PREFIX) not in _PARTICULAR}


def _is_common(name: str) -> bool:
    if name.startswith(PREFIX):
        own = name.removeprefix(PREFIX)
        return own not in _PARTICULAR and not own.startswith(("MODEL", "S3_")) and not own.endswith("_ADDRESS")
    return name in _COMMON or name.startswith(_COMMON_PREFIXES)


def model_vendor() -> Mapping[str, str]:
    """Vendor, base URL and key of the model as the environment names them; vendor `demo` when it names none."""
    read = os.environ.get
    vendor = read(f"{PREFIX}MODEL_VENDOR") or _vendor_by_key()
    key_of_vendor = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}.get(vendor, "")
    usual = {"anthropic": "https://api.anthropic.com", "openai": "https://api.openai.com/v1"}.get(vendor, "")
    return {
        "vendor": vendor,
        "base_url": read(f"{PREFIX}MODEL_BASE_URL") or usual,
        "api_key": read(f"{PREFIX}MODEL_API_KEY") or read(key_of_vendor, ""),
        "model": read(f"{PREFIX}MODEL") or "",
    }


def _vendor_by_key() -> str:
    if os.environ.get("ANTHROPIC_API_KEY"):
        return "anthropic"
    return "openai" if os.environ.get("OPENAI_API_KEY") else "demo"
