// Planned instants as rows of a table, with the places where the zone's clock changes. Pure.
import type { Schemas } from '../api/client';

type Fire = Schemas['FireView'];

export interface FireRow {
  fire: Fire;
  /** On the clock of the job's zone. */
  local: string;
  /** The zone's offset changed since the fire before, or since now. */
  change: { from: string; to: string } | null;
}

/** `now`: the zone's offset of now; null where it is not known. */
export function fireRows(fires: readonly Fire[], now: string | null): FireRow[] {
  return fires.map((fire, index) => {
    const before = fires[index - 1];
    const [from, to] = [before ? offsetOf(before.local) : now, offsetOf(fire.local)];
    return { fire, local: fire.local.slice(0, 19).replace('T', ' '), change: from !== null && from !== to ? { from, to } : null };
  });
}

/** As the API writes it, `+02:00`; null of a zone that only the server knows. */
export function offsetAt(at: number, zone: string): string | null {
  try {
    const said = new Intl.DateTimeFormat('en', { timeZone: zone, timeZoneName: 'longOffset' }).format(at);
    return /[+-]\d\d:\d\d/.exec(said)?.[0] ?? '+00:00';
  } catch {
    return null;
  }
}

function offsetOf(local: string): string {
  return local.slice(19);
}
