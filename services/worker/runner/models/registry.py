"""Which vendors there are. A vendor's module, and with it its SDK, is imported when the vendor is first used."""

from importlib import import_module

from services.worker.runner.models.base import ModelAccess, ModelError, ModelErrorKind, ModelProvider

_PROVIDERS = {
    "demo": ("services.worker.runner.models.demo", "DemoModel"),
    "anthropic": ("services.worker.runner.models.anthropic", "AnthropicModel"),
    "openai": ("services.worker.runner.models.openai", "OpenAIModel"),
}


def vendors() -> tuple[str, ...]:
    """The names that settings may hold."""
    return tuple(_PROVIDERS)


def load(vendor: str) -> None:
    """Import what serves a vendor: a second of work or more, so not for an event loop. An unknown one is ignored."""
    if vendor in _PROVIDERS:
        import_module(_PROVIDERS[vendor][0])


def create(access: ModelAccess) -> ModelProvider:
    """The provider for an access; each class takes the access as its one argument."""
    if access.vendor not in _PROVIDERS:
        accepted = ", ".join(_PROVIDERS)
        raise ModelError(
            ModelErrorKind.INVALID_REQUEST,
            f"The model vendor {access.vendor!r} is not known to this runner; it serves {accepted}.",
        )
    module, name = _PROVIDERS[access.vendor]
    return getattr(import_module(module), name)(access)
