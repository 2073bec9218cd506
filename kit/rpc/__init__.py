"""gRPC between services: one server, one channel, errors that cross whole, a context that goes along."""

import os

# gRPC's newer I/O threads hand each message over once more; without them a hop costs a third less CPU and latency
# (bench/FINDINGS.md). Read by gRPC when it opens its first channel or server; who sets the variable decides.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
