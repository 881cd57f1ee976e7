"""The JSON API; its OpenAPI schema is at /api/v1/openapi.json."""
