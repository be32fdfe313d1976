"""Training runs on one HTML page."""
