"""Large embedding tables and two towers."""
