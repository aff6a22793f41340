"""The verifying side: two ranks that commit the same tokens, or none."""
