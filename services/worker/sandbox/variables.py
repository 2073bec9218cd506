"""The variables by which a shell knows its session's credentials, and what makes its programs trust the proxy.

Where requests pass the proxy, or nothing gets out at all, a variable holds a placeholder.
Only where nothing is isolated, and nobody sees what is sent to whom, it holds the value;
then only of credentials that are for any host, since a shell names none.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from services.worker.sandbox.egress import NetworkPolicy
from services.worker.sandbox.folders import SessionFolders
from services.worker.sandbox.inspecting import host_roots
from services.worker.sandbox.isolation import Isolation
from services.worker.sandbox.placeholders import Placeholder, SandboxSecrets, SecretsUnavailable
from services.worker.tools import ShellUnavailable

# Where programs inside find the certificates.
TRUST = "/run/trust"
_BUNDLE, _OWN = "bundle.pem", "session.pem"
# Each kind of program looks at one of its own; Node takes further certificates, the others a whole set.
_BUNDLE_VARIABLES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
)


@dataclass(frozen=True, slots=True)
class ShellVariables:
    """What a shell is started with because of its session's credentials."""

    environment: Mapping[str, str] = field(default_factory=dict)
    # Folders of the host, and where they are seen inside, read-only.
    binds: tuple[tuple[str, str], ...] = ()


async def shell_variables(
    secrets: SandboxSecrets, isolation: Isolation, policy: NetworkPolicy, folders: SessionFolders, *, proxied: bool
) -> ShellVariables:
    """For a shell about to start. Raises ShellUnavailable where the credentials can't be asked for."""
    try:
        placeholders = await secrets.placeholders()
        if isolation.kind == "process" and placeholders:
            return ShellVariables(dict(await secrets.open_for_process()))
    except SecretsUnavailable as unavailable:
        raise ShellUnavailable(str(unavailable)) from unavailable
    if not placeholders:
        return ShellVariables()
    _note_unreachable(secrets, placeholders, policy if proxied else NetworkPolicy())
    variables = {each.name: each.text for each in placeholders}
    if not proxied:
        return ShellVariables(variables)
    variables |= dict.fromkeys(_BUNDLE_VARIABLES, f"{TRUST}/{_BUNDLE}")
    variables["NODE_EXTRA_CA_CERTS"] = f"{TRUST}/{_OWN}"
    return ShellVariables(variables, ((str(_write_trust(folders, secrets)), TRUST),))


def forget_trust(variables: ShellVariables | None) -> None:
    """Remove what was written for a shell that is gone."""
    for host, _ in variables.binds if variables else ():
        shutil.rmtree(host, ignore_errors=True)


def _write_trust(folders: SessionFolders, secrets: SandboxSecrets) -> Path:
    """A folder of its own for each shell: another runner's shell of the same session trusts another authority."""
    folder = folders.path / ".trust" / os.urandom(8).hex()
    folder.mkdir(mode=0o700, parents=True)
    own = secrets.authority.certificate_pem
    for name, content in ((_OWN, own), (_BUNDLE, host_roots().rstrip(b"\n") + b"\n" + own)):
        fd = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as stream:
            stream.write(content)
    return folder


def _note_unreachable(secrets: SandboxSecrets, placeholders: Sequence[Placeholder], policy: NetworkPolicy) -> None:
    for each in placeholders:
        hosts = [rule.to_text() for rule in each.rules if not policy.reaches(rule)]
        if hosts and not each.unrestricted:
            secrets.note_unreachable(each.name, hosts)
