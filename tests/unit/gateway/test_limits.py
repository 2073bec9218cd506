"""The limiter holds to its model whatever comes in whatever order, and stays small however many callers there are."""

from __future__ import annotations

from collections import defaultdict

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.config import ConfigError
from services.gateway.admission.limits import RateLimiter, bucket_of
from services.gateway.admission.principal import ANONYMOUS, CONFIGURED, Principal
from services.gateway.errors import InboundRateLimited
from tests.unit.gateway.support import http as unlimited
from tests.unit.gateway.support import settings

WINDOW = 60.0
METHODS = {"GET": False, "HEAD": False, "POST": True, "PUT": True, "PATCH": True, "DELETE": True}


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


REQUESTS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.0, 0.25, 7.0, 29.5, 59.75, 60.0, 200.0]),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from([*METHODS, "OPTIONS"]),
    ),
    max_size=200,
)


@given(requests=REQUESTS, reads=st.integers(1, 5), writes=st.integers(1, 5))
def test_each_window_takes_its_budget_and_begins_with_the_request_that_opened_it(
    requests: list[tuple[float, str, str]], reads: int, writes: int
) -> None:
    time = Time()
    limiter = RateLimiter(reads=reads, writes=writes, clock=time)
    taken: dict[tuple[str, bool], list[float]] = defaultdict(list)
    for pause, bucket, method in requests:
        time.now += pause
        if method not in METHODS:
            limiter.count(bucket, method)
            continue
        is_write = METHODS[method]
        budget = writes if is_write else reads
        window = taken[bucket, is_write]
        if window and time.now - window[0] >= WINDOW:
            window.clear()
        if len(window) < budget:
            limiter.count(bucket, method)
            window.append(time.now)
            continue
        with pytest.raises(InboundRateLimited) as refusal:
            limiter.count(bucket, method)
        wait = refusal.value.retry_after_seconds
        assert wait is not None and wait == window[0] + WINDOW - time.now > 0
        assert refusal.value.metadata["limit"] == str(budget)


@given(requests=REQUESTS)
def test_no_minute_that_starts_with_a_window_takes_more_than_one_budget(requests: list[tuple[float, str, str]]) -> None:
    time = Time()
    limiter = RateLimiter(reads=3, writes=3, clock=time)
    admitted: list[float] = []
    opened: list[float] = []
    for pause, _bucket, _method in requests:
        time.now += pause
        try:
            limiter.count("one", "POST")
        except InboundRateLimited:
            continue
        if not opened or time.now - opened[-1] >= WINDOW:
            opened.append(time.now)
        admitted.append(time.now)
    for start in opened:
        assert len([moment for moment in admitted if start <= moment < start + WINDOW]) <= 3


@given(callers=st.lists(st.integers(0, 60), max_size=400), most=st.integers(1, 20))
def test_memory_is_bounded_however_many_callers_there_are(callers: list[int], most: int) -> None:
    time = Time()
    limiter = RateLimiter(clock=time, max_windows=most)
    for number, caller in enumerate(callers):
        time.now += number % 3
        limiter.count(f"caller {caller}", "GET")
        assert len(limiter._windows) <= most


def test_what_is_over_is_forgotten_without_anybody_asking_for_it() -> None:
    time = Time()
    limiter = RateLimiter(clock=time)
    for number in range(100):
        limiter.count(f"caller {number}", "GET")
    time.now += WINDOW
    limiter.count("another", "GET")
    assert len(limiter._windows) == 1


def test_who_opened_a_window_first_is_forgotten_first() -> None:
    time = Time()
    limiter = RateLimiter(reads=1, clock=time, max_windows=2)
    for caller in ("a", "b", "c"):
        limiter.count(caller, "GET")
    limiter.count("a", "GET")
    with pytest.raises(InboundRateLimited):
        limiter.count("c", "GET")


@pytest.mark.parametrize(
    ("mode", "authentication", "expected"),
    [
        (None, False, False),
        (None, True, True),
        ("on", False, True),
        ("on", True, True),
        ("off", False, False),
        ("off", True, False),
    ],
)
def test_it_is_on_while_keys_are_needed_unless_told_otherwise(mode, authentication: bool, expected: bool) -> None:
    assert RateLimiter(mode=mode).is_on(authentication=authentication) is expected


def test_each_credential_and_without_one_each_address_has_windows_of_its_own() -> None:
    peer = ("10.0.0.7", 5000)
    forwarded = {"x-forwarded-for": "203.0.113.5, 10.0.0.1"}
    buckets = [
        bucket_of(CONFIGURED, forwarded, peer),
        bucket_of(Principal("key_1", "wrkspc_default"), {}, peer),
        bucket_of(ANONYMOUS, forwarded, peer),
        bucket_of(ANONYMOUS, {}, peer),
        bucket_of(ANONYMOUS, {}, None),
    ]
    assert len(set(buckets)) == len(buckets)
    assert bucket_of(ANONYMOUS, forwarded, peer) == bucket_of(ANONYMOUS, forwarded, ("10.0.0.8", 1))
    assert len(bucket_of(ANONYMOUS, {"x-forwarded-for": "x" * 10_000}, peer)) < 100


@pytest.mark.parametrize("value", ["yes", "ON", "true", "1"])
def test_another_word_than_on_or_off_is_told_at_the_start(value: str) -> None:
    with pytest.raises(ConfigError, match="MANAGED_AGENTS_INBOUND_RATE_LIMIT"):
        settings(inbound_rate_limit=value).rate_limit_mode()


@pytest.mark.parametrize("name", ["inbound_rate_limit_read", "inbound_rate_limit_write"])
@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_a_budget_is_a_positive_whole_number(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name.upper()):
        settings(**{name: value})


def limited(**changes) -> httpx2.AsyncClient:
    return unlimited(changes={"inbound_rate_limit": "on", "inbound_rate_limit_read": 2, **changes})


async def test_without_keys_it_can_be_forced_on() -> None:
    async with limited() as client:
        answers = [await client.get("/v1/nothing") for _ in range(3)]
        other = await client.get("/v1/nothing", headers={"x-forwarded-for": "203.0.113.5"})
    assert [answer.status_code for answer in answers] == [404, 404, 429]
    assert other.status_code == 404
    assert (answers[2].headers["x-ratelimit-limit"], answers[2].headers["x-ratelimit-remaining"]) == ("2", "0")
    assert 1 <= int(answers[2].headers["retry-after"]) <= 60


async def test_health_and_preflights_are_not_counted() -> None:
    preflight = {"origin": "https://a.example", "access-control-request-method": "POST"}
    async with limited(cors_origins="https://a.example") as client:
        for _ in range(5):
            assert (await client.get("/v1/x/health")).status_code == 200
            assert (await client.options("/v1/agents", headers=preflight)).status_code == 200
        assert (await client.get("/v1/nothing")).status_code == 404


async def test_a_wrong_key_spends_nothing_and_stays_401() -> None:
    async with limited(api_key="the-key-that-counts") as client:
        for _ in range(5):
            answer = await client.get("/v1/nothing", headers={"authorization": "Bearer wrong"})
            assert answer.status_code == 401
        right = {"authorization": "Bearer the-key-that-counts"}
        assert [(await client.get("/v1/nothing", headers=right)).status_code for _ in range(3)] == [404, 404, 429]


async def test_it_comes_after_authentication_and_before_admission_and_routing() -> None:
    async with limited(api_key="the-key-that-counts") as client:
        gated = {"x-api-key": "the-key-that-counts"}
        assert [(await client.get("/v1/nothing", headers=gated)).status_code for _ in range(3)] == [400, 400, 429]
        assert (await client.post("/v1/nothing", headers=gated)).status_code == 400
