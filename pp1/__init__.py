"""The command line and tools that put the contract, the wires and both sides together."""
