// Success by day from the counts of the overview. Pure.
import type { Overview } from '../api/views';
import { BAD_STATES } from '../runs/states';

export interface Day {
  /** `2026-11-18`, a day of UTC as the server counts. */
  day: string;
  good: number;
  bad: number;
  /** Skipped, cancelled or killed: somebody wanted it so, or it never ran. */
  other: number;
}

const DAY_MS = 86_400_000;

/** One for each of the last days, the oldest first, also those without runs. */
export function days(overview: Overview, now: number, count: number): Day[] {
  const made = Array.from({ length: count }, (_, i): Day => ({ day: dayOf(now - (count - 1 - i) * DAY_MS), good: 0, bad: 0, other: 0 }));
  for (const { day, state, runs } of overview.days) {
    const known = made.find((one) => one.day === day.slice(0, 10));
    if (!known) continue;
    if (state === 'succeeded') known.good += runs;
    else if (BAD_STATES.includes(state)) known.bad += runs;
    else known.other += runs;
  }
  return made;
}

/** Of the runs that ended by themselves; null without any. */
export function rate(counted: readonly Day[]): number | null {
  const good = counted.reduce((sum, day) => sum + day.good, 0);
  const bad = counted.reduce((sum, day) => sum + day.bad, 0);
  return good + bad === 0 ? null : good / (good + bad);
}

/** Never 100 % while one failed. */
export function percent(part: number | null): string {
  if (part === null) return '–';
  if (part === 1) return '100 %';
  const floored = Math.floor(part * 1000) / 10;
  return `${floored.toFixed(1)} %`;
}

function dayOf(at: number): string {
  return new Date(at).toISOString().slice(0, 10);
}
