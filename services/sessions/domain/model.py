"""The model of an agent: a bare id, or an object with speed and effort.

Both forms are stored as one object `{id, speed, effort?}`, and `model_config` is a second
way to say what the object says. Where a caller uses both, they must agree. Nothing is
defaulted silently: a speed or effort outside its set is refused under its own reason.
"""

from typing import Any

from services.sessions.domain import shape
from services.sessions.domain.errors import InvalidModel, InvalidModelEffort, InvalidModelSpeed, UnsupportedModelField

MAX_MODEL_CHARACTERS = 256
SPEEDS = ("standard", "fast", "extended")
EFFORTS = ("low", "medium", "high", "xhigh", "max")
FIELDS = ("id", "speed", "effort")
DEFAULT_SPEED = "standard"

Model = dict[str, Any]


def validate_model(
    value: Any, config: Any = None, *, field: str = "model", config_field: str = "model_config"
) -> Model:
    """The stored form of `model` and, where given, of `model_config`."""
    given = {"id": _identifier(value, field)} if isinstance(value, str) else _object(value, field)
    if "id" not in given:
        raise InvalidModel(f"{field}.id is required: the id of a model as a non-empty string.", field=f"{field}.id")
    if config is not None:
        given = _agreed(given, _object(config, config_field), field, config_field)
    return _ordered({"speed": DEFAULT_SPEED} | given)


def merge_model(stored: Model, patch: dict[str, Any]) -> Model:
    """The model after an update.

    A new `model` replaces the old one with its whole config, so that no speed is left
    pointing at a model it wasn't chosen for. Only the object form of the very same id
    keeps the effort that it doesn't mention. `model_config` alone is a config for the
    model that is there.
    """
    if "model" not in patch:
        return validate_model(stored["id"], patch["model_config"]) if "model_config" in patch else stored
    value = patch["model"]
    if value is None or value == "":
        raise InvalidModel("model cannot be cleared: an agent always has one. Leave it out to keep it.", field="model")
    merged = validate_model(value, patch.get("model_config"))
    keeps_effort = isinstance(value, dict) and "effort" not in value and "model_config" not in patch
    if keeps_effort and merged["id"] == stored["id"] and "effort" in stored:
        merged = merged | {"effort": stored["effort"]}
    return _ordered(merged)


def _object(value: Any, field: str) -> Model:
    if not isinstance(value, dict):
        raise InvalidModel(
            f"{field} must be the id of a model, or an object with the fields {', '.join(FIELDS)}.", field=field
        )
    for key in value:
        if key not in FIELDS and not (key == "inference_geo" and value[key] is None):
            path = f"{field}.{shape.shown(key)}"
            raise UnsupportedModelField(f"{path} is not supported. Known fields: {', '.join(FIELDS)}.", field=path)
    given: Model = {}
    if "id" in value:
        given["id"] = _identifier(value["id"], f"{field}.id")
    if value.get("speed") is not None:
        given["speed"] = _speed(value["speed"], f"{field}.speed")
    if value.get("effort") is not None:
        given["effort"] = {"type": _effort(value["effort"], f"{field}.effort")}
    return given


def _agreed(given: Model, config: Model, field: str, config_field: str) -> Model:
    for key, item in config.items():
        if key in given and given[key] != item:
            raise InvalidModel(
                f"{field} and {config_field} give different values for {key}. Send one, or the same in both.",
                field=config_field,
            )
    return given | config


def _identifier(value: Any, field: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidModel(f"{field} must be the id of a model as a non-empty string.", field=field)
    if len(value) > MAX_MODEL_CHARACTERS or "\x00" in value:
        raise InvalidModel(
            f"{field} has {len(value)} characters; at most {MAX_MODEL_CHARACTERS} and no NUL are accepted.", field=field
        )
    return value


def _speed(value: Any, field: str) -> str:
    if not isinstance(value, str) or value not in SPEEDS:
        raise InvalidModelSpeed(f"{field} must be one of {', '.join(SPEEDS)}.", field=field)
    return value


def _effort(value: Any, field: str) -> str:
    level = value.get("type") if isinstance(value, dict) and value.keys() == {"type"} else value
    if not isinstance(level, str) or level not in EFFORTS:
        raise InvalidModelEffort(
            f'{field} must be one of {", ".join(EFFORTS)}, or an object {{"type": <one of them>}}.', field=field
        )
    return level


def _ordered(model: Model) -> Model:
    return {key: model[key] for key in FIELDS if key in model}
