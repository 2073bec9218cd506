"""Runs the queue process."""

from kit.lifecycle import run
from services.worker.queue.app import build

if __name__ == "__main__":
    run(build)
