"""Models shared by both roles: a leaf package that imports only ``proto_v2``."""
