"""Runs the queue process."""

from kit.lifecycle import main

if __name__ == "__main__":
    main("services.worker.queue.app")
