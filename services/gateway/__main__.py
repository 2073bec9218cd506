"""`python -m services.gateway`."""

from kit.lifecycle import main

if __name__ == "__main__":
    main("services.gateway.app")
