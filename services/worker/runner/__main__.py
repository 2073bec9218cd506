"""Run the runner process."""

from kit.lifecycle import run
from services.worker.runner.app import build

if __name__ == "__main__":
    run(build)
