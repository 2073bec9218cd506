"""Proves: no path leads out of a view, by kernel or by walk, and both ways agree; only regular files are opened."""

import contextlib
import ctypes
import os
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.tools import FileView, ToolFailed, VisibleRoot
from services.worker.tools.resolve import RootedOpener

ROOTS = (VisibleRoot("/workspace"), VisibleRoot("/uploads", writable=False))
WAYS = [True, False]


def build(tmp_path):
    (tmp_path / "secret").write_text("SECRET")
    root = tmp_path / "session"
    for name in ("workspace/a/b", "uploads"):
        (root / name).mkdir(parents=True)
    (root / "workspace/f").write_text("f")
    (root / "workspace/a/g").write_text("g")
    (root / "uploads/u").write_text("u")
    (root / "hidden").write_text("HIDDEN")
    return root


@pytest.fixture(params=WAYS, ids=["kernel", "walk"])
def view(request, tmp_path):
    view = FileView(build(tmp_path), cwd="/workspace", roots=ROOTS, use_kernel=request.param)
    yield view
    view.close()


def content(view, path):
    opened, _ = view.open_file(path)
    with os.fdopen(opened.fd, "rb") as stream:
        return stream.read().decode()


@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "../../secret",
        "/../../secret",
        "/workspace/../../../secret",
        "/hidden",
        "../hidden",
        "/etc/passwd",
        "/proc/1/root/etc/passwd",
        "/proc/self/environ",
        "/dev/null",
        "//etc//passwd",
        "missing",
        "a/../../../../etc/passwd",
    ],
)
def test_a_path_outside_does_not_exist(view, path):
    with pytest.raises(ToolFailed, match="no such file"):
        view.open_file(path)


@pytest.mark.parametrize(
    ("path", "expected"),
    [("f", "f"), ("./a/../f", "f"), ("/workspace/a/g", "g"), ("../uploads/u", "u"), ("/../uploads/u", "u")],
)
def test_a_path_inside_is_found(view, path, expected):
    assert content(view, path) == expected


@pytest.mark.parametrize(
    "target",
    ["/etc/passwd", "../../../../../../etc/passwd", "../../secret", "/secret", "/proc/self/environ", "../hidden"],
)
def test_a_link_leads_nowhere_outside(view, tmp_path, target):
    (tmp_path / "session/workspace/link").symlink_to(target)
    with pytest.raises(ToolFailed, match="no such file"):
        view.open_file("link")
    with pytest.raises(ToolFailed, match="no such file"):
        view.write_file("link", b"x")
    assert (tmp_path / "secret").read_text() == "SECRET"
    assert (tmp_path / "session/hidden").read_text() == "HIDDEN"


def test_links_to_what_is_visible_work_as_inside_the_sandbox(view, tmp_path):
    work = tmp_path / "session/workspace"
    (work / "absolute").symlink_to("/uploads/u")
    (work / "relative").symlink_to("a/g")
    (work / "folder").symlink_to("/workspace/a")
    (work / "chain").symlink_to("folder/g")
    assert content(view, "absolute") == "u"
    assert content(view, "relative") == "g"
    assert content(view, "chain") == "g"
    view.write_file("chain", b"new")
    assert (work / "a/g").read_text() == "new"
    assert (work / "chain").is_symlink()


def test_a_link_to_a_file_that_is_not_there_is_written_through_inside(view, tmp_path):
    (tmp_path / "session/workspace/link").symlink_to("/workspace/new/file")
    view.write_file("link", b"x")
    assert (tmp_path / "session/workspace/new/file").read_text() == "x"


def test_loops_of_links_end(view, tmp_path):
    work = tmp_path / "session/workspace"
    (work / "one").symlink_to("two")
    (work / "two").symlink_to("one")
    with pytest.raises(ToolFailed, match="symbolic links"):
        view.open_file("one")
    with pytest.raises(ToolFailed, match="symbolic links"):
        view.write_file("one", b"x")


def test_read_only_roots_take_no_writes_even_by_a_link(view, tmp_path):
    (tmp_path / "session/workspace/up").symlink_to("/uploads")
    for path in ("/uploads/u", "/uploads/new", "/uploads/new/deep", "up/u", "up/n/x"):
        with pytest.raises(ToolFailed, match="read-only"):
            view.write_file(path, b"x")
    assert os.listdir(tmp_path / "session/uploads") == ["u"]


@pytest.mark.parametrize("path", ["/new", "/new/file", "../new", "/uploads", "/workspace", ".", "a", "a/", "/"])
def test_nothing_is_written_beside_the_roots_or_over_folders(view, tmp_path, path):
    before = sorted(os.listdir(tmp_path / "session"))
    with pytest.raises(ToolFailed):
        view.write_file(path, b"x")
    assert sorted(os.listdir(tmp_path / "session")) == before


def test_a_fifo_and_a_socket_never_block(view, tmp_path):
    os.mkfifo(tmp_path / "session/workspace/fifo")
    with pytest.raises(ToolFailed, match="not a regular file"):
        view.open_file("fifo")
    with pytest.raises(ToolFailed, match="not a regular file"):
        view.write_file("fifo", b"x")


def test_writes_are_atomic_and_keep_the_mode(view, tmp_path):
    target = tmp_path / "session/workspace/f"
    target.chmod(0o750)
    os.link(target, tmp_path / "other")
    view.write_file("f", b"new")
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o750
    # A second name of the old file keeps the old content: it was replaced, not changed.
    assert (tmp_path / "other").read_text() == "f"
    assert sorted(os.listdir(target.parent)) == ["a", "f"]


def test_a_host_path_of_the_folder_is_the_same_file(view, tmp_path):
    assert content(view, str(tmp_path / "session/workspace/f")) == "f"
    with pytest.raises(ToolFailed, match="no such file"):
        view.open_file(str(tmp_path / "secret"))


@pytest.mark.parametrize("way", WAYS, ids=["kernel", "walk"])
def test_a_folder_swapped_for_a_link_during_the_walk_never_leads_out(way, tmp_path):
    root = build(tmp_path)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/g").write_text("SECRET")
    work = root / "workspace"
    (work / "bad").symlink_to(tmp_path / "outside")
    (work / "swap").mkdir()
    (work / "swap/g").write_text("fine")
    stop = threading.Event()

    libc = ctypes.CDLL(None)

    def swap():
        both = (ctypes.c_char_p(os.fsencode(work / "swap")), ctypes.c_char_p(os.fsencode(work / "bad")))
        while not stop.is_set():
            libc.renameat2(-100, both[0], -100, both[1], 2)  # RENAME_EXCHANGE

    view = FileView(root, cwd="/workspace", roots=ROOTS, use_kernel=way)
    thread = threading.Thread(target=swap)
    thread.start()
    try:
        seen = set()
        for _ in range(2000):
            try:
                seen.add(content(view, "swap/g"))
            except ToolFailed:
                seen.add(None)
            with contextlib.suppress(ToolFailed):
                view.write_file("swap/new", b"x")
    finally:
        stop.set()
        thread.join()
        view.close()
    assert "SECRET" not in seen
    assert os.listdir(tmp_path / "outside") == ["g"]


names = st.sampled_from(["a", "b", "f", "g", "l1", "l2", "..", ".", "", "workspace", "uploads", "missing"])
paths = st.builds(
    lambda start, parts, end: start + "/".join(parts) + end,
    st.sampled_from(["", "/"]),
    st.lists(names, min_size=1, max_size=6),
    st.sampled_from(["", "/"]),
)


@pytest.fixture(scope="module")
def playground(tmp_path_factory):
    return tmp_path_factory.mktemp("paths")


@settings(max_examples=300, deadline=None)
@given(path=paths, links=st.tuples(paths.filter(bool), paths.filter(bool)))
def test_kernel_and_walk_agree_and_stay_inside(playground, path, links):
    root = playground / "session"
    if not root.exists():
        build(playground)
    for name, target in zip(("l1", "l2"), links, strict=True):
        link = root / "workspace/a" / name
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    answers = []
    for way in WAYS:
        opener = RootedOpener(root, use_kernel=way)
        try:
            opened = opener.open("/workspace/a/" + path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            answers.append(type(error))
        else:
            inode = os.fstat(opened.fd).st_ino
            os.close(opened.fd)
            assert (root / opened.path.lstrip("/")).stat().st_ino == inode
            answers.append(opened.path)
        finally:
            opener.close()
    assert answers[0] == answers[1]
