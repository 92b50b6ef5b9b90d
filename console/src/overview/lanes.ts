// The geometry of the time line around now: bars for runs, marks for fires to come, ticks of the axis. Pure.
import type { Lane, TimelineRun } from '../api/views';
import { toneOf, type Tone } from '../runs/states';
import { onClock } from '../time';

export const LANE_HEIGHT = 18;
const BAR_PX_MIN = 3;

export interface Scale {
  from: number;
  to: number;
  width: number;
}

export function xOf(at: number, { from, to, width }: Scale): number {
  return ((at - from) / (to - from)) * width;
}

export function barOf(run: TimelineRun, scale: Scale, now: number): { x: number; width: number } {
  const start = Date.parse(run.started_at ?? run.planned);
  const end = run.ended_at ? Date.parse(run.ended_at) : run.started_at ? now : start;
  const x = Math.max(0, xOf(start, scale));
  return { x, width: Math.max(BAR_PX_MIN, Math.min(scale.width, xOf(end, scale)) - x) };
}

/** One path for each tone: height tells good from bad as well. */
export function lanePaths(lane: Lane, scale: Scale, now: number): [Tone, string][] {
  const parts = new Map<Tone, string[]>();
  for (const run of lane.runs) {
    const { x, width } = barOf(run, scale, now);
    const tone = toneOf(run.state);
    const [y, height] = tone === 'ok' ? [6, 7] : tone === 'idle' ? [10, 3] : [2, 14];
    const list = parts.get(tone) ?? [];
    list.push(`M${x.toFixed(1)} ${y}h${width.toFixed(1)}v${height}h-${width.toFixed(1)}z`);
    parts.set(tone, list);
  }
  return [...parts].map(([tone, list]) => [tone, list.join('')]);
}

const FIRE_PX = 7;

/** Small diamonds; where they would touch, one thin bar for all of them. */
export function firePath(fires: readonly string[], scale: Scale): string {
  const middle = LANE_HEIGHT / 2 + 0.5;
  const places = fires.map((at) => xOf(Date.parse(at), scale));
  let path = '';
  for (let i = 0; i < places.length; ) {
    let end = i;
    while (end + 1 < places.length && (places[end + 1] ?? 0) - (places[end] ?? 0) < FIRE_PX) end++;
    const x = (places[i] ?? 0).toFixed(1);
    if (end === i) path += `M${x} ${middle - 3}l3 3l-3 3l-3-3z`;
    else path += `M${x} ${middle - 1}h${((places[end] ?? 0) - (places[i] ?? 0)).toFixed(1)}v2H${x}z`;
    i = end + 1;
  }
  return path;
}

export function runAt(lane: Lane, offset: number, scale: Scale, now: number): TimelineRun | null {
  let best: TimelineRun | null = null;
  let distance = 6;
  for (const run of lane.runs) {
    const { x, width } = barOf(run, scale, now);
    const away = offset < x ? x - offset : offset > x + width ? offset - x - width : 0;
    if (away < distance || (away === 0 && distance === 0)) {
      best = run;
      distance = away;
    }
  }
  return best;
}

const TICK_PX_HALF = 17;
const STEPS_MS = [5, 10, 15, 30, 60, 120, 180, 360].map((minutes) => minutes * 60_000);

export function ticks(scale: Scale, room = 90): { x: number; text: string }[] {
  const most = Math.max(2, Math.floor(scale.width / room));
  const step = STEPS_MS.find((one) => (scale.to - scale.from) / one <= most) ?? 12 * 3_600_000;
  const made: { x: number; text: string }[] = [];
  // From a whole hour of the viewer's clock, so that zones with half hours have round ticks too.
  const offset = new Date(scale.from).getTimezoneOffset() * 60_000;
  for (let at = Math.ceil((scale.from - offset) / step) * step + offset; at < scale.to; at += step) {
    const x = xOf(at, scale);
    if (x > TICK_PX_HALF && x < scale.width - TICK_PX_HALF) made.push({ x, text: onClock(at).time.slice(0, 5) });
  }
  return made;
}
