"""Secrets of a session's vaults in a runner: taken out of what tools say, put in where they may be used."""

from services.worker.runner.secrets.scrubber import Scrubber

__all__ = ["Scrubber"]
