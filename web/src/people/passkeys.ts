// Passkeys on the sign-in page and on the page of the account. The server issues a challenge, the authenticator signs
// it, the server checks it; what can go wrong in between is said in words.

import { fromBase64url, toBase64url } from "./base64url.ts";

interface CreationOptions {
  challenge: string;
  rp_id: string;
  user_handle: string;
  user_name: string;
  algorithms: number[];
  exclude_credentials: string[];
  timeout_ms: number;
}

interface RequestOptions {
  challenge: string;
  rp_id: string;
  timeout_ms: number;
}

/** What the person reads when the browser or the authenticator says no. */
export function failureText(error: unknown): string {
  const name = error instanceof Error ? error.name : "";
  if (name === "NotAllowedError") return "No passkey was used: the request was cancelled, or it took too long.";
  if (name === "InvalidStateError") return "This device already has a passkey of your account.";
  if (name === "NotSupportedError" || name === "ConstraintError") {
    return "This device cannot be used: it must be able to verify you, with a PIN, a fingerprint or your face.";
  }
  if (name === "SecurityError") return "The browser allows no passkey under this address.";
  if (name === "TypeError") return "The server cannot be reached. Try again.";
  return error instanceof Error && error.message ? error.message : "The passkey could not be used.";
}

async function post<Result>(path: string, body: unknown): Promise<Result> {
  const token = document.querySelector<HTMLMetaElement>('meta[name="csrf-token"]')?.content ?? "";
  const response = await fetch(path, {
    method: "POST",
    headers: { accept: "application/json", "content-type": "application/json", "x-csrf-token": token },
    body: JSON.stringify(body),
  });
  const result = (await response.json().catch(() => null)) as { error?: { message?: string } } | null;
  if (!response.ok) throw new Error(result?.error?.message ?? "The server did not answer as expected. Try again.");
  return result as Result;
}

async function addPasskey(label: string, password: string): Promise<void> {
  const options = await post<CreationOptions>("/api/v1/account/passkeys/challenge", { current_password: password });
  const credential = (await navigator.credentials.create({
    publicKey: {
      challenge: fromBase64url(options.challenge),
      rp: { id: options.rp_id, name: "shardlab" },
      user: { id: fromBase64url(options.user_handle), name: options.user_name, displayName: options.user_name },
      pubKeyCredParams: options.algorithms.map((alg) => ({ type: "public-key", alg })),
      excludeCredentials: options.exclude_credentials.map((id) => ({ type: "public-key", id: fromBase64url(id) })),
      // Discoverable, so that nobody types a name; verified, so that a stolen device is not enough.
      authenticatorSelection: { residentKey: "required", requireResidentKey: true, userVerification: "required" },
      attestation: "none",
      timeout: options.timeout_ms,
    },
  })) as PublicKeyCredential;
  const response = credential.response as AuthenticatorAttestationResponse;
  await post("/api/v1/account/passkeys", {
    label,
    client_data: toBase64url(response.clientDataJSON),
    attestation_object: toBase64url(response.attestationObject),
  });
}

/** Sign in, and return where to go. */
async function signIn(next: string): Promise<string> {
  const options = await post<RequestOptions>("/api/v1/sign-in/passkey/challenge", {});
  const credential = (await navigator.credentials.get({
    publicKey: {
      challenge: fromBase64url(options.challenge),
      rpId: options.rp_id,
      userVerification: "required",
      timeout: options.timeout_ms,
    },
  })) as PublicKeyCredential;
  const response = credential.response as AuthenticatorAssertionResponse;
  const result = await post<{ next: string }>("/api/v1/sign-in/passkey", {
    credential_id: toBase64url(credential.rawId),
    client_data: toBase64url(response.clientDataJSON),
    authenticator_data: toBase64url(response.authenticatorData),
    signature: toBase64url(response.signature),
    user_handle: toBase64url(response.userHandle ?? new ArrayBuffer(0)),
    next,
  });
  return result.next;
}

/** Show what the page hides from browsers without scripts, and run `action` at each submit. */
function enableForm(form: HTMLFormElement, action: () => Promise<string>): void {
  const message = form.querySelector<HTMLElement>("[data-passkey-message]")!;
  const button = form.querySelector<HTMLButtonElement>("button")!;
  form.hidden = false;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    button.disabled = true; // a second request would cancel the first in the browser
    message.hidden = true;
    action()
      .then((next) => location.assign(next))
      .catch((error: unknown) => {
        message.textContent = failureText(error);
        message.hidden = false;
        button.disabled = false;
        button.focus();
      });
  });
}

export function enablePasskeys(): void {
  const isSupported = "PublicKeyCredential" in window && "credentials" in navigator;
  for (const note of document.querySelectorAll<HTMLElement>("[data-passkey-unsupported]")) note.hidden = isSupported;
  if (!isSupported) return;
  const signInForm = document.querySelector<HTMLFormElement>("#passkey-sign-in");
  if (signInForm !== null) enableForm(signInForm, () => signIn(signInForm.dataset.next ?? ""));
  const addForm = document.querySelector<HTMLFormElement>("#passkey-add");
  if (addForm !== null) {
    enableForm(addForm, async () => {
      const fields = new FormData(addForm);
      const password = addForm.querySelector<HTMLInputElement>("[name=current_password]")!;
      await addPasskey(String(fields.get("label")), password.value).catch((error: unknown) => {
        password.value = "";
        throw error;
      });
      return "/account?done=passkey";
    });
  }
}
