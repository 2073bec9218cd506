"""From a failed shape to a sentence: the path is the caller's own, and an unknown field learns the known ones."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError

from services.gateway.operation.validation import refusal
from services.gateway.schemas.shapes import AnyObject, Shape


class Text(Shape):
    type: Literal["text"]
    text: Annotated[str, Field(min_length=1)]


class Image(Shape):
    type: Literal["image"]
    source: AnyObject


class Message(Shape):
    content: str | list[Annotated[Text | Image, Field(discriminator="type")]]
    labels: dict[str, str] | None = None
    mode: Literal["a", "b"] = "a"
    settings: Text | None = Field(default=None, alias="model_config")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (
            {"content": [{"type": "text", "text": "x", "txet": 1}]},
            'Unknown field "txet" at "content.0.txet". Accepted here: type, text.',
        ),
        (
            {"content": [{"type": "text", "text": "x"}, {"type": "image", "source": {}, "alt": 1}]},
            'Unknown field "alt" at "content.1.alt". Accepted here: type, source.',
        ),
        (
            {"content": "x", "extra": 1},
            'Unknown field "extra". Accepted here: content, labels, mode, model_config.',
        ),
        ({"content": [{"type": "text", "text": ""}]}, "content.0.text must be at least 1 characters long."),
        ({"content": [{"type": "text"}]}, "content.0.text is required."),
        ({"content": [{"type": "video"}]}, "content.0.type must be one of: 'text', 'image'."),
        ({"content": 5}, "content must be a string or a list."),
        ({"content": [5]}, "content.0 must be an object."),
        ({"content": "x", "labels": []}, "labels must be an object."),
        ({"content": "x", "labels": {"a": None}}, "labels.a must be a string."),
        ({"content": [{}]}, "content.0.type is required."),
        ({"content": "x", "labels": {"content": 1}}, "labels.content must be a string."),
        ({"content": "x", "mode": "c"}, "mode must be one of: 'a' or 'b'."),
        ({"content": "x", "model_config": {"type": "text"}}, "model_config.text is required."),
    ],
)
def test_sentences(body: Any, sentence: str) -> None:
    with pytest.raises(ValidationError) as error:
        Message.model_validate(body)
    assert refusal(Message, error.value).message == sentence
