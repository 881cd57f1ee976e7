"""The application in a thread of the test, without workers: for pages and routes that need none."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import uvicorn

from shardlab.server.application import create_app
from shardlab.server.serve import listen_on
from shardlab.server.settings import ServerSettings


@contextlib.contextmanager
def page_client(data_folder: Path) -> Iterator[httpx.Client]:
    """Return a client of a server on loopback; it sends the CSRF token as the pages do."""
    listener = listen_on("127.0.0.1", 0)
    settings = ServerSettings(data_folder=data_folder, port=listener.getsockname()[1])
    app = create_app(settings)
    config = uvicorn.Config(app, lifespan="off", log_level="critical")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        with httpx.Client(base_url=settings.url, timeout=60) as client:
            token = re.search(r'csrf-token" content="(\w+)"', client.get("/").text)
            assert token is not None
            client.headers["x-csrf-token"] = token[1]
            yield client
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
        app.state.plans.close()
