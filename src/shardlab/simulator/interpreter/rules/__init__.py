"""What each primitive does with device axes."""
