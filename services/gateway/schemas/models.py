"""Shapes of models."""

from __future__ import annotations

from typing import Literal

from .shapes import Rendered


class Model(Rendered):
    """What an agent may name as its model."""

    id: str
    type: Literal["model"]
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int | None
    max_tokens: int | None


class ModelPage(Rendered):
    """A page of models."""

    data: list[Model]
    has_more: bool
    first_id: str | None
    last_id: str | None
