"""Proves: glob and grep find what they should, stay inside, and end in bounded time whatever the pattern."""

import fnmatch
import os
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.tools import ToolFailed, glob, grep
from services.worker.tools.regex import compile_search
from services.worker.tools.wildcards import PathPattern, PatternInvalid

LINEAR = [True, False]


def plant(work, **files):
    for name, text in files.items():
        path = work / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.py", "a.py", True),
        ("*.py", "d/a.py", False),
        ("**/*.py", "a.py", True),
        ("**/*.py", "d/e/a.py", True),
        ("d/**", "d/e/f", True),
        ("d/**/f", "d/f", True),
        ("d/*/f", "d/f", False),
        ("**", ".hidden/x", True),
        ("{a,b}/*.{py,txt}", "b/x.txt", True),
        ("{a,{b,c}}", "c", True),
        ("{a}", "{a}", True),
        ("[!a]b", "cb", True),
        ("[!a]b", "ab", False),
        ("[a-c]?", "bx", True),
        ("[]]", "]", True),
        ("[", "[", True),
        ("\\*", "*", True),
        ("\\*", "a", False),
        ("./a//b", "a/b", True),
    ],
)
def test_wildcards(pattern, path, matches):
    assert PathPattern(pattern).matches(path.split("/")) is matches


@given(st.text("ab*?[]!-", min_size=1, max_size=12), st.text("ab-!", min_size=1, max_size=10))
def test_one_segment_matches_as_the_standard_library_does(pattern, name):
    if "**" in pattern:
        pattern = re.sub(r"\*+", "*", pattern)
    assert PathPattern(pattern).matches([name]) == fnmatch.fnmatchcase(name, pattern)


def test_wildcards_take_linear_time_and_bounded_alternatives():
    began = time.monotonic()
    assert not PathPattern("*a" * 200 + "b").matches(["a" * 4000])
    assert not PathPattern("/".join(["**", "a"] * 50) + "/b").matches(["a"] * 100)
    assert time.monotonic() - began < 5
    with pytest.raises(PatternInvalid):
        PathPattern("{a,b}" * 20)


def test_glob_lists_newest_first_and_leaves_git_out(files, work):
    plant(work, old_dot_py="", src__new_dot_py="", _dot_git__x_dot_py="", _dot_env="")
    os.utime(work / "old.py", (1, 1))
    assert glob.run(files, {"pattern": "**/*.py"}) == "/workspace/src/new.py\n/workspace/old.py"
    assert glob.run(files, {"pattern": "*.py", "path": "src"}) == "/workspace/src/new.py"
    assert glob.run(files, {"pattern": "/workspace/src/*"}) == "/workspace/src/new.py"
    assert set(glob.run(files, {"pattern": "*"}).split("\n")) == {
        "/workspace/src/",
        "/workspace/old.py",
        "/workspace/.env",
    }
    assert glob.run(files, {"pattern": "*.rs"}) == "No matches."


def test_glob_lists_at_most_200(files, work):
    for number in range(250):
        (work / f"{number}.txt").touch()
    lines = glob.run(files, {"pattern": "*"}).split("\n")
    assert len(lines) == 201
    assert lines[-1] == "[50 older matches are not listed]"


@pytest.mark.parametrize("pattern", ["../*", "a/../../*", "/etc/*", "/../etc/*"])
def test_glob_does_not_leave(files, pattern):
    with pytest.raises(ToolFailed):
        glob.run(files, {"pattern": pattern})


def test_searches_go_through_no_link_and_no_loop(files, work, tmp_path):
    (tmp_path / "secret.txt").write_text("SECRET")
    (work / "loop").symlink_to(".")
    (work / "out").symlink_to(tmp_path)
    (work / "file").symlink_to(tmp_path / "secret.txt")
    os.mkfifo(work / "fifo")
    assert grep.run(files, {"pattern": "SECRET"}) == "No matches."
    assert "secret.txt" not in glob.run(files, {"pattern": "**/*"})


def test_grep_shows_lines_with_numbers(files, work):
    plant(work, a_dot_txt="one\ntwo\r\nTwo\n", b__c_dot_py="two\n", _dot_git__x="two")
    assert grep.run(files, {"pattern": "two"}) == "/workspace/a.txt:2:two\n/workspace/b/c.py:1:two"
    assert grep.run(files, {"pattern": "^TWO$", "-i": True, "path": "b"}) == "/workspace/b/c.py:1:two"
    assert grep.run(files, {"pattern": "two", "glob": "*.py"}) == "/workspace/b/c.py:1:two"
    assert grep.run(files, {"pattern": "two", "glob": "b/**"}) == "/workspace/b/c.py:1:two"
    assert grep.run(files, {"pattern": "two", "path": "a.txt", "-n": False}) == "a.txt:two"
    assert grep.run(files, {"pattern": "t", "output_mode": "count"}) == "/workspace/a.txt:1\n/workspace/b/c.py:1"
    assert grep.run(files, {"pattern": "o", "output_mode": "files_with_matches", "head_limit": 1}) == (
        "/workspace/a.txt\n[cut off after 1 results]"
    )
    assert grep.run(files, {"pattern": "three"}) == "No matches."


@pytest.mark.parametrize("linear", LINEAR)
def test_grep_shows_context_as_grep_does(files, work, linear):
    plant(work, f="1\n2\n3 x\n4\n5\n6\n7\n8 x\n9 x\n10\n11\n")
    shown = grep.run(files, {"pattern": "x", "path": "f", "-C": 1}, linear=linear)
    assert shown == "f-2-2\nf:3:3 x\nf-4-4\n--\nf-7-7\nf:8:8 x\nf:9:9 x\nf-10-10"
    assert grep.run(files, {"pattern": "x", "path": "f", "-A": 2}, linear=linear) == (
        "f:3:3 x\nf-4-4\nf-5-5\n--\nf:8:8 x\nf:9:9 x\nf-10-10\nf-11-11"
    )
    assert grep.run(files, {"pattern": "x", "path": "f", "-B": 9}, linear=linear).count("\n") == 8


@pytest.mark.parametrize("linear", LINEAR)
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("^$", "f:2:"),
        ("a\\s+b", "No matches."),
        ("[^x]b", "No matches."),
        ("", "f:1:a\nf:2:\nf:3:b"),
        ("b$", "f:3:b"),
        ("^", "f:1:a\nf:2:\nf:3:b"),
    ],
)
def test_a_match_stays_on_its_line(files, work, linear, pattern, expected):
    plant(work, f="a\n\nb")
    assert grep.run(files, {"pattern": pattern, "path": "f"}, linear=linear) == expected


@pytest.mark.parametrize("linear", LINEAR)
def test_multiline_spans_lines(files, work, linear):
    plant(work, f="a\n\nb\nc\n")
    asked = {"pattern": "a.*b", "path": "f", "multiline": True}
    assert grep.run(files, asked, linear=linear) == "f:1:a\nf:2:\nf:3:b"


def test_grep_is_bounded(files, work):
    plant(work, many="hit\n" * 500, long="y" * 10_000 + "\n", binary="hit\0")
    lines = grep.run(files, {"pattern": "hit"}).split("\n")
    assert len(lines) == 201
    assert lines[-1] == "[cut off after 200 results]"
    assert len(grep.run(files, {"pattern": "yy"})) < 2_100
    assert grep.run(files, {"pattern": "hit", "path": "binary"}) == "No matches."


@pytest.mark.parametrize("linear", LINEAR)
def test_a_wrong_expression_names_the_field(linear):
    with pytest.raises(ToolFailed, match="grep: pattern: "):
        compile_search("(", ignore_case=False, multiline=False, linear=linear)


def test_a_hostile_expression_takes_linear_time(files, work):
    plant(work, f="a" * 200_000 + "!\n")
    began = time.monotonic()
    assert grep.run(files, {"pattern": "(a+)+$"}) == "No matches."
    assert time.monotonic() - began < 5


async def test_without_the_linear_engine_a_search_can_be_killed(files, work, monkeypatch):
    plant(work, f="a" * 60 + "!\nfine\n")
    assert await grep.run_killable(files, {"pattern": "fine"}) == "/workspace/f:2:fine"
    with pytest.raises(ToolFailed, match="pattern"):
        await grep.run_killable(files, {"pattern": "("})
    monkeypatch.setattr(grep, "KILL_SECONDS", 1.0)
    with pytest.raises(ToolFailed, match="takes too long"):
        await grep.run_killable(files, {"pattern": "(a+)+$"})


def test_a_walk_that_takes_too_long_is_cut_and_says_so(files, work, monkeypatch):
    plant(work, f="x")
    monkeypatch.setattr("services.worker.tools.walk.TIME_LIMIT_SECONDS", -1.0)
    assert "took too long" in grep.run(files, {"pattern": "x"})
    assert "took too long" in glob.run(files, {"pattern": "*"})
