"""Price lists: read exactly, from a text or a file, and refused with the place of the fault."""

import json
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, strategies

from kit.config import ConfigError
from kit.cost_profile import PRICE_NAMES, Price, from_any_folder, read_cost_profile

SONNET = {"input": "3", "output": "15", "cache_read": "0.30", "cache_write_5m": "3.75", "cache_write_1h": "6"}


def profile(**changes: object) -> str:
    return json.dumps({"models": {"sonnet": {**SONNET, **changes}}})


def told(value: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_cost_profile(value)
    return str(caught.value)


def test_prices_are_whole_picodollars_per_token() -> None:
    assert read_cost_profile(profile()) == {"sonnet": Price(3_000_000, 15_000_000, 300_000, 3_750_000, 6_000_000)}


def test_none_is_an_empty_list() -> None:
    assert read_cost_profile("") == read_cost_profile(" ") == read_cost_profile('{"models": {}}') == {}


def test_a_file_is_as_good_as_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prices.json").write_text(profile())
    assert read_cost_profile(str(tmp_path / "prices.json")) == read_cost_profile(profile())
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_cost_profile("~/prices.json") == read_cost_profile(profile())


def test_a_path_holds_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert from_any_folder("prices.json") == str(tmp_path / "prices.json")
    assert from_any_folder(profile()) == profile()
    assert from_any_folder("") == ""


@given(strategies.decimals(0, 1_000_000, places=6), strategies.sampled_from(PRICE_NAMES), strategies.booleans())
def test_no_digit_is_lost(price: Decimal, name: str, as_number: bool) -> None:
    text = format(price, "f")
    value = json.dumps(SONNET).replace(
        f'"{name}": "{SONNET[name]}"', f'"{name}": ' + (text if as_number else f'"{text}"')
    )

    read = read_cost_profile(f'{{"models": {{"sonnet": {value}}}}}')["sonnet"]

    assert Decimal(getattr(read, name)) == price * 10**6


@pytest.mark.parametrize("price", ["-1", "1e3", "0.0000001", "", "NaN", "1_0", "٣", "01", ".5", "1.", None, True, [3]])
def test_what_is_no_price_is_refused_by_its_place(price: object) -> None:
    assert "models['sonnet'].input must be a number of 0 or more" in told(profile(input=price))


def test_a_price_has_a_bound() -> None:
    assert read_cost_profile(profile(input="1000000"))["sonnet"].input == 10**12
    assert "must be at most 1000000" in told(profile(input="1000000.000001"))


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity", "1e400", "-0"])
def test_numbers_that_are_no_prices(constant: str) -> None:
    assert "models['sonnet'].input" in told(profile().replace('"input": "3"', f'"input": {constant}'))


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ("{", "is not JSON"),
        ('{"models": []}', "one key models"),
        ('{"prices": {}}', "one key models"),
        ('{"models": {}, "currency": "EUR"}', "one key models"),
        ('{"models": {"m": 3}}', "models['m'] must hold exactly input, output, cache_read"),
        ('{"models": {"m": {"input": 1, "output": 1}}}', "models['m'] must hold exactly"),
        ('{"models": {" ": {}}}', "must have a name"),
        (f'{{"models": {{"m": {json.dumps(SONNET)}, "m": {json.dumps(SONNET)}}}}}', "'m' stands in it twice"),
        ('{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_a_faulty_document_is_refused(document: str, fault: str) -> None:
    assert fault in told(document)
    assert told(document).startswith("MANAGED_AGENTS_COST_PROFILE: ")


def test_a_faulty_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    assert f"names {path}, which is not usable: it can't be read (No such file" in told(str(path))
    path.write_bytes(b"\xff\xfe")
    assert "it is not UTF-8 text" in told(str(path))
    path.write_text(" " * (1 << 20) + profile())
    assert "it holds more than" in told(str(path))
    assert "it can't be read (Is a directory)" in told(str(tmp_path))
    path.write_text("[]")
    assert "one key models" in told(str(path))
