"""The wires: ZeroMQ links, staging memory, event loop, configuration, logs, metrics."""
