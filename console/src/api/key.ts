// A key that names one wish of the user's, so that asking twice for it is asking once.

/** Also where the page came over plain HTTP, and browsers have no `randomUUID`. */
export function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}
