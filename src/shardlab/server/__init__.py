"""The web application behind `shardlab serve`. It never imports JAX: workers run programs."""
