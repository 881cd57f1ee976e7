"""Questions about a plan, a file each: what a person should know before they book the devices."""
