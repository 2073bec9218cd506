"""Run the runner process."""

# Named here, since what no service needs is hidden while a service is loaded, and web and repositories need it.
import aiohttp  # noqa: F401

from kit.lifecycle import main

if __name__ == "__main__":
    main("services.worker.runner.app")
