"""Puts real values in the place of placeholders, in requests of one session to one host.

A value is asked for when its placeholder is met, so what is never used is never opened.
A placeholder on its way to a host that its policy does not allow, or in a part of the
request that it does not allow, refuses the request; so does one in the URL, which
servers write into their logs.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable, Sequence
from urllib.parse import quote_plus

from services.worker.sandbox.http1 import Head, Refused
from services.worker.sandbox.placeholders import Placeholder, SandboxSecrets, SecretsUnavailable
from services.worker.sandbox.replacing import Replacer

# As `curl -u` and git send a name and a password.
_BASIC = re.compile(rb"(basic[ \t]+)([A-Za-z0-9+/_-]+=*)", re.IGNORECASE)
_NOT_IN_A_HEADER = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_MIMICS_JSON = re.compile(rb"application/([\w.+-]+\+)?json\b", re.IGNORECASE)
_MIMICS_FORM = re.compile(rb"application/x-www-form-urlencoded\b", re.IGNORECASE)

Encode = Callable[[str], bytes]


class Injection:
    """The secrets of a session as one connection to a host may use them."""

    def __init__(self, secrets: SandboxSecrets, placeholders: Sequence[Placeholder], host: str, port: int) -> None:
        self._secrets = secrets
        self._by_text = {each.text.encode(): each for each in placeholders}
        self._finder = Replacer({text: text for text in self._by_text})
        self._host = host
        self._port = port
        self._values: dict[str, str] = {}

    async def into_head(self, head: Head) -> Head:
        """The head of a request with values in its headers; raises Refused."""
        self._values = {}
        await self._refuse_in_url(b"\n".join((head.line, *(name for name, _ in head.headers))))
        headers = [(name, await self._into_value(value)) for name, value in head.headers]
        return Head(head.line, tuple(headers))

    async def into_body(self, data: bytes, content_type: bytes) -> bytes:
        """A whole body with values; raises Refused."""
        body = self.body(content_type)
        return await body.feed(data) + await body.finish()

    def body(self, content_type: bytes) -> "BodyInjection":
        """A body that comes in pieces."""
        encode = _encoding_for(content_type)
        return BodyInjection(self, lambda word: encode(self._value_for(word, in_body=True)))

    def watched_body(self) -> "BodyInjection":
        """A body whose length is told already, so that nothing can be replaced in it: a placeholder refuses it."""
        return BodyInjection(self, self._refuse_long)

    async def _refuse_in_url(self, data: bytes) -> None:
        for text, found in self._by_text.items():
            if text in data:
                if not found.allows(self._host, self._port):
                    await self.open(data)
                    raise self._other_host(found)
                raise Refused(
                    "403 Forbidden", f"The credential in {found.name} may not stand in a URL. Send it in a header."
                )

    def _other_host(self, found: Placeholder) -> Refused:
        self._secrets.note_refusal(found.name, self._host)
        return Refused(
            "403 Forbidden", f"The credential in {found.name} may not be sent to {self._host}. {_hosts_of(found)}"
        )

    async def _into_value(self, value: bytes) -> bytes:
        if self._finder.has_any(value):
            await self.open(value)
            value = await self._replaced(value, self._header_value)
        basic = _BASIC.fullmatch(value)
        if basic is None:
            return value
        try:
            decoded = base64.b64decode(basic[2].translate(bytes.maketrans(b"-_", b"+/")) + b"==")
        except (binascii.Error, ValueError):
            return value
        if not self._finder.has_any(decoded):
            return value
        await self.open(decoded)
        plain = await self._replaced(decoded, lambda word: self._value_for(word, in_body=False).encode())
        return basic[1] + base64.b64encode(plain)

    async def _replaced(self, data: bytes, put: Callable[[bytes], bytes]) -> bytes:
        stream = self._finder.stream(put)
        return stream.feed(data) + stream.finish()

    async def open(self, data: bytes) -> None:
        """Ask for what stands in `data`, allowed or not: what is refused is on record at the vault then."""
        names = {found.name for text, found in self._by_text.items() if text in data}
        try:
            self._values |= await self._secrets.open(self._host, self._port, names)
        except SecretsUnavailable as unavailable:
            raise Refused("503 Service Unavailable", str(unavailable)) from unavailable

    def _header_value(self, word: bytes) -> bytes:
        value = self._value_for(word, in_body=False).encode()
        if _NOT_IN_A_HEADER.search(value):
            name = self._by_text[word].name
            raise Refused("403 Forbidden", f"The credential in {name} has several lines and can't stand in a header.")
        return value

    def _value_for(self, word: bytes, *, in_body: bool) -> str:
        found = self._by_text[word]
        value = self._values.get(found.name) if found.allows(self._host, self._port) else None
        if value is None:
            raise self._other_host(found)
        if not (found.in_body if in_body else found.in_headers):
            place, other = ("bodies", "headers") if in_body else ("headers", "bodies")
            raise Refused(
                "403 Forbidden", f"The credential in {found.name} may stand in {other} of requests, not in {place}."
            )
        return value

    def _refuse_long(self, word: bytes) -> bytes:
        # The host and the place come first: what is not allowed at all is told as that.
        self._value_for(word, in_body=True)
        raise Refused(
            "413 Content Too Large",
            f"The credential in {self._by_text[word].name} stands in a body too long to be changed. Send it chunked.",
        )


class BodyInjection:
    """One body, in pieces."""

    def __init__(self, injection: Injection, put: Callable[[bytes], bytes]) -> None:
        self._injection = injection
        self._stream = injection._finder.stream(put)

    async def feed(self, data: bytes) -> bytes:
        """What can be sent by now; raises Refused."""
        if self._stream.finds_with(data):
            await self._injection.open(self._stream.held + data)
        return self._stream.feed(data)

    async def finish(self) -> bytes:
        """What is left."""
        if self._stream.finds_with(b""):
            await self._injection.open(self._stream.held)
        return self._stream.finish()


def _hosts_of(found: Placeholder) -> str:
    if found.unrestricted:
        return "It is not available now."
    if not found.rules:
        return "It names no host."
    return f"It is for {', '.join(rule.to_text() for rule in found.rules)}."


def _encoding_for(content_type: bytes) -> Encode:
    """How a value has to be written so that the body stays what it says it is."""
    if _MIMICS_JSON.match(content_type):
        return lambda value: json.dumps(value, ensure_ascii=False)[1:-1].encode()
    if _MIMICS_FORM.match(content_type):
        return lambda value: quote_plus(value).encode()
    return str.encode
