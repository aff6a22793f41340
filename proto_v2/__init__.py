"""The PP1 contract: messages, exact categoricals, RNG, validation and ledgers.

Nothing in this package reads a clock, opens a socket, asks for entropy or
touches an event loop. Everything here can be replayed from its arguments.
"""
