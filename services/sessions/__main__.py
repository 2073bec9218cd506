"""`python -m services.sessions` runs one replica."""

from kit.lifecycle import main

if __name__ == "__main__":
    main("services.sessions.app")
