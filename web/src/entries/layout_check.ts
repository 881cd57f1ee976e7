// Not loaded by any page: tests/web/test_layout_port.py runs it in Node and in Chromium to compare with shardlab.sharding.

import { describeLayout } from "../explorer/describe_layout.ts";

Object.assign(globalThis, { describeLayout });
