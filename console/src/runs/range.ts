// The time range of a list of runs as its address has it: a span before now, or two instants. Pure.
import type { Query } from '../place';

export const SPANS = { h1: 3_600_000, d1: 86_400_000, d7: 7 * 86_400_000 } as const;
export type SpanKey = keyof typeof SPANS;

export function isSpan(key: string | undefined): key is SpanKey {
  return key !== undefined && key in SPANS;
}

export function rangeOf(query: Query, now: number): { from?: string; to?: string } {
  if (isSpan(query.last)) {
    // Whole minutes, so that the same page asks the same question.
    return { from: new Date(Math.floor((now - SPANS[query.last]) / 60_000) * 60_000).toISOString() };
  }
  return { ...instant('from', query.from), ...instant('to', query.to) };
}

function instant(key: 'from' | 'to', text: string | undefined): { from?: string; to?: string } {
  const at = text ? Date.parse(text) : NaN;
  return Number.isNaN(at) ? {} : { [key]: new Date(at).toISOString() };
}
