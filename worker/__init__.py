"""The draft side: it draws every proposal and ships each token with its exact q."""
