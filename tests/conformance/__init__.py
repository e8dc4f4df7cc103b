"""What the queue does, tested once on every driver."""
