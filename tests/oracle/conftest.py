"""One process with real devices for all tests of this directory; it works ahead of them."""

from __future__ import annotations

import pytest
from worlds import RealDevices
from written import PROGRAMS


@pytest.fixture(scope="session")
def real_devices(request):
    devices = RealDevices()
    # It works ahead: everything that will be asked is asked now.
    calls = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    chosen = {params.get("name") for params in calls}
    for name in PROGRAMS:
        if name in chosen:
            devices.ask({"written": name})
    yield devices
    devices.close()
