"""`python -m services.sessions` runs one replica."""

from kit.lifecycle import run
from services.sessions.app import build

if __name__ == "__main__":
    run(build)
