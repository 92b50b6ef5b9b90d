// Planned instants as rows of a table, with the places where the zone's clock changes. Pure.
import type { Schemas } from '../api/client';

type Fire = Schemas['FireView'];

export interface FireRow {
  fire: Fire;
  /** On the clock of the job's zone. */
  local: string;
  /** The zone's offset changed since the fire before. */
  change: { from: string; to: string } | null;
}

export function fireRows(fires: readonly Fire[]): FireRow[] {
  return fires.map((fire, index) => {
    const before = fires[index - 1];
    const [from, to] = [before ? offsetOf(before.local) : null, offsetOf(fire.local)];
    return { fire, local: fire.local.slice(0, 19).replace('T', ' '), change: from !== null && from !== to ? { from, to } : null };
  });
}

function offsetOf(local: string): string {
  return local.slice(19);
}
