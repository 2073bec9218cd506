"""A worker reads, writes and lists below its folder only, whatever paths and links it is given."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.worker.fleet.confine import MAX_LINKS, Confined, Outside, PathRefused

SECRET = "not for the agent"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_text(SECRET)
    (tmp_path / "secret.txt").write_text(SECRET)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "file.txt").write_text("inside")
    return folder


@pytest.fixture
def files(root: Path):
    confined = Confined(root)
    yield confined
    confined.close()


def test_the_folder_is_known_by_each_of_its_names(files: Confined, root: Path) -> None:
    for path in ("a/file.txt", "./a//file.txt", "/workspace/a/file.txt", f"{root}/a/file.txt", "a/b/../file.txt"):
        assert files.read(path, 100) == b"inside"
    assert files.inside(".") == files.inside("/workspace") == files.inside(str(root)) == ""
    assert files.inside("a/b/") == "/a/b"


@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../outside/secret.txt",
        "a/../../outside/secret.txt",
        "a/b/../../../secret.txt",
        "/etc/passwd",
        "/",
        "//etc/passwd",
        "/workspace/../secret.txt",
        "/workspaces/x",
        "/proc/self/environ",
    ],
)
def test_what_leads_out_is_refused(files: Confined, outside: Path, path: str) -> None:
    for do in (lambda: files.read(path, 100), lambda: files.write(path, b"x"), lambda: files.entries(path)):
        with pytest.raises(Outside):
            do()
    with pytest.raises(Outside):
        files.inside(path)
    assert (outside / "secret.txt").read_text() == SECRET


@pytest.mark.parametrize("target", ["../outside", "{outside}", "/", "../../..", "/proc/self/root"])
def test_links_that_lead_out_are_refused_wherever_they_stand(
    files: Confined, root: Path, outside: Path, target: str
) -> None:
    (root / "link").symlink_to(target.format(outside=outside))
    (root / "a" / "twice").symlink_to("../link")
    for path in ("link/secret.txt", "a/twice/secret.txt", "link/new/file.txt", "a/../link/secret.txt"):
        with pytest.raises(Outside):
            files.read(path, 100)
        with pytest.raises(Outside):
            files.write(path, b"x")
    with pytest.raises(Outside):
        files.entries("link")
    assert sorted(os.listdir(outside)) == ["secret.txt"]


def test_a_file_that_is_a_link_out_is_neither_read_nor_written(files: Confined, root: Path, outside: Path) -> None:
    (root / "out.txt").symlink_to(outside / "secret.txt")
    (root / "new.txt").symlink_to(outside / "made.txt")
    with pytest.raises(Outside):
        files.read("out.txt", 100)
    for name in ("out.txt", "new.txt"):
        with pytest.raises(Outside):
            files.write(name, b"x")
    assert (outside / "secret.txt").read_text() == SECRET and not (outside / "made.txt").exists()


def test_links_within_the_folder_are_followed(files: Confined, root: Path) -> None:
    (root / "relative").symlink_to("a")
    (root / "absolute").symlink_to(root / "a")
    (root / "sandboxed").symlink_to("/workspace/a")
    (root / "a" / "up").symlink_to("../a/b/..")
    for name in ("relative", "absolute", "sandboxed", "a/up"):
        assert files.read(f"{name}/file.txt", 100) == b"inside"
        assert files.inside(name) == "/a"
    files.write("relative/made.txt", b"x")
    assert (root / "a" / "made.txt").read_bytes() == b"x"


def test_a_ring_of_links_ends(files: Confined, root: Path) -> None:
    (root / "x").symlink_to("y")
    (root / "y").symlink_to("x")
    for number in range(MAX_LINKS + 2):
        (root / f"l{number}").symlink_to(f"l{number + 1}")
    (root / "bomb").symlink_to("/".join(["bomb"] * 40))
    for name in ("x", "l0", "bomb"):
        with pytest.raises(PathRefused):
            files.read(name, 100)


def test_only_regular_files_are_read_and_replaced(files: Confined, root: Path) -> None:
    os.mkfifo(root / "fifo")
    for path in ("fifo", "a", "."):
        with pytest.raises(PathRefused):
            files.read(path, 100)
        with pytest.raises(PathRefused):
            files.write(path, b"x")
    assert stat.S_ISFIFO(os.stat(root / "fifo").st_mode)


def test_a_write_is_whole_keeps_the_mode_and_leaves_nothing_beside_it(files: Confined, root: Path) -> None:
    (root / "run.sh").write_text("old")
    os.chmod(root / "run.sh", 0o755)
    files.write("run.sh", b"new")
    files.write("made/on/the/way.txt", b"x")
    assert (root / "run.sh").read_text() == "new" and stat.S_IMODE(os.stat(root / "run.sh").st_mode) == 0o755
    assert (root / "made/on/the/way.txt").read_bytes() == b"x"
    assert sorted(os.listdir(root)) == ["a", "made", "run.sh"]
    with pytest.raises(PathRefused):
        files.write("run.sh/below", b"x")


def test_sizes_and_names_have_limits(files: Confined) -> None:
    with pytest.raises(PathRefused, match="6 bytes"):
        files.read("a/file.txt", 5)
    for path in ("", "a\0b", "x" * 5000, "x" * 300, "\ud800"):
        with pytest.raises(PathRefused):
            files.read(path, 100)


def test_a_listing_tells_links_as_links(files: Confined, root: Path, outside: Path) -> None:
    (root / "link").symlink_to(outside)
    entries, more = files.entries(".")
    assert [(each["name"], each["type"]) for each in entries] == [("a", "directory"), ("link", "symlink")]
    assert not more
    assert files.entries("a")[0][1] == files.entries("a")[0][1] | {"name": "file.txt", "type": "file", "size": 6}


def test_a_folder_that_is_exchanged_for_a_link_meanwhile_is_not_followed(
    files: Confined, root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def exchanged(path, flags, mode=0o777, *, dir_fd=None):
        # Between the look at a name and its opening.
        if path == "a" and (root / "a").is_dir() and not (root / "a").is_symlink():
            os.rename(root / "a", root / "moved")
            (root / "a").symlink_to(outside)
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", exchanged)
    with pytest.raises(PathRefused):
        files.read("a/secret.txt", 100)


names = st.sampled_from(["a", "b", "c", "..", ".", "", "in", "out", "root", "outside", "secret.txt", "file.txt"])
paths = st.builds(
    lambda lead, parts: lead + "/".join(parts),
    st.sampled_from(["", "/", "/workspace/", "//"]),
    st.lists(names, min_size=1, max_size=8),
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    links=st.dictionaries(st.sampled_from(["in", "out", "a/in", "a/out", "b", "c"]), paths, max_size=5),
    asked=st.lists(paths, min_size=1, max_size=4),
)
def test_no_path_over_any_links_reaches_what_is_outside(
    tmp_path_factory: pytest.TempPathFactory, links: dict[str, str], asked: list[str]
) -> None:
    top = tmp_path_factory.mktemp("confined")
    (top / "secret.txt").write_text(SECRET)
    (top / "outside").mkdir()
    (top / "outside" / "secret.txt").write_text(SECRET)
    for folder in (top, top / "outside"):
        (folder / "beyond").write_text("")
    root = top / "root"
    (root / "a").mkdir(parents=True)
    (root / "a" / "file.txt").write_text("inside")
    for name, target in links.items():
        if target and not (root / name).exists() and not (root / name).is_symlink():
            (root / name).symlink_to(target)
    files = Confined(root)
    try:
        for path in asked:
            for do in (lambda path=path: files.read(path, 1000), lambda path=path: files.entries(path)):
                try:
                    found = do()
                except PathRefused:
                    continue
                assert found != SECRET.encode()
                if isinstance(found, tuple):
                    assert "beyond" not in {each["name"] for each in found[0]}
            try:
                files.write(path, b"written")
            except PathRefused:
                continue
    finally:
        files.close()
    assert sorted(os.listdir(top)) == ["beyond", "outside", "root", "secret.txt"]
    assert (top / "secret.txt").read_text() == (top / "outside" / "secret.txt").read_text() == SECRET
    assert sorted(os.listdir(top / "outside")) == ["beyond", "secret.txt"]
