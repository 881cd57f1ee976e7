"""What an operator sees and sets: readiness, metrics, logs, quotas, backup."""
