"""No secret gets into a log line, by whatever way it comes; without an endpoint there are no traces."""

import json
import logging

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kit import redaction, telemetry
from kit.redaction import MASK, mask_text, register_secret
from kit.telemetry import log


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(redaction, "_secrets", {})
    monkeypatch.setattr(redaction, "_pattern", None)
    telemetry.setup("tested")
    yield
    telemetry.request_id.set("")


def lines(capsys) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line_is_one_object_with_its_request(capsys):
    telemetry.bind_request_id("req_1")
    log.info("done", session_id="sess_1", count=3)
    log.debug("not shown")
    (line,) = lines(capsys)
    assert line.items() >= {
        "event": "done", "level": "info", "service": "tested", "request_id": "req_1", "session_id": "sess_1", "count": 3
    }.items()  # fmt: skip
    assert line["timestamp"].endswith("Z")


@pytest.mark.parametrize(
    "key",
    ["api_key", "apiKey", "x-api-key", "API_KEY", "password", "authorization", "Authorization", "client_secret",
     "token", "access_token", "refresh_token", "internal_token", "cookie", "set-cookie", "credential", "private_key",
     "database_url", "dsn"],
)  # fmt: skip
def test_a_value_under_a_secret_key_is_masked_at_any_depth(capsys, key):
    log.info("x", **{key: "value-1"}, nested={"deep": [{key: "value-2"}, {"list": ({key: "value-3"},)}]})
    (line,) = lines(capsys)
    assert "value-" not in json.dumps(line)
    assert line[key] == MASK


@pytest.mark.parametrize("key", ["input_tokens", "tokens_in", "tokens", "key", "keys", "author", "tool_use_id"])
def test_a_harmless_key_is_left(capsys, key):
    log.info("x", **{key: "value"})
    assert lines(capsys)[0][key] == "value"


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=6, max_size=40))
@example("ends in a stroke é\\")
@example('quotes "é"')
@example("\\::::\\")
def test_a_registered_secret_is_in_no_line(secret):
    redaction._secrets.clear()
    register_secret(secret)
    line = telemetry._to_json({"text": f"before {secret} after", "list": [secret], secret: 1})
    assert secret not in json.dumps(json.loads(mask_text(line)), ensure_ascii=False).replace(MASK, "") or secret in MASK


def test_tracebacks_and_other_libraries_are_covered(capsys):
    secret = 'pa"ss\\word'
    register_secret(secret)
    try:
        raise ValueError(f"connecting with {secret} failed")
    except ValueError:
        log.exception("failed")
        logging.getLogger("library").exception("also %s", secret)
    logging.getLogger("library").info("of %s", "interest")
    shown = lines(capsys)
    assert [line["level"] for line in shown] == ["error", "error", "info"]
    assert shown[1]["logger"] == "library"
    assert not [line for line in shown if "word" in json.dumps(line)]
    assert all("ValueError" in line["exception"] for line in shown[:2])


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgresql://user:pa55@host/db", f"postgresql://user:{MASK}@host/db"),
        ("nats://t0k-en@127.0.0.1:4222", f"nats://{MASK}@127.0.0.1:4222"),
        ("Authorization: Bearer abcDEF123456", f"Authorization: Bearer {MASK}"),
        ("key sk-ant-api03-abcdefghijklmnop end", f"key {MASK} end"),
        ("http://127.0.0.1:3000/v1/x?y=a@b", "http://127.0.0.1:3000/v1/x?y=a@b"),
        ("unix:///run/a.sock and mail to a@b", "unix:///run/a.sock and mail to a@b"),
    ],
)
def test_what_looks_like_a_credential_is_masked(text, masked):
    assert mask_text(text) == masked


def test_short_and_empty_values_are_not_taken_for_secrets():
    for value in (None, "", "abc"):
        register_secret(value)
    assert mask_text("abc and abc") == "abc and abc"


def test_an_object_that_is_no_json_is_shown_somehow(capsys):
    log.info("x", thing={1, 2}, error=ValueError("v"), data=b"bytes")
    (line,) = lines(capsys)
    assert line["thing"] == "{1, 2}"
    assert line["error"] == "ValueError('v')"


def test_without_an_endpoint_nothing_is_traced():
    assert not telemetry.tracing()
    assert telemetry.traceparent() == ""
    assert telemetry.inject() == {}
    telemetry.bind_request_id("req_1")
    assert telemetry.inject({"a": "b"}) == {"a": "b", "request-id": "req_1"}
    with telemetry.continue_trace("00-" + "1" * 32 + "-" + "2" * 16 + "-01", "turn") as span:
        assert not span.is_recording()
    with telemetry.tracer().start_as_current_span("x") as span:
        assert not span.is_recording()
    telemetry.flush()


def test_a_line_that_can_not_be_written_harms_nobody(monkeypatch):
    """As where the disk is full: the failure that was to be logged is still handled, and so is every later one."""
    full = open("/dev/full", "w", buffering=1)  # noqa: SIM115
    with monkeypatch.context() as patched:
        patched.setattr("sys.stderr", full)
        for _ in range(3):
            log.warning("database call failed", error="No space left on device")
            logging.getLogger("library").warning("also not")
    with pytest.raises(OSError):
        full.close()
