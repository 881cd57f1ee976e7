"""One process with real devices for all tests of this directory."""

from __future__ import annotations

import pytest
from runtimes import RealDevices


@pytest.fixture(scope="session")
def real_devices(request):
    devices = RealDevices()
    # All requests are sent now, in the order of the tests, so that the process works ahead of them.
    for item in request.session.items:
        callspec = getattr(item, "callspec", None)
        program_request = callspec and callspec.params.get("program_request")
        if program_request:
            devices.send_request(program_request)
    yield devices
    devices.close()
