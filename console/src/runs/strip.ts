// The shapes of a result strip: one path per tone, so that a strip of 60 runs is a handful of elements. Height tells what colour tells.
import { toneOf, type Tone } from './states';

export const BAR_WIDTH = 4;
export const BAR_STEP = 5;
export const STRIP_HEIGHT = 18;

/** Newest last, as one reads. Returns SVG path data by tone. */
export function stripPaths(states: readonly string[]): [Tone, string][] {
  const parts = new Map<Tone, string[]>();
  for (const [index, state] of states.entries()) {
    const tone = toneOf(state);
    const list = parts.get(tone) ?? [];
    list.push(bar(index * BAR_STEP, state));
    parts.set(tone, list);
  }
  return [...parts].map(([tone, list]) => [tone, list.join('')]);
}

function bar(x: number, state: string): string {
  const h = STRIP_HEIGHT;
  switch (state) {
    case 'succeeded':
      return box(x, h - 9, 9);
    case 'failed':
      return box(x, 0, h);
    case 'timed_out':
      // A bar that was cut.
      return box(x, 0, 7) + box(x, 10, h - 10);
    case 'lost':
      // Its two ends only: nobody knows the middle.
      return box(x, 0, 4) + box(x, h - 4, 4);
    case 'killed':
      return box(x, 4, h - 4);
    case 'skipped':
    case 'cancelled':
      return box(x, h - 3, 3);
    default:
      // Open: hollow.
      return `M${x} ${h - 12}h${BAR_WIDTH}v12h-${BAR_WIDTH}zm1 1v10h${BAR_WIDTH - 2}v-10z`;
  }
}

function box(x: number, y: number, height: number): string {
  return `M${x} ${y}h${BAR_WIDTH}v${height}h-${BAR_WIDTH}z`;
}

/** Which run is under the pointer. */
export function barAt(offset: number, count: number): number | null {
  const index = Math.floor(offset / BAR_STEP);
  return index >= 0 && index < count ? index : null;
}
