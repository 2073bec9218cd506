"""Skills over REST against a real service: every way of uploading, what is refused, versions, pages, downloads."""

from __future__ import annotations

import asyncio
import base64
import io
import stat
import unicodedata
import warnings
import zipfile
from typing import Any

import httpx2
import pytest

from kit.archives import Limits, read_zip
from tests.integration.gateway.conftest import Gateway
from tests.support.skills import as_form, manifest, package, zipped

pytestmark = pytest.mark.asyncio(loop_scope="package")

PUBLISHED = {"anthropic-version": "2026-10-21"}
EARLIER = {"anthropic-version": "2023-06-01", "anthropic-beta": "skills-2025-10-02"}


async def _create(http: httpx2.AsyncClient, name: str = "greeter", **headers: str) -> Any:
    answer = await http.post("/v1/skills", files=as_form(package(name)), headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def _json(files: dict[str, bytes], encoding: str = "base64", **more: Any) -> dict[str, Any]:
    def content(data: bytes) -> str:
        return base64.b64encode(data).decode() if encoding == "base64" else data.decode()

    return {
        "files": [{"name": name, "content": content(data), "encoding": encoding} for name, data in files.items()]
    } | more


async def test_every_way_of_uploading_makes_the_same_package(http: httpx2.AsyncClient) -> None:
    files = package()
    ways: list[dict[str, Any]] = [
        {"files": as_form(files)},
        {"files": as_form(files, "files")},
        {"files": [("files", ("greeter.zip", zipped(files)))]},
        {"files": [("files[]", ("greeter.skill", zipped(files)))]},
        {"json": _json(files)},
        {"json": _json(files, "utf8")},
        {"json": _json({"greeter.zip": zipped(files)})},
    ]
    contents = []
    for way in ways:
        created = await http.post("/v1/skills", **way)
        assert created.status_code == 200, created.text
        skill = created.json()
        assert (skill["name"], skill["display_name"], skill["type"]) == ("greeter", "greeter", "skill")
        content = await http.get(f"/v1/skills/{skill['id']}/versions/latest/content")
        contents.append({file.name: file.data for file in read_zip(content.content, Limits())})
        assert (await http.delete(f"/v1/skills/{skill['id']}")).json() == {"id": skill["id"], "type": "skill_deleted"}
    assert contents == [files] * len(ways)


async def test_a_skill_reads_as_each_caller_expects(http: httpx2.AsyncClient) -> None:
    answer = await http.post("/v1/skills", files=as_form(package()), data={"display_name": "The greeter"})
    skill = answer.json()
    assert skill["source"] == "custom" and skill["display_title"] == skill["display_name"] == "The greeter"
    path = f"/v1/skills/{skill['id']}"
    assert (await http.get(path)).json() == skill
    assert (await http.get(path, headers=PUBLISHED)).json() == skill | {"source": {"type": "custom"}}
    assert (await http.get(path, headers=EARLIER)).json() == skill
    assert skill["latest_version_id"].startswith("skver_") and skill["latest_version"].isdigit()
    version = (await http.get(f"{path}/versions/{skill['latest_version_id']}")).json()
    assert version["name"] == version["directory"] == "greeter" and version["description"] == "Says hello."
    for spelling in ("latest", skill["latest_version"]):
        assert (await http.get(f"{path}/versions/{spelling}")).json() == version


async def test_a_name_is_taken_once_and_free_again_when_its_skill_is_gone(http: httpx2.AsyncClient) -> None:
    skill = await _create(http)
    again = await http.post("/v1/skills", files=as_form(package()))
    assert again.status_code == 409 and again.json()["error"]["code"] == "skill_name_taken"
    assert again.headers["x-should-retry"] == "false"
    assert again.json()["error"]["details"] == {"error_code": "skill_name_taken", "skill_name": "greeter"}
    await http.delete(f"/v1/skills/{skill['id']}")
    assert (await _create(http))["id"] != skill["id"]


async def test_versions_come_and_go_and_keep_their_bytes(http: httpx2.AsyncClient) -> None:
    skill = await _create(http)
    path = f"/v1/skills/{skill['id']}/versions"
    first = skill["latest_version_id"]
    only = await http.delete(f"{path}/{first}")
    assert only.status_code == 400 and only.json()["error"]["code"] == "skill_version_required"
    second = (await http.post(path, files=as_form(package(description="Says more.")))).json()
    changed = (await http.get(f"/v1/skills/{skill['id']}")).json()
    assert changed["latest_version_id"] == second["id"] and changed["description"] == "Says more."
    assert changed["updated_at"] > skill["updated_at"] and int(second["version"]) > int(skill["latest_version"])
    pinned = await http.get(f"{path}/{first}/content")
    assert b"Says hello." in next(file.data for file in read_zip(pinned.content, Limits()) if "SKILL" in file.name)
    assert [each["id"] for each in (await http.get(path)).json()["data"]] == [second["id"], first]
    gone = await http.delete(f"{path}/{second['version']}")
    assert gone.json() == {"id": second["id"], "type": "skill_version_deleted"}
    assert (await http.get(f"/v1/skills/{skill['id']}")).json()["latest_version_id"] == first
    assert (await http.get(f"{path}/{second['id']}")).json()["error"]["code"] == "skill_version_not_found"


async def test_a_version_keeps_the_name_of_its_skill(http: httpx2.AsyncClient) -> None:
    skill = await _create(http)
    other = await http.post(f"/v1/skills/{skill['id']}/versions", files=as_form(package("other")))
    assert other.status_code == 400 and other.json()["error"]["code"] == "invalid_skill_package"


async def test_pages_lead_through_all_of_them(http: httpx2.AsyncClient) -> None:
    made = [(await _create(http, f"skill-{number}"))["id"] for number in range(5)]
    found, page = [], {}
    while True:
        body = (await http.get("/v1/skills", params={"limit": 2, **page})).json()
        found += [each["id"] for each in body["data"]]
        assert body["first_id"] == body["data"][0]["id"] and body["last_id"] == body["data"][-1]["id"]
        assert body["has_more"] is (body["next_page"] is not None) and body["prev_page"] is None
        if body["next_page"] is None:
            break
        page = {"page": body["next_page"]}
    assert found == made[::-1]
    foreign = await http.get(f"/v1/skills/{made[0]}/versions", params=page)
    assert foreign.json()["error"]["code"] == "invalid_cursor"


LISTINGS: list[tuple[dict[str, Any], dict[str, str], int]] = [
    ({"limit": 100}, {}, 200),
    ({"limit": 101}, {}, 400),
    ({"limit": 1000}, PUBLISHED, 200),
    ({"limit": 1001}, PUBLISHED, 400),
    ({"limit": 0}, {}, 400),
    ({"source": "plugin"}, {}, 400),
    ({"source": "custom"}, {}, 200),
    ({"status": "x"}, {}, 400),
]


async def test_what_a_listing_takes(http: httpx2.AsyncClient) -> None:
    for params, headers, status in LISTINGS:
        answer = await http.get("/v1/skills", params=params, headers=headers)
        assert answer.status_code == status, (params, answer.text)


async def test_a_listing_is_filtered_by_source(http: httpx2.AsyncClient) -> None:
    skill = await _create(http)
    assert [each["id"] for each in (await http.get("/v1/skills?source=custom")).json()["data"]] == [skill["id"]]
    assert (await http.get("/v1/skills?source=anthropic")).json()["data"] == []


async def test_a_download_is_an_archive_that_no_browser_opens(http: httpx2.AsyncClient) -> None:
    skill = await _create(http)
    path = f"/v1/skills/{skill['id']}/versions/{skill['latest_version_id']}/content"
    answer = await http.get(path)
    assert answer.headers["content-type"] == "application/zip" and answer.headers["x-content-type-options"] == "nosniff"
    assert "greeter.zip" in answer.headers["content-disposition"]
    assert len(answer.content) == int(answer.headers["content-length"])
    known = await http.get(path, headers={"if-none-match": answer.headers["etag"]})
    assert known.status_code == 304 and not known.content
    assert (await http.head(path)).headers["content-length"] == answer.headers["content-length"]


def _link() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in package().items():
            archive.writestr(name, data)
        link = zipfile.ZipInfo("greeter/link")
        link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc")
        archive.writestr("greeter/link/passwd", "x")
    return buffer.getvalue()


def _with(*extra: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")
        for name, data in (*package().items(), *extra):
            archive.writestr(name, data)
    return buffer.getvalue()


def _nul() -> bytes:
    return _with(("greeter/aPb", b"x")).replace(b"greeter/aPb", b"greeter/a\x00b")


ARCHIVES = {
    "up": _with(("../x", b"x")),
    "up within": _with(("greeter/../../x", b"x")),
    "absolute": _with(("/abs", b"x")),
    "drive": _with(("C:\\x", b"x")),
    "NUL": _nul(),
    "link": _link(),
    "bomb": _with(("greeter/zeros", bytes(60_000_000))),
    "many": _with(*((f"greeter/{number}", b"") for number in range(5_000))),
    "twice": _with(("greeter/a", b"1"), ("greeter/a", b"2")),
    "case": _with(("greeter/a", b"1"), ("greeter/A", b"2")),
    "form": _with((unicodedata.normalize("NFC", "greeter/é"), b""), (unicodedata.normalize("NFD", "greeter/é"), b"")),
    "two manifests": _with(("greeter/sub/SKILL.md", manifest())),
    "no manifest": zipped({"greeter/readme.md": b"x"}),
    "two folders": _with(("other/a", b"x")),
    "no archive": b"not a zip",
    "tar": b"ustar" + bytes(2_000),
    "empty": zipped({}),
    "bad front matter": zipped({"greeter/SKILL.md": b"---\nname: [\n---\n"}),
}


async def test_a_bad_archive_is_refused_and_nothing_is_written(
    fresh_http: httpx2.AsyncClient, fresh_gateway: Gateway
) -> None:
    http, gateway = fresh_http, fresh_gateway
    for kind, data in ARCHIVES.items():
        for way in ({"files": [("files", ("a.zip", data))]}, {"json": _json({"a.skill": data})}):
            answer = await http.post("/v1/skills", **way)
            assert answer.status_code == 400, (kind, answer.text)
            assert answer.json()["error"]["code"] == "invalid_skill_package"
    assert (await http.get("/v1/skills")).json()["data"] == []
    assert not [each for each in gateway.data_dir.rglob("*") if each.is_file()]


NAMES = (
    *("../x", "greeter/../../x", "/abs", "C:\\x", "greeter\\x", "greeter/./x", "greeter//x", "GREETER/x"),
    *("greeter/SKILL.MD", "greeter/scripts", "greeter/scripts/HELLO.sh", "x" * 300),
)


async def test_a_bad_name_in_a_form_or_in_json_is_refused(
    fresh_http: httpx2.AsyncClient, fresh_gateway: Gateway
) -> None:
    http, gateway = fresh_http, fresh_gateway
    for name in NAMES:
        form = {"files": [*as_form(package()), ("files[]", (name, b"x"))]}
        for way in (form, {"json": _json(package() | {name: b"x"})}):
            answer = await http.post("/v1/skills", **way)
            assert answer.status_code == 400, (name, answer.text)
            assert answer.json()["error"]["code"] == "invalid_skill_package", answer.text
    assert not [each for each in gateway.data_dir.rglob("*") if each.is_file()]


BODIES: list[tuple[dict[str, Any], int, str | None]] = [
    ({"files": [("file_", ("a", b"x"))]}, 400, "unknown_field"),
    ({"files": as_form(package()), "data": {"title": "x"}}, 400, "unknown_field"),
    ({"files": as_form(package()), "data": {"display_name": "x" * 256}}, 400, "invalid_request"),
    ({"files": as_form(package()), "data": {"display_name": "two\nlines"}}, 400, "invalid_request"),
    ({"data": {"files": "text"}, "files": as_form(package())}, 400, "invalid_request"),
    ({"json": {}}, 400, "invalid_request"),
    ({"json": {"files": []}}, 400, "invalid_request"),
    ({"json": {"files": [{"name": "a"}]}}, 400, "invalid_request"),
    ({"json": {"files": [{"name": "a", "content": "x", "mode": 1}]}}, 400, "unknown_field"),
    ({"json": {"files": [{"name": "a", "content": "?", "encoding": "base64"}]}}, 400, "invalid_skill_package"),
    ({"json": _json(package(), display_name="a", display_title="b")}, 400, None),
    ({"content": b"raw", "headers": {"content-type": "text/plain"}}, 415, "unsupported_media_type"),
    ({"content": b"--x--", "headers": {"content-type": "multipart/form-data; boundary=x"}}, 400, None),
    ({"content": b"", "headers": {"content-type": "multipart/form-data"}}, 400, "invalid_request"),
]


async def test_another_body_is_refused(http: httpx2.AsyncClient) -> None:
    for body, status, code in BODIES:
        answer = await http.post("/v1/skills", **body)
        assert answer.status_code == status, (body, answer.text)
        assert code is None or answer.json()["error"]["code"] == code, (body, answer.text)


async def test_a_body_that_is_too_large_is_refused_before_it_is_read(gateway: Gateway) -> None:
    for content_type in ("multipart/form-data; boundary=x", "application/json"):
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.server.port)
        head = f"POST /v1/skills HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {content_type}\r\n"
        writer.write(f"{head}content-length: 50000000\r\n\r\n".encode())
        assert b" 413 " in await reader.readline()
        writer.close()
        await writer.wait_closed()


async def test_what_is_not_there_is_told_apart(http: httpx2.AsyncClient) -> None:
    skill = await _create(http)
    for path in ("/v1/skills/skill_none", "/v1/skills/skill_none/versions", "/v1/skills/skill_none/versions/latest"):
        answer = await http.get(path)
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "skill_not_found"
    answer = await http.get(f"/v1/skills/{skill['id']}/versions/skver_none/content")
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "skill_version_not_found"
    assert (await http.delete("/v1/skills/skill_none")).status_code == 404
    assert (await http.delete(f"/v1/skills/{skill['id']}/versions/latest")).status_code == 404
    answer = await http.post("/v1/skills/skill_none/versions", files=as_form(package()))
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "skill_not_found"


async def test_an_upload_that_comes_again_is_answered_as_the_first(http: httpx2.AsyncClient) -> None:
    """By its key for a day; without one, the published client's next try by its content."""
    keyed = {"idempotency-key": "upload-1"}
    first = await http.post("/v1/skills", files=as_form(package()), headers=keyed)
    assert (await http.post("/v1/skills", files=as_form(package()), headers=keyed)).json() == first.json()
    other = await http.post("/v1/skills", files=as_form(package("other")), headers=keyed)
    assert other.status_code == 409 and other.json()["error"]["code"] == "idempotency_key_reused"
    tries = [PUBLISHED | {"x-stainless-retry-count": str(number)} for number in range(2)]
    made = await http.post("/v1/skills", files=as_form(package("retried")), headers=tries[0])
    assert (await http.post("/v1/skills", files=as_form(package("retried")), headers=tries[1])).json() == made.json()
