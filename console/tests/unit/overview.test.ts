// The numbers and pictures of the front page.
import { describe, expect, it } from 'vitest';

import { en } from '../../src/i18n/en';
import { zh } from '../../src/i18n/zh';
import type { Lane, Overview } from '../../src/api/views';
import { heatPaths, levelOf } from '../../src/overview/heat';
import { barOf, firePath, lanePaths, runAt } from '../../src/overview/lanes';
import { days, percent, rate } from '../../src/overview/success';

const now = Date.parse('2026-11-18T12:00:00Z');

describe('success', () => {
  const day = (text: string, state: string, runs: number) => ({ day: `${text}T00:00:00.000Z`, state, runs });
  const overview = { days: [day('2026-11-18', 'succeeded', 999), day('2026-11-18', 'failed', 1), day('2026-11-17', 'skipped', 4), day('2026-10-01', 'failed', 9)] } as Overview;
  it('counts what ended by itself, day by day', () => {
    const week = days(overview, now, 7);
    expect(week.map((one) => one.day).at(0)).toBe('2026-11-12');
    expect(week.at(-1)).toEqual({ day: '2026-11-18', good: 999, bad: 1, other: 0 });
    expect(week.at(-2)).toEqual({ day: '2026-11-17', good: 0, bad: 0, other: 4 });
  });
  it('is never 100 % while one failed, and nothing without runs', () => {
    expect([percent(rate(days(overview, now, 1))), percent(9999 / 10000), percent(1), percent(null)]).toEqual(['99.9 %', '99.9 %', '100 %', '–']);
  });
});

describe('the time line', () => {
  const scale = { from: now - 3_600_000, to: now + 3_600_000, width: 720 };
  const lane = {
    label: 'a',
    runs: [
      { id: '1', state: 'succeeded', planned: '', started_at: '2026-11-18T11:30:00Z', ended_at: '2026-11-18T11:40:00Z' },
      { id: '2', state: 'running', planned: '', started_at: '2026-11-18T11:50:00Z', ended_at: null },
    ],
    fires: [],
  } as unknown as Lane;
  it('draws a run from its start to its end, an open one to now', () => {
    expect(lane.runs.map((run) => barOf(run, scale, now))).toEqual([
      { x: 180, width: 60 },
      { x: 300, width: 60 },
    ]);
    expect(lanePaths(lane, scale, now).map(([tone]) => tone)).toEqual(['ok', 'run']);
  });
  it('marks fires to come one by one, and as a bar where they would touch', () => {
    const at = (minutes: number) => new Date(now + minutes * 60_000).toISOString();
    expect(firePath([at(1), at(1.5), at(2), at(30)], scale)).toBe('M366.0 8.5h6.0v2H366.0zM540.0 6.5l3 3l-3 3l-3-3z');
  });
  it('finds the run under the pointer, and none in between', () => {
    expect([runAt(lane, 200, scale, now)?.id, runAt(lane, 243, scale, now)?.id, runAt(lane, 270, scale, now)]).toEqual(['1', '1', null]);
  });
});

describe('the heat map', () => {
  it('keeps small numbers apart, and ends at the highest level', () => {
    expect([0, 1, 2, 3, 4].map((value) => levelOf(value, 3))).toEqual([0, 1, 2, 3, 4]);
    expect([levelOf(1, 500), levelOf(20, 500), levelOf(500, 500)]).toEqual([1, 2, 4]);
  });
  it('tells of each number of jobs that it does not count', () => {
    expect([en, zh].map(({ overview }) => [1, 2].map(overview.forecastLeftOut))).toEqual([
      ['1 job that fires very often is not counted.', '2 jobs that fire very often are not counted.'],
      ['有 1 个任务触发过于频繁，未计入。', '有 2 个任务触发过于频繁，未计入。'],
    ]);
  });
  it('is one path for each level', () => {
    const paths = heatPaths([0, 1, 1, 500]);
    expect(paths.map((d) => (d.match(/M/g) ?? []).length)).toEqual([0, 2, 0, 0, 1]);
  });
});
