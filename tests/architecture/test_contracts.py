"""What reviews would otherwise have to remember: contracts, reasons, generated code, SQL scoping."""

from __future__ import annotations

import ast
import filecmp
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import services
from kit import errors
from managed_agents.errors.v1 import reason_pb2

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PREFIX = "ERROR_REASON_"
PLATFORM_TABLES = {
    "outbox": "drained by the relay for every workspace",
    "processed_messages": "keyed by consumer and message",
    "schema_migrations": "belongs to the schema",
    "master_key_checks": "one row a platform",
    "ticker_leases": "one row a platform",
    "key_generation": "one row a platform",
    "sealed_keys": "the data keys of the platform, sealed with its master key",
}


def test_every_reason_that_code_raises_is_in_the_enum() -> None:
    for module in pkgutil.walk_packages(services.__path__, "services."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    known = {name.removeprefix(PREFIX) for name in reason_pb2.ErrorReason.keys()}  # noqa: SIM118

    ours = {reason: where for reason, where in errors.reasons_in_use().items() if not where.startswith("tests.")}
    unknown = {reason: where for reason, where in ours.items() if reason not in known}

    assert not unknown


def test_generated_code_is_what_the_contracts_generate(tmp_path: Path) -> None:
    protos = sorted(str(path) for path in (ROOT / "protos").rglob("*.proto"))
    options = [f"--{kind}={tmp_path}" for kind in ("python_out", "grpc_python_out", "mypy_out", "mypy_grpc_out")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT / "protos"), *options, *protos],
        check=True,
        capture_output=True,
        env={"PATH": f"{BIN}:/usr/bin:/bin"},
    )
    fresh = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*_pb2*"))
    committed = sorted(
        path.relative_to(ROOT / "gen") for path in (ROOT / "gen").rglob("*_pb2*") if "__pycache__" not in path.parts
    )

    assert fresh == committed
    stale = [str(path) for path in fresh if not filecmp.cmp(tmp_path / path, ROOT / "gen" / path, shallow=False)]
    assert not stale, "run `make proto`"


def test_the_contracts_pass_the_linter() -> None:
    done = subprocess.run([BIN / "buf", "lint"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_imports_go_one_way() -> None:
    done = subprocess.run([BIN / "lint-imports", "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]


def _statements() -> list[tuple[str, str]]:
    found = []
    for path in sorted((ROOT / "services").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_sql(node.value):
                found.append((f"{path.relative_to(ROOT)}:{node.lineno}", node.value))
    return found


def _is_sql(text: str) -> bool:
    return re.match(r"\s*(WITH|SELECT|INSERT INTO|UPDATE|DELETE FROM)\s", text) is not None


def _tables(sql: str) -> set[str]:
    names = set(re.findall(r"\b(?:FROM|JOIN|INTO|UPDATE)\s+(?:ONLY\s+)?([a-z_]+)\b(?!\s*\()", sql))
    defined_here = set(re.findall(r"\b([a-z_]+)\s*(?:\([^)]*\))?\s+AS\s+(?:NOT\s+)?(?:MATERIALIZED\s+)?\(", sql))
    return names - defined_here - {"set", "jsonb_array_elements", "unnest", "lateral"}


@pytest.mark.parametrize(("where", "sql"), _statements())
def test_every_statement_on_a_tenant_table_is_scoped_to_a_workspace_or_says_why_not(where: str, sql: str) -> None:
    tables = _tables(sql) - PLATFORM_TABLES.keys()
    if not tables or "%(workspace_id)s" in sql or "platform-wide:" in sql:
        return
    pytest.fail(f"{where} reads or writes {sorted(tables)} without %(workspace_id)s or a `-- platform-wide: why` line")


def test_only_stores_hold_sql() -> None:
    misplaced = [where for where, _ in _statements() if "/store/" not in where]
    assert not misplaced


def test_no_registry_is_named_anywhere() -> None:
    hosts = [".".join(parts) for parts in (("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"))]
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    named = [
        path
        for path in tracked
        if (ROOT / path).is_file() and any(host.encode() in (ROOT / path).read_bytes() for host in hosts)
    ]
    assert not named
