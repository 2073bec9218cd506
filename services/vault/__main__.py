"""Runs the vault process."""

from kit.lifecycle import main

if __name__ == "__main__":
    main("services.vault.app")
