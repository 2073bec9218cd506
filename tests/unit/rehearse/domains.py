"""Domains for tests: a small sound one, and changes of it by text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cli.rehearse.domain import Domain
from cli.rehearse.faults import Fault, UnusableDomain
from cli.rehearse.loading import load

DOMAIN = """\
description: You keep the lockers.
policy: One locker each.
facts:
  fee: 2.5
  sizes: [small, large]
tables:
  lockers:
    key: id
    one: locker
    columns:
      id: string
      size: {type: string, one_of: [small, large]}
      holder: {type: string, optional: true}
      uses: {type: integer, minimum: 0}
      since: {type: date, optional: true}
      tags: {type: list, items: string, optional: true}
  payments:
    key: number
    one: payment
    new_key: "{n}"
    columns:
      number: integer
      locker: string
      amount: {type: number, maximum: 100}
tools:
  find_lockers:
    description: Lists lockers.
    arguments:
      size: {type: string, one_of: [small, large], optional: true}
      uses: {type: integer, optional: true}
    does:
      find: {table: lockers, where: {size: $args.size, uses: {at_most: $args.uses}}, columns: [id, size]}
  get_locker:
    description: Shows a locker.
    arguments: {id: string}
    does:
      read: {table: lockers, key: $args.id}
  take_locker:
    description: Takes a locker.
    arguments: {id: string, holder: string}
    let:
      locker: {row: {table: lockers, key: $args.id}}
    requires:
      - must: {locker.holder: {exists: false}}
        error: Locker {args.id} is taken.
    does:
      - update: {table: lockers, key: $args.id, set: {holder: $args.holder, uses: {plus: [$row.uses, 1]}}}
      - create: {table: payments, set: {locker: $args.id, amount: $facts.fee}}
  pay:
    description: Books a payment.
    arguments: {locker: string, amount: number}
    does:
      - update: {table: lockers, key: $args.locker, set: {uses: {plus: [$row.uses, 1]}}}
      - create: {table: payments, set: {locker: $args.locker, amount: $args.amount}}
  hours:
    description: Tells the hours.
    does:
      respond: {open: 8, close: 20}
invariants:
  one-each:
    on: [take_locker]
    let:
      held: {count: {table: lockers, where: {holder: $args.holder}}}
    must: {held: 0}
    message: "{args.holder} has {held} already."
  looked-first:
    on: [take_locker]
    must:
      called: {tool: get_locker, with: {id: $args.id}}
    message: Locker {args.id} was taken unseen.
    blocks: false
"""

LOCKERS = """\
- {id: A, size: small, uses: 3}
- {id: B, size: large, uses: 0, holder: Kim, since: 2026-11-01, tags: [corner, new]}
- {id: C, size: small, uses: 0}
"""

TASK = """\
title: Lou gets a locker
turns:
  - A small locker please, I am Lou.
end:
  - present: {table: lockers, where: {holder: Lou}, count: 1}
"""

FILES: Mapping[str, str] = {"domain.yaml": DOMAIN, "rows/lockers.yaml": LOCKERS, "tasks/take.yaml": TASK}


def write(folder: Path, files: Mapping[str, str] = FILES) -> Path:
    for name, text in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder


def changed(old: str, new: str, *, file: str = "domain.yaml") -> dict[str, str]:
    """The sound domain with one text replaced."""
    assert FILES[file].count(old) >= 1, f"{old} is not in {file}"
    return {**FILES, file: FILES[file].replace(old, new, 1)}


def loaded(folder: Path, files: Mapping[str, str] = FILES) -> Domain:
    return load(write(folder, files))


def faults(folder: Path, files: Mapping[str, str]) -> list[Fault]:
    """What is told of an unsound domain; empty for a sound one."""
    try:
        loaded(folder, files)
    except UnusableDomain as unusable:
        return list(unusable.faults)
    return []
