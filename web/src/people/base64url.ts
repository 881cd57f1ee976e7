// Bytes as the JSON API writes them: base64url without padding.

export function toBase64url(content: ArrayBuffer): string {
  const text = String.fromCharCode(...new Uint8Array(content));
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

export function fromBase64url(text: string): Uint8Array<ArrayBuffer> {
  const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  return Uint8Array.from(binary, (character) => character.charCodeAt(0));
}
