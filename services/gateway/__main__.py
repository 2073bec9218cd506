"""`python -m services.gateway`."""

from kit import lifecycle

from .app import build

if __name__ == "__main__":
    lifecycle.run(build)
