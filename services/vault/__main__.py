"""Runs the vault process."""

from kit.lifecycle import run
from services.vault.app import build

if __name__ == "__main__":
    run(build)
