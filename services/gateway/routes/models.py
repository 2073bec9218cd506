"""Models that the configured vendor offers. A runner asks the vendor and remembers."""

from __future__ import annotations

from collections.abc import Sequence

from kit.errors import NotFound
from kit.pages import InvalidCursor
from managed_agents.worker.v1.runner_pb2 import ListModelsRequest, Model

from ..errors import InvalidRequest
from ..operation import Call, Operation, limit, many, text
from ..render.models import render_model
from ..render.splice import extension_collection
from ..schemas.models import Model as ModelShape
from ..schemas.models import ModelPage

TAG = "Models"
LIFECYCLES = ("active", "deprecated", "retired")


class ModelNotFound(NotFound):
    """The vendor has no such model."""

    reason = "MODEL_NOT_FOUND"


async def list_models(call: Call) -> bytes:
    """GET /v1/models."""
    query = call.query
    if query["after_id"] and query["before_id"]:
        raise InvalidRequest("Send after_id or before_id, not both.", field="before_id")
    answer = await call.ask(call.clients.runner.ListModels, ListModelsRequest())
    wanted = query["lifecycle[]"]
    # Every model that a vendor lists can be used, so each counts as active.
    models = list(answer.models) if not wanted or "active" in wanted else []
    page, has_more = _page(models, query["after_id"], query["before_id"], query["limit"])
    first_id, last_id = (page[0].id, page[-1].id) if page else ("", "")
    return extension_collection(
        [render_model(model) for model in page], has_more=has_more, first_id=first_id, last_id=last_id
    )


async def get_model(call: Call) -> bytes:
    """GET /v1/models/{model_id}; ids of some vendors hold slashes."""
    model_id = call.path["model_id"]
    answer = await call.ask(call.clients.runner.ListModels, ListModelsRequest())
    for model in answer.models:
        if model.id == model_id:
            return render_model(model)
    raise ModelNotFound(f"Model not found: {model_id}", model_id=model_id)


def _page(models: Sequence[Model], after_id: str, before_id: str, size: int) -> tuple[Sequence[Model], bool]:
    if after_id:
        rest = models[_position(models, after_id, "after_id") + 1 :]
        return rest[:size], len(rest) > size
    if before_id:
        rest = models[: _position(models, before_id, "before_id")]
        return rest[-size:], len(rest) > size
    return models[:size], len(models) > size


def _position(models: Sequence[Model], model_id: str, field: str) -> int:
    for index, model in enumerate(models):
        if model.id == model_id:
            return index
    raise InvalidCursor(f"{field} names no model of this list.", field=field)


OPERATIONS = (
    Operation(
        "GET",
        "/v1/models",
        list_models,
        tag=TAG,
        summary="List models, newest first",
        query=(
            limit(maximum=1000),
            text("after_id", description="The page right after this model."),
            text("before_id", description="The page right before this model."),
            many("lifecycle[]", values=LIFECYCLES, max_items=3, names=("lifecycle",), description="Stages to show."),
        ),
        response=ModelPage,
    ),
    Operation(
        "GET",
        "/v1/models/{model_id:path}",
        get_model,
        tag=TAG,
        summary="Retrieve a model",
        response=ModelShape,
    ),
)
