"""What a session's environment lets its MCP servers reach. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kit.addresses import NO_PRIVATE_HOSTS, PrivateHosts
from services.worker.sandbox.egress import NetworkPolicy, normal_host


@dataclass(frozen=True, slots=True)
class Reach:
    """An environment's network, as far as servers by URL are concerned."""

    policy: NetworkPolicy
    # Whether servers that the agent names may be reached whatever hosts are listed.
    any_server: bool = False
    # Private hosts that the operator allows.
    private: PrivateHosts = NO_PRIVATE_HOSTS

    @classmethod
    def of(cls, environment: Mapping[str, Any], private: PrivateHosts = NO_PRIVATE_HOSTS) -> "Reach":
        """Read an environment; one that says nothing of its network allows all."""
        network = environment.get("network") or environment.get("networking") or {"type": "unrestricted"}
        leave = isinstance(network, Mapping) and any(
            network.get(name) is True for name in ("allow_mcp_servers", "allow_mcp_server_network_access")
        )
        return cls(NetworkPolicy.of({"network": network}), leave, private)

    def allows(self, host: str, port: int) -> bool:
        """Whether a server there may be used."""
        name = normal_host(host.strip("[]"))
        return self.any_server or (name is not None and self.policy.allows(name, port))
