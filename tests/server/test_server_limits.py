"""Limits of the server: slow clients, large heads, many event streams, long plans."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time

import httpx
import pytest
import uvicorn
from starlette.exceptions import HTTPException

from server.page_server import page_client
from shardlab.errors import PlanTimeout, UnknownModel
from shardlab.server import event_streams, request_guard
from shardlab.server.http_protocol import TimedProtocol
from shardlab.server.planning import plan_pool
from shardlab.server.planning.plan_pool import PlanPool

PLAN = {"model": "llama3-8b", "mesh": "fsdp=8", "strategy": "fsdp"}
LIMIT_SECONDS = 60  # ends a hang


@pytest.fixture
def client(tmp_path):
    with page_client(tmp_path) as client:
        yield client


# -------------------------------------------------------------------------------- slow clients


class ImpatientProtocol(TimedProtocol):
    head_seconds = 0.2


@contextlib.contextmanager
def impatient_server():
    """Return the port of a server that gives a head 0.2 s."""

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(app, http=ImpatientProtocol, lifespan="off", log_level="critical")
    config.timeout_keep_alive = LIMIT_SECONDS
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def read_to_end(connection):
    """Return what arrives until the server closes the connection."""
    connection.settimeout(LIMIT_SECONDS)
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while block := connection.recv(4096):
            received += block
    return received


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: localh"])
def test_a_connection_without_a_complete_head_is_closed(sent):
    with impatient_server() as port, socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(sent)
        assert read_to_end(connection) == b""


def test_a_second_head_on_a_connection_has_the_same_limit():
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with impatient_server() as port, socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(LIMIT_SECONDS)
        connection.sendall(request)
        assert b"204" in connection.recv(4096)
        time.sleep(0.5)  # idle between two requests: that is uvicorn's own limit
        connection.sendall(request)
        assert b"204" in connection.recv(4096)
        connection.sendall(request[:20])
        assert read_to_end(connection) == b""


def test_a_body_that_arrives_too_slowly_is_refused(client, monkeypatch):
    monkeypatch.setattr(request_guard, "BODY_SECONDS", 0.2)
    head = (
        f"POST /api/v1/plans HTTP/1.1\r\nHost: {client.base_url.netloc.decode()}\r\n"
        f"Content-Type: application/json\r\nContent-Length: 100\r\n"
        f"X-CSRF-Token: {client.headers['x-csrf-token']}\r\n"
        f"Cookie: shardlab_browser={client.cookies['shardlab_browser']}\r\n\r\n{{"
    )
    address = (client.base_url.host, client.base_url.port)
    with socket.create_connection(address) as connection:
        connection.sendall(head.encode())
        response = read_to_end(connection)
    assert response.startswith(b"HTTP/1.1 408")
    assert b"too slowly" in response


def test_a_complete_request_has_no_time_limit(client, monkeypatch):
    url = f"/api/v1/jobs/{queue_job(client)}/events"
    monkeypatch.setattr(request_guard, "BODY_SECONDS", 0.1)
    with client.stream("GET", url) as response:
        texts = response.iter_text()
        assert "retry: 1000" in next(texts)
        time.sleep(0.5)  # the stream is still there, after five times the limit of a body
        assert "event: job" in next(texts)
        assert not response.is_closed
        assert client.get("/").status_code == 200


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (f"/layout?mesh={'x' * 40_000}", {}, 414),
        (f"/practice/{'x' * 3000}", {}, 414),
        ("/", {f"x-{n}": "x" * 6000 for n in range(12)}, 431),
        ("/layout?mesh=data=2", {}, 200),
    ],
)
def test_large_heads_are_refused(client, path, headers, status):
    response = client.get(path, headers=headers)
    # h11 itself refuses a head that does not arrive in one piece with status 400.
    assert response.status_code in ((status,) if status == 200 else (status, 400))


# ------------------------------------------------------------------------------- event streams


def queue_job(client):
    body = {"source": "x = 1", "mesh": "data=2"}
    return client.post("/api/v1/recordings", json=body).json()["id"]


def test_streams_above_the_limit_send_the_state_and_end(client, monkeypatch):
    monkeypatch.setattr(event_streams, "MAX_OF_PERSON", 2)
    url = f"/api/v1/jobs/{queue_job(client)}/events"
    with client.stream("GET", url) as first, client.stream("GET", url) as second:
        # An iterator that is dropped closes its stream.
        iterators = [response.iter_text() for response in (first, second)]
        assert all("retry: 1000" in next(texts) for texts in iterators)
        third = client.get(url)  # ends by itself, or this test never does
        assert "2 event streams of this person are open" in third.text
        assert f"retry: {event_streams.RETRY_MS}" in third.text
        assert '"state":"queued"' in third.text
    assert wait_for_stream(client, url)


def wait_for_stream(client, url):
    """Return whether a stream stays open after others were closed."""
    end = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < end:
        with client.stream("GET", url) as response:
            if "retry: 1000" in next(response.iter_text()):
                return True
        time.sleep(0.05)
    return False


def test_a_hundred_tabs_leave_the_server_usable(client):
    url = f"/api/v1/jobs/{queue_job(client)}/events"
    limits = httpx.Limits(max_connections=None)
    with contextlib.ExitStack() as stack:
        tabs = stack.enter_context(
            httpx.Client(base_url=client.base_url, limits=limits, timeout=LIMIT_SECONDS)
        )
        streams = [stack.enter_context(tabs.stream("GET", url)) for _ in range(100)]
        iterators = [response.iter_text() for response in streams]
        texts = [next(iterator) for iterator in iterators]
        assert sum("retry: 1000" in text for text in texts) == event_streams.MAX_OF_PERSON
        assert client.get("/practice").status_code == 200


def test_a_result_stream_above_the_limit_polls(client, monkeypatch):
    monkeypatch.setattr(event_streams, "MAX_OF_PERSON", 0)
    form = {"source": "def shard_map_psum(x, mesh):\n    return x\n"}
    client.post("/practice/shard-map-psum/submit", data={**form, "csrf_token": token_of(client)})
    page = client.get("/practice/shard-map-psum").text
    url = re.search(r'hx-sse:connect="([^"]+)"', page)[1]
    text = client.get(url).text
    assert text.startswith(": 0 event streams of this person are open")
    assert f"retry: {event_streams.RETRY_MS}\ndata: " in text  # in the same event as the data
    assert "event: finished" not in text


def token_of(client):
    return client.headers["x-csrf-token"]


# -------------------------------------------------------------------------------------- plans


@pytest.fixture
def pool():
    pool = PlanPool()
    yield pool
    pool.close()


def test_a_plan_comes_from_another_process(pool):
    result = pool.request(1, "plan", PLAN)
    assert result["n_devices"] == 8
    assert pool.request(1, "plan_page", PLAN)["plan"] == result
    with pytest.raises(UnknownModel, match="Did you mean"):
        pool.request(1, "plan", {**PLAN, "model": "llama3-8"})


def test_a_plan_that_takes_too_long_is_stopped_and_the_next_one_is_not():
    pool = PlanPool(plan_seconds=0.0)
    for _ in range(2):
        with pytest.raises(PlanTimeout, match="took more than 0 s"):
            pool.request(1, "plan", PLAN)
    pool._plan_seconds = LIMIT_SECONDS
    assert pool.request(1, "plan", PLAN)["n_devices"] == 8
    pool.close()


def test_one_person_cannot_use_all_planner_processes(pool, monkeypatch):
    monkeypatch.setattr(plan_pool, "_MAX_PROCESSES", 0)
    monkeypatch.setattr(plan_pool, "_MAX_OF_PERSON", 1)
    outcomes = []

    def request():
        try:
            pool.request(1, "plan", PLAN)
        except HTTPException as error:
            outcomes.append(error.status_code)

    monkeypatch.setattr(plan_pool, "_WAIT_SECONDS", LIMIT_SECONDS)
    waiting = threading.Thread(target=request)
    waiting.start()
    while not pool._n_waiting:
        time.sleep(0.01)
    with pytest.raises(HTTPException) as refusal:
        pool.request(1, "plan", PLAN)
    assert refusal.value.status_code == 429
    monkeypatch.setattr(plan_pool, "_MAX_PROCESSES", 1)
    with pool._changed:
        pool._changed.notify()
    waiting.join()
    assert outcomes == []
    assert not pool._n_of_person


def test_plans_that_wait_do_not_use_up_the_threads(pool, monkeypatch):
    monkeypatch.setattr(plan_pool, "_MAX_PROCESSES", 0)
    monkeypatch.setattr(plan_pool, "_MAX_WAITING", 0)
    with pytest.raises(HTTPException) as refusal:
        pool.request(1, "plan", PLAN)
    assert refusal.value.status_code == 503
    assert refusal.value.headers == {"retry-after": "5"}


def test_the_page_of_a_plan_that_takes_too_long_says_so(client, monkeypatch):
    def stop(self, person, kind, payload):
        raise PlanTimeout("The plan took more than 10 s and was stopped.", fix="a smaller model.")

    monkeypatch.setattr(PlanPool, "request", stop)
    address = "/plan?model=llama3-8b&mesh=fsdp=4"
    assert "took more than 10 s" in client.get(address).text
    monkeypatch.undo()
    assert "took more than 10 s" not in client.get(address).text  # it is not cached
