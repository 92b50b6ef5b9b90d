// What an entry of the audit says, in one line, and what it can be compared with. Pure.
import type { Schemas } from '../api/client';

export type Entry = Schemas['AuditView'];

/** `weight: 3 · labels: {"zone":"a"}`; what is null was not touched. */
export function inOneLine(detail: unknown): string {
  if (typeof detail !== 'object' || detail === null) return detail == null ? '' : String(detail);
  const told = Object.entries(detail).filter(([, value]) => value !== null);
  return told.map(([key, value]) => `${key}: ${typeof value === 'string' ? value : JSON.stringify(value)}`).join(' · ');
}

export interface Compared {
  ns: string;
  name: string;
  revision: number;
}

/** The revision of a job that an entry made out of an older one; null for any other entry. */
export function revisionOf(entry: Entry): Compared | null {
  const revision = (entry.detail as { revision?: unknown } | null)?.revision;
  const [ns, name, ...more] = entry.subject.split('/');
  if (!entry.action.startsWith('job.') || typeof revision !== 'number' || revision < 2 || !ns || !name || more.length > 0) return null;
  return { ns, name, revision };
}

/** `{field: {from, to}}` or `{from, to}` in a detail: the two sides as text, for a diff. */
export function sidesOf(detail: unknown): { before: string; after: string } | null {
  if (typeof detail !== 'object' || detail === null) return null;
  const { from, to, before, after } = detail as Record<string, unknown>;
  const text = (value: unknown) => (value === undefined || value === null ? '' : JSON.stringify(value, null, 2));
  if (from !== undefined && to !== undefined) return { before: text(from), after: text(to) };
  return before !== undefined && after !== undefined ? { before: text(before), after: text(after) } : null;
}
