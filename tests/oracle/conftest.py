"""One process with real devices for all tests of this directory; it works ahead of them."""

from __future__ import annotations

import pytest
from worlds import RealDevices


@pytest.fixture(scope="session")
def real_devices(request):
    devices = RealDevices()
    # It works ahead of the tests, in their order: all their questions are asked now.
    for item in request.session.items:
        question = getattr(item, "callspec", None) and item.callspec.params.get("question")
        if question:
            devices.ask(question)
    yield devices
    devices.close()
