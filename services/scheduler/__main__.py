"""Runs the scheduler process."""

from kit.lifecycle import main

if __name__ == "__main__":
    main("services.scheduler.app", uses_nats=False)
