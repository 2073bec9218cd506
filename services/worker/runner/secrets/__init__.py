"""Secrets of a session's vaults in a runner: taken out of what tools say, put in where they may be used."""

from services.worker.runner.secrets.registry import SecretsRegistry
from services.worker.runner.secrets.scrubber import Scrubber
from services.worker.runner.secrets.session import Problem, SessionSecrets

__all__ = ["Problem", "Scrubber", "SecretsRegistry", "SessionSecrets"]
