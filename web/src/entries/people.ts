// Loaded by the sign-in page and the page of the account: passkeys, and times in the reader's time zone.

import { enablePasskeys } from "../people/passkeys.ts";
import { showLocalTimes } from "../practice/local_times.ts";

enablePasskeys();
showLocalTimes(document);
