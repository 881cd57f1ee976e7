"""The database of `shardlab serve`: tables, connections and versioned migrations."""
