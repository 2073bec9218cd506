"""Domain lists of the web tools: which hosts a tool may or may not reach.

A list is judged whether or not its tool can run, since it may be stored for later. Each
refusal names the list and the position in it, like `tools.0.configs.1.allowed_domains.2`.

Registry suffixes are told by a rule, not by a copy of the public list: a single label, or
under a country code one of the labels that registries set aside.
"""

import re
from typing import Any

from services.sessions.domain.errors import InvalidDomainList

MAX_DOMAINS = 64
MAX_DOMAIN_CHARACTERS = 255
MAX_LABEL_CHARACTERS = 63
LISTS = ("allowed_domains", "blocked_domains")

_HOST_CHARACTERS = re.compile(r"[A-Za-z0-9.-]+")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_PATH_REFUSED = frozenset("?#$,|^*\\\"'<>{}`")
_INTERNAL = frozenset({"localhost", "local", "internal", "localdomain", "invalid"})
# Set aside under nearly every country code that has a second level at all.
_REGISTRY_LABELS = frozenset({"ac", "co", "com", "edu", "gob", "gouv", "gov", "mil", "net", "nom", "org", "sch"})
# Set aside by one registry, and an ordinary name elsewhere.
_COUNTRY_LABELS = {
    "at": frozenset({"gv", "or"}),
    "au": frozenset({"asn", "id"}),
    "br": frozenset({"art", "adv"}),
    "fr": frozenset({"asso", "tm"}),
    "hk": frozenset({"idv"}),
    "id": frozenset({"go", "my", "or", "web"}),
    "il": frozenset({"idf", "k12", "muni"}),
    "in": frozenset({"firm", "gen", "ind", "nic", "res"}),
    "jp": frozenset({"ad", "ed", "go", "gr", "lg", "ne", "or"}),
    "ke": frozenset({"go", "ne", "or"}),
    "kr": frozenset({"go", "ne", "or", "pe", "re"}),
    "my": frozenset({"name"}),
    "nz": frozenset({"geek", "gen", "govt", "iwi", "kiwi", "maori", "school"}),
    "sg": frozenset({"per"}),
    "th": frozenset({"go", "in", "mi", "or"}),
    "tr": frozenset({"bel", "gen", "web"}),
    "tw": frozenset({"idv"}),
    "ua": frozenset({"in"}),
    "uk": frozenset({"ltd", "me", "nhs", "plc", "police"}),
    "za": frozenset({"law", "school", "web"}),
}


def validate_domain_lists(config: dict[str, Any], field: str, *, path_suffix: bool) -> dict[str, list[str]]:
    """The lists of one tool entry as they were given; null means no restriction and is left out."""
    present = [name for name in LISTS if config.get(name) is not None]
    if len(present) > 1:
        raise InvalidDomainList(
            f"{field} has both allowed_domains and blocked_domains; an entry takes one of them.",
            field=f"{field}.blocked_domains",
        )
    return {name: _validate_list(config[name], f"{field}.{name}", path_suffix=path_suffix) for name in present}


def _validate_list(value: Any, field: str, *, path_suffix: bool) -> list[str]:
    if not isinstance(value, list):
        raise InvalidDomainList(f"{field} must be an array of hostnames, or null for no restriction.", field=field)
    if not 1 <= len(value) <= MAX_DOMAINS:
        raise InvalidDomainList(
            f"{field} has {len(value)} entries; 1 to {MAX_DOMAINS} are accepted, and null means no restriction.",
            field=field,
        )
    seen: dict[str, int] = {}
    for index, entry in enumerate(value):
        path = f"{field}.{index}"
        _validate_domain(entry, path, path_suffix=path_suffix)
        earlier = seen.setdefault(entry.lower().removesuffix("/"), index)
        if earlier != index:
            raise InvalidDomainList(f"{path} repeats {field}.{earlier}.", field=path)
    return value


def _validate_domain(entry: Any, path: str, *, path_suffix: bool) -> None:
    if not isinstance(entry, str) or not 1 <= len(entry) <= MAX_DOMAIN_CHARACTERS:
        raise InvalidDomainList(f"{path} must be a hostname of 1 to {MAX_DOMAIN_CHARACTERS} characters.", field=path)
    if "://" in entry:
        raise InvalidDomainList(f"{path} must be a hostname without a scheme.", field=path)
    host, slash, suffix = entry.partition("/")
    if slash and not path_suffix:
        raise InvalidDomainList(f"{path} must be a hostname; web_fetch domains carry no path.", field=path)
    if any(character.isspace() or ord(character) < 32 or character in _PATH_REFUSED for character in suffix):
        raise InvalidDomainList(
            f"{path} has a path suffix with a character that isn't accepted there; whitespace, wildcards and any of"
            " ? # $ , | ^ are refused.",
            field=path,
        )
    if "//" in slash + suffix:
        raise InvalidDomainList(f"{path} may carry one path suffix, without empty segments.", field=path)
    _validate_host(host, path)


def _validate_host(host: str, path: str) -> None:
    if not _HOST_CHARACTERS.fullmatch(host):
        raise InvalidDomainList(
            f"{path} must be a plain ASCII hostname: letters, digits, hyphens and dots, with no port, credentials,"
            " wildcard, brackets or whitespace.",
            field=path,
        )
    labels = host.lower().split(".")
    for part in labels:
        if not 1 <= len(part) <= MAX_LABEL_CHARACTERS or part.startswith("-") or part.endswith("-"):
            raise InvalidDomainList(
                f"{path} has a label that is empty, longer than {MAX_LABEL_CHARACTERS} characters, or begins or ends"
                " with a hyphen.",
                field=path,
            )
    if _NUMBER.fullmatch(labels[-1]):
        raise InvalidDomainList(f"{path} must be a hostname, not an IP address in any spelling.", field=path)
    if labels[-1] in _INTERNAL:
        raise InvalidDomainList(f"{path} names an internal host, which web tools never reach.", field=path)
    if _is_registry_suffix(labels):
        raise InvalidDomainList(
            f"{path} is a bare registry suffix or a single label; name a domain below it.", field=path
        )


def _is_registry_suffix(labels: list[str]) -> bool:
    if len(labels) == 1:
        return True
    if len(labels) > 2 or len(labels[1]) != 2:
        return False
    return labels[0] in _REGISTRY_LABELS or labels[0] in _COUNTRY_LABELS.get(labels[1], frozenset())
