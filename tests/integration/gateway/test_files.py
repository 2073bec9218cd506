"""Files over REST: both forms of upload, metadata and preview, content with ranges, pages, scopes, expiry, archive."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from kit.ids import new_id
from kit.waiting import within

from .conftest import Gateway

pytestmark = pytest.mark.asyncio(loop_scope="package")

LIMIT = 10 * 1024 * 1024
PUBLISHED = {"anthropic-version": "2026-10-21"}
BETA = {"anthropic-beta": "managed-agents-2026-04-01"}


async def upload(http: httpx2.AsyncClient, content: bytes = b"hello", name: str = "notes.txt", **more: Any) -> Any:
    """A multipart upload; the file."""
    kind = more.pop("kind", "text/plain")
    answer = await http.post("/v1/files", files={"file": (name, content, kind)}, data=more)
    assert answer.status_code == 200, answer.text
    return answer.json()


def error_of(answer: httpx2.Response, status: int) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


async def a_session(http: httpx2.AsyncClient) -> str:
    agent = (await http.post("/v1/agents", json={"name": "a", "model": "demo", "system": "s"})).json()
    body = {"agent": agent["id"], "environment_id": "env_default"}
    return (await http.post("/v1/sessions", json=body)).json()["id"]


async def test_a_multipart_upload_is_a_file_with_a_preview(http: httpx2.AsyncClient) -> None:
    content = "héllo\n".encode() * 1000
    file = await upload(http, content, "notes.md", kind="text/markdown")
    assert (file["type"], file["filename"], file["name"]) == ("file", "notes.md", "notes.md")
    assert (file["mime_type"], file["media_type"], file["size_bytes"]) == ("text/markdown", "text/markdown", 7000)
    assert file["sha256"] == hashlib.sha256(content).hexdigest()
    assert (file["downloadable"], file["scope"], file["session_id"], file["status"]) == (True, None, None, "active")
    assert file["preview"] == content.decode()[:4000] and file["preview_truncated"] is True
    assert (await http.get(f"/v1/files/{file['id']}")).json() == file
    listed = (await http.get("/v1/files")).json()["data"]
    assert listed == [{name: value for name, value in file.items() if not name.startswith("preview")}]


@pytest.mark.parametrize(
    ("body", "content"),
    [
        ({"name": "a.txt", "media_type": "text/plain", "content": "hello", "encoding": "utf8"}, b"hello"),
        ({"content": "aGVsbG8=", "encoding": "base64", "name": "a.txt", "media_type": "text/plain"}, b"hello"),
        ({"filename": "a.txt", "mime_type": "text/plain", "content": "hello"}, b"hello"),
        ({"filename": "a.txt", "name": "a.txt", "content": ""}, b""),
    ],
)
async def test_a_json_upload_is_the_same_file(http: httpx2.AsyncClient, body: dict[str, Any], content: bytes) -> None:
    answer = await http.post("/v1/files", json=body)
    assert answer.status_code == 200, answer.text
    file = answer.json()
    assert (file["name"], file["media_type"], file["size_bytes"]) == ("a.txt", "text/plain", len(content))
    assert file["preview"] == content.decode() and file["preview_truncated"] is False
    downloaded = await http.get(f"/v1/files/{file['id']}/content")
    assert downloaded.content == content and downloaded.headers["content-length"] == str(len(content))


FAULTY_JSON_UPLOAD_NAMES_THE_FIELD_CASES: list[Any] = [
    ({"content": "x"}, "name is required"),
    ({"name": "a"}, "content is required"),
    ({"name": "a", "content": 5}, "content must be a string"),
    ({"name": "a", "content": "x", "encoding": "hex"}, "encoding must be one of"),
    ({"name": "a", "content": "x" * 9, "encoding": "base64"}, "content is not base64"),
    ({"name": "a", "content": "eA==eA==", "encoding": "base64"}, "content is not base64"),
    ({"name": "a", "content": "e A==", "encoding": "base64"}, "content is not base64"),
    ({"name": "a", "content": "x", "media_type": "text"}, "media_type must match"),
    ({"name": "a", "content": "x", "media_type": "té/x"}, "media_type must be a type and a subtype"),
    ({"name": "a", "filename": "b", "content": "x"}, "name and filename name one thing"),
    ({"name": "a", "content": "x", "expires_in_seconds": 60}, "expires_in_seconds must be at least 3600"),
    ({"name": "a", "content": "x", "path": "/x"}, "path"),
]


async def test_a_faulty_json_upload_names_the_field(http: httpx2.AsyncClient) -> None:
    for body, told in FAULTY_JSON_UPLOAD_NAMES_THE_FIELD_CASES:
        error = error_of(await http.post("/v1/files", json=body), 400)
        assert error["type"] == "invalid_request_error" and told in error["message"]
        assert (await http.get("/v1/files")).json()["data"] == []


FAULTY_MULTIPART_UPLOAD_NAMES_THE_PART_CASES: list[Any] = [
    ([("other", ("a", b"x"))], {}, "other is not known"),
    ([("file", ("a", b"x")), ("file", ("b", b"x"))], {}, "file must be given once"),
    ([("file", ("a", b"x"))], {"expires_in_seconds": "soon"}, "expires_in_seconds must be a whole number"),
    ([("file", ("a", b"x"))], {"expires_in_seconds": "60"}, "expires_in_seconds must be from 3600"),
    ([("file", ("a", b"x"))], {"purpose": "agent"}, "purpose is not known"),
]


async def test_a_faulty_multipart_upload_names_the_part(http: httpx2.AsyncClient) -> None:
    for files, data, told in FAULTY_MULTIPART_UPLOAD_NAMES_THE_PART_CASES:
        assert told in error_of(await http.post("/v1/files", files=files, data=data), 400)["message"]
        assert (await http.get("/v1/files")).json()["data"] == []


async def test_a_body_of_another_kind_or_none_is_refused(http: httpx2.AsyncClient) -> None:
    answer = await http.post("/v1/files", content=b"x", headers={"content-type": "text/plain"})
    assert error_of(answer, 415)["code"] == "unsupported_media_type"
    form = {"content-type": "multipart/form-data; boundary=b"}
    answer = await http.post("/v1/files", content=b"--b--\r\n", headers=form)
    assert error_of(answer, 400)["message"] == "file is required: the body has no part of that name."
    cut = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nhel'
    assert "ends before" in error_of(await http.post("/v1/files", content=cut, headers=form), 400)["message"]
    answer = await http.post("/v1/files", content=cut, headers={"content-type": "multipart/form-data"})
    assert "boundary" in error_of(answer, 400)["message"]
    assert (await http.get("/v1/files")).json()["data"] == []


async def test_the_limit_is_exact(http: httpx2.AsyncClient) -> None:
    content = os.urandom(LIMIT)
    assert (await upload(http, content, "most.bin"))["size_bytes"] == LIMIT
    too_large = error_of(await http.post("/v1/files", files={"file": ("a", content + b"x")}), 413)
    assert too_large["type"] == "request_too_large"
    encoded = base64.b64encode(content + b"x").decode()
    answer = await http.post("/v1/files", json={"name": "a", "content": encoded, "encoding": "base64"})
    assert error_of(answer, 413)["type"] == "request_too_large"
    body = {"name": "a", "content": base64.b64encode(content).decode(), "encoding": "base64"}
    assert (await http.post("/v1/files", json=body)).json()["size_bytes"] == LIMIT
    assert len((await http.get("/v1/files")).json()["data"]) == 2


async def test_a_length_that_says_too_much_is_refused_before_the_body(http: httpx2.AsyncClient) -> None:
    async def never() -> AsyncIterator[bytes]:
        raise AssertionError("the body was asked for")
        yield b""

    headers = {
        "content-type": "multipart/form-data; boundary=b",
        "content-length": str(2 * LIMIT),
        "expect": "100-continue",
    }
    import asyncio

    reader, writer = await asyncio.open_connection(*http.base_url.netloc.decode().split(":"))
    head = "".join(f"{name}: {value}\r\n" for name, value in (headers | {"host": "localhost"}).items())
    writer.write(f"POST /v1/files HTTP/1.1\r\n{head}\r\n".encode())
    line = await within(reader.readline(), 30)
    assert line.startswith(b"HTTP/1.1 413"), line
    writer.close()
    await writer.wait_closed()


RANGE_IS_THE_PART_ASKED_FOR_CASES: list[Any] = [
    ("bytes=0-3", (0, 4)),
    ("bytes=5-", (5, 10)),
    ("bytes=-4", (6, 10)),
    ("bytes=-400", (0, 10)),
    ("bytes=8-400", (8, 10)),
    ("bytes=9-9", (9, 10)),
]


async def test_a_range_is_the_part_asked_for(http: httpx2.AsyncClient) -> None:
    for asked, part in RANGE_IS_THE_PART_ASKED_FOR_CASES:
        file = await upload(http, b"0123456789")
        answer = await http.get(f"/v1/files/{file['id']}/content", headers={"range": asked})
        assert answer.status_code == 206 and answer.content == b"0123456789"[slice(*part)]
        assert answer.headers["content-range"] == f"bytes {part[0]}-{part[1] - 1}/10"


RANGE_THAT_IS_NONE_IS_ANSWERED_WITH_THE_WHOLE_CASES: list[Any] = [
    "bytes=3-1",
    "bytes=0-1,4-5",
    "lines=1-2",
    "bytes=",
    "bytes=-",
    "bytes=a-b",
    "",
]


async def test_a_range_that_is_none_is_answered_with_the_whole(http: httpx2.AsyncClient) -> None:
    for asked in RANGE_THAT_IS_NONE_IS_ANSWERED_WITH_THE_WHOLE_CASES:
        file = await upload(http, b"0123456789")
        answer = await http.get(f"/v1/files/{file['id']}/content", headers={"range": asked})
        assert (answer.status_code, answer.content) == (200, b"0123456789")


RANGE_BEHIND_THE_END_IS_416_CASES: list[Any] = ["bytes=10-", "bytes=99-100", "bytes=-0", f"bytes={'9' * 18}-"]


async def test_a_range_behind_the_end_is_416(http: httpx2.AsyncClient) -> None:
    for asked in RANGE_BEHIND_THE_END_IS_416_CASES:
        file = await upload(http, b"0123456789")
        answer = await http.get(f"/v1/files/{file['id']}/content", headers={"range": asked})
        assert error_of(answer, 416)["code"] == "file_range_not_satisfiable"
        assert answer.headers["content-range"] == "bytes */10"


async def test_what_the_caller_has_is_not_sent_again(http: httpx2.AsyncClient) -> None:
    file = await upload(http, b"0123456789")
    path = f"/v1/files/{file['id']}/content"
    etag = f'"{file["sha256"]}"'
    assert (await http.get(path)).headers["etag"] == etag
    for known in (etag, f'W/{etag}, "x"', "*"):
        answer = await http.get(path, headers={"if-none-match": known})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)
    assert (await http.get(path, headers={"if-none-match": '"other"'})).content == b"0123456789"
    part = await http.get(path, headers={"if-range": etag, "range": "bytes=0-1"})
    assert (part.status_code, part.content) == (206, b"01")
    whole = await http.get(path, headers={"if-range": '"other"', "range": "bytes=0-1"})
    assert (whole.status_code, whole.content) == (200, b"0123456789")


async def test_head_tells_the_length_and_sends_nothing(http: httpx2.AsyncClient) -> None:
    file = await upload(http, b"0123456789")
    answer = await http.head(f"/v1/files/{file['id']}/content")
    assert (answer.status_code, answer.content, answer.headers["content-length"]) == (200, b"", "10")
    assert (await http.head("/v1/files/file_x/content")).status_code == 404


async def test_browsers_run_and_guess_nothing(http: httpx2.AsyncClient) -> None:
    body = {"name": 'évil "x".html', "media_type": "text/html", "content": "<script>1</script>"}
    file = (await http.post("/v1/files", json=body)).json()
    headers = (await http.get(f"/v1/files/{file['id']}/content")).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-type"] == "text/html"
    assert headers["content-security-policy"] == "sandbox; default-src 'none'"
    assert headers["content-disposition"].startswith("attachment; filename=\"_vil _x_.html\"; filename*=UTF-8''")
    assert file["preview"] == "<script>1</script>"


NAMES_ARE_MADE_HARMLESS_CASES: list[Any] = [
    ("../../etc/passwd", "passwd"),
    ("C:\\temp\\x.txt", "x.txt"),
    ("a\u202etxt.exe", "atxt.exe"),
    ("tab\there", "tabhere"),
    ("..", "unnamed.txt"),
    ("", "unnamed.txt"),
    ("/", "unnamed.txt"),
]


async def test_names_are_made_harmless(http: httpx2.AsyncClient) -> None:
    for given, kept in NAMES_ARE_MADE_HARMLESS_CASES:
        body = {"name": given or " ", "media_type": "text/plain", "content": "x"}
        file = (await http.post("/v1/files", json=body)).json()
        assert (file["name"], file["filename"]) == (kept, kept)
        assert "/" not in (await http.get(f"/v1/files/{file['id']}/content")).headers["content-disposition"]


async def test_what_says_nothing_of_its_type_is_told_by_its_name(http: httpx2.AsyncClient) -> None:
    assert (await upload(http, b"{}", "a.json", kind="application/octet-stream"))["media_type"] == "application/json"
    assert (await upload(http, b"x", "a", kind="no type at all"))["media_type"] == "application/octet-stream"
    assert (await upload(http, b"x", "a.txt", kind="Text/Plain; charset=utf-8"))["media_type"] == "text/plain"


async def test_pages_go_both_ways_in_both_envelopes(http: httpx2.AsyncClient) -> None:
    ids = [(await upload(http, b"x", f"{number}.txt"))["id"] for number in range(7)][::-1]
    first = (await http.get("/v1/files", params={"limit": 3})).json()
    assert [each["id"] for each in first["data"]] == ids[:3] and first["has_more"] is True
    assert (first["first_id"], first["last_id"], first["prev_page"]) == (ids[0], ids[2], None)
    second = (await http.get("/v1/files", params={"limit": 3, "page": first["next_page"]})).json()
    assert [each["id"] for each in second["data"]] == ids[3:6]
    third = (await http.get("/v1/files", params={"limit": 3, "page": second["next_page"]})).json()
    assert [each["id"] for each in third["data"]] == ids[6:] and third["next_page"] is None and not third["has_more"]
    after = (await http.get("/v1/files", params={"limit": 3, "after_id": ids[2]})).json()
    assert after["data"] == second["data"]
    before = (await http.get("/v1/files", params={"limit": 2, "before_id": ids[3]})).json()
    assert [each["id"] for each in before["data"]] == ids[1:3] and before["has_more"] is True
    ascending = (await http.get("/v1/files", params={"order": "asc", "limit": 100})).json()
    assert [each["id"] for each in ascending["data"]] == ids[::-1]
    mixed = await http.get("/v1/files", params={"order": "asc", "page": first["next_page"]})
    assert error_of(mixed, 400)["code"] == "invalid_cursor"


async def test_ids_answer_what_is_there(http: httpx2.AsyncClient) -> None:
    ids = [(await upload(http))["id"] for _ in range(3)]
    await http.delete(f"/v1/files/{ids[1]}")
    for name in ("ids", "ids[]"):
        asked = [(name, each) for each in (*ids, ids[0], new_id("file"), "x")]
        answer = (await http.get("/v1/files", params=asked)).json()
        assert {each["id"] for each in answer["data"]} == {ids[0], ids[2]}
        assert answer["next_page"] is None
    assert "excludes" in error_of(await http.get("/v1/files", params={"ids": ids[0], "limit": 5}), 400)["message"]
    many = [("ids", f"file_{number}") for number in range(101)]
    assert "at most 100" in error_of(await http.get("/v1/files", params=many), 400)["message"]


FAULTY_LISTING_NAMES_THE_PARAMETER_CASES: list[Any] = [
    ({"limit": 0}, "limit"),
    ({"limit": 1001}, "limit"),
    ({"page": "junk"}, "cursor"),
    ({"after_id": "file_x"}, "after_id"),
    ({"after_id": "a", "before_id": "b"}, "send one"),
    ({"order": "up"}, "order"),
    ({"include_archived": "true"}, "include_archived"),
]


async def test_a_faulty_listing_names_the_parameter(http: httpx2.AsyncClient) -> None:
    for params, told in FAULTY_LISTING_NAMES_THE_PARAMETER_CASES:
        assert told in error_of(await http.get("/v1/files", params=params), 400)["message"]


async def test_a_scope_holds_its_sessions_files_and_an_unknown_one_none(http: httpx2.AsyncClient) -> None:
    await upload(http)
    session_id = await a_session(http)
    for scope in (session_id, new_id("sess"), "x", "wrkspc_default"):
        answer = (await http.get("/v1/files", params={"scope_id": scope})).json()
        assert (answer["data"], answer["next_page"], answer["has_more"]) == ([], None, False)
    refused = await http.get("/v1/files", params={"scope_id": session_id}, headers=PUBLISHED)
    assert error_of(refused, 400)["code"] == "missing_anthropic_beta"
    admitted = await http.get("/v1/files", params={"scope_id": session_id}, headers=PUBLISHED | BETA)
    assert admitted.status_code == 200
    assert (await http.get("/v1/files", headers=PUBLISHED)).status_code == 200


async def test_an_archived_file_is_gone_for_every_reader(http: httpx2.AsyncClient) -> None:
    file = await upload(http)
    archived = (await http.delete(f"/v1/files/{file['id']}")).json()
    assert (archived["id"], archived["status"], archived["type"]) == (file["id"], "archived", "file")
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        answer = await http.request(method, f"/v1/files/{file['id']}{path}")
        error = error_of(answer, 404)
        assert (error["type"], error["code"]) == ("not_found", "file_not_found")
    assert (await http.get("/v1/files")).json()["data"] == []
    second = await upload(http)
    deleted = await http.delete(f"/v1/files/{second['id']}", headers=PUBLISHED)
    assert deleted.json() == {"id": second["id"], "type": "file_deleted"}


async def test_an_expiry_stands_before_or_behind_the_file(http: httpx2.AsyncClient) -> None:
    file = await upload(http, expires_in_seconds="3600")
    assert file["expires_at"] > file["created_at"]
    part = b'--b\r\ncontent-disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    body = part % (b'file"; filename="a.txt', b"x") + part % (b"expires_in_seconds", b"7776000") + b"--b--\r\n"
    answer = await http.post("/v1/files", content=body, headers={"content-type": "multipart/form-data; boundary=b"})
    assert answer.status_code == 200 and answer.json()["expires_at"]


async def test_a_repeat_is_answered_as_the_first(http: httpx2.AsyncClient) -> None:
    def form(content: bytes) -> dict[str, Any]:
        return {"files": {"file": ("a.txt", content, "text/plain")}}

    key = {"idempotency-key": "k1"}
    first = await http.post("/v1/files", headers=key, **form(b"one"))
    again = await http.post("/v1/files", headers=key, **form(b"one"))
    assert (
        first.json() == again.json() and first.request.headers["content-type"] != again.request.headers["content-type"]
    )
    other = await http.post("/v1/files", headers=key, **form(b"two"))
    assert error_of(other, 409)["code"] == "idempotency_key_reused" and other.headers["x-should-retry"] == "false"
    tries = [await http.post("/v1/files", headers={"x-stainless-retry-count": n}, **form(b"three")) for n in "01"]
    assert tries[0].json() == tries[1].json()
    fresh = await http.post("/v1/files", headers={"x-stainless-retry-count": "0"}, **form(b"three"))
    assert fresh.json()["id"] != tries[0].json()["id"]
    assert len((await http.get("/v1/files")).json()["data"]) == 3


async def test_an_upload_that_is_cut_off_leaves_nothing(http: httpx2.AsyncClient, gateway: Gateway) -> None:
    async def half() -> AsyncIterator[bytes]:
        yield b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
        yield os.urandom(3_000_000)
        raise OSError("the caller is gone")

    with pytest.raises(OSError, match="the caller is gone"):
        await http.post("/v1/files", content=half(), headers={"content-type": "multipart/form-data; boundary=b"})
    assert (await http.get("/v1/files")).json()["data"] == []
    assert (await upload(http))["size_bytes"] == 5


async def test_artifacts_are_recorded_listed_and_downloaded(http: httpx2.AsyncClient) -> None:
    session_id = await a_session(http)
    path = f"/v1/sessions/{session_id}/artifacts"
    body = {"path": "/artifacts/report.md", "name": "report.md", "media_type": "text/markdown", "content": "# Run"}
    artifact = (await http.post(path, json=body)).json()
    assert (artifact["type"], artifact["session_id"], artifact["path"]) == ("artifact", session_id, body["path"])
    assert (artifact["name"], artifact["media_type"], artifact["preview"]) == ("report.md", "text/markdown", "# Run")
    again = (await http.post(path, json=body | {"content": "# Two"})).json()
    assert (again["id"], again["preview"], again["created_at"]) == (artifact["id"], "# Two", artifact["created_at"])
    svg = {"path": "/artifacts/img/a.svg", "content": base64.b64encode(b"<svg/>").decode(), "encoding": "base64"}
    second = (await http.post(path, json=svg)).json()
    assert (second["name"], second["media_type"], second["preview"]) == ("a.svg", "image/svg+xml", "<svg/>")
    listed = (await http.get(path, params={"limit": 1})).json()
    assert [each["id"] for each in listed["data"]] == [second["id"]]
    rest = (await http.get(path, params={"page": listed["next_page"]})).json()
    assert rest["data"] == [again] and rest["next_page"] is None
    content = await http.get(f"{path}/{artifact['id']}/content")
    assert content.content == b"# Two" and content.headers["x-content-type-options"] == "nosniff"
    assert (await http.get("/v1/files")).json()["data"] == []
    assert (await http.get("/v1/files", params={"scope_id": session_id})).json()["data"] == []
    assert (await http.get(f"/v1/files/{artifact['id']}")).status_code == 404


ARTIFACT_ELSEWHERE_IS_REFUSED_CASES: list[Any] = [
    "report.md",
    "/report.md",
    "/artifacts",
    "/artifacts/",
    "/artifacts/../x",
    "/artifacts/a//b",
    "/artifacts/./a",
    "/artifacts/a\\b",
    "/artifacts/a\u0007",
    "/artifacts/" + "x" * 1100,
    "/artifacts/a/",
]


async def test_an_artifact_elsewhere_is_refused(http: httpx2.AsyncClient) -> None:
    for path in ARTIFACT_ELSEWHERE_IS_REFUSED_CASES:
        session_id = await a_session(http)
        answer = await http.post(f"/v1/sessions/{session_id}/artifacts", json={"path": path, "content": "x"})
        error = error_of(answer, 400)
        assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_artifact_path")


async def test_artifacts_of_no_session_and_none_of_a_session_are_told_apart(http: httpx2.AsyncClient) -> None:
    body = {"path": "/artifacts/a.txt", "content": "x"}
    for session_id in (new_id("sess"), "x"):
        for answer in (
            await http.get(f"/v1/sessions/{session_id}/artifacts"),
            await http.post(f"/v1/sessions/{session_id}/artifacts", json=body),
            await http.get(f"/v1/sessions/{session_id}/artifacts/art_x/content"),
        ):
            assert error_of(answer, 404)["code"] == "session_not_found"
    session_id, other = await a_session(http), await a_session(http)
    artifact = (await http.post(f"/v1/sessions/{other}/artifacts", json=body)).json()
    foreign = await http.get(f"/v1/sessions/{session_id}/artifacts/{artifact['id']}/content")
    assert error_of(foreign, 404)["code"] == "artifact_not_found"


async def test_no_answer_says_where_the_bytes_lie(http: httpx2.AsyncClient, gateway: Gateway) -> None:
    session_id, file = await a_session(http), await upload(http, os.urandom(2000), "data.bin")
    artifact = {"path": "/artifacts/a.md", "content": "a"}
    made = (await http.post(f"/v1/sessions/{session_id}/artifacts", json=artifact)).json()
    await http.post(f"/v1/sessions/{session_id}/resources", json={"type": "file", "file_id": file["id"]})
    paths = [f"/v1/files/{file['id']}", f"/v1/files/{file['id']}/content", "/v1/files", "/v1/files/file_none"]
    paths += [
        f"/v1/sessions/{session_id}{end}" for end in ("/artifacts", f"/artifacts/{made['id']}/content", "/resources")
    ]
    answers = [await http.get(path) for path in paths]
    blob = gateway.data_dir / "files" / file["sha256"][:2] / file["sha256"]
    assert blob.is_file() and [answer.status_code for answer in answers] == [200, 200, 200, 404, 200, 200, 200]
    for answer in answers:
        told = answer.content + repr(answer.headers).encode()
        for place in (gateway.data_dir, blob.parent.name + "/" + file["sha256"], blob.parent):
            assert str(place).encode() not in told, answer.url
