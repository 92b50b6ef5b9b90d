// The geometry of the chart of durations, and the quantiles of what was measured. Pure.
import { duration } from '../time';

export interface Measured {
  id: string;
  state: string;
  planned: string;
  ms: number;
}

export interface Chart {
  points: { run: Measured; x: number; y: number }[];
  ticks: { y: number; text: string }[];
  y: (ms: number) => number;
}

export const CHART_HEIGHT = 130;
export const CHART_LEFT = 46;
const TOP = 8;
const BOTTOM = 6;
/** Beyond this factor between the shortest and the longest, the scale is logarithmic. */
const SPREAD_LINEAR_MAX = 30;

export function chart(runs: readonly Measured[], p95: number, width: number): Chart {
  const most = Math.max(1, p95, ...runs.map((run) => run.ms)) * 1.05;
  const least = Math.max(1, Math.min(...runs.map((run) => run.ms), most));
  const log = most / least > SPREAD_LINEAR_MAX;
  const low = log ? least * 0.8 : 0;
  const scale = (ms: number) => (log ? Math.log(Math.max(ms, low) / low) / Math.log(most / low) : ms / most);
  const height = CHART_HEIGHT - TOP - BOTTOM;
  const y = (ms: number) => TOP + height * (1 - scale(ms));
  const step = (width - CHART_LEFT - 6) / Math.max(1, runs.length);
  const points = runs.map((run, index) => ({ run, x: CHART_LEFT + step * (index + 0.5), y: y(run.ms) }));
  const marks = log ? [0, 1 / 3, 2 / 3, 1].map((part) => low * (most / low) ** part) : [0, 0.5, 1].map((part) => most * part);
  return { points, ticks: marks.map((ms) => ({ y: y(ms), text: duration(ms) })), y };
}

export function quantile(sorted: readonly number[], part: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))] ?? 0;
}
