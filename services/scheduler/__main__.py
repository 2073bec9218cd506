"""Runs the scheduler process."""

from kit.lifecycle import run
from services.scheduler.app import build

if __name__ == "__main__":
    run(build)
