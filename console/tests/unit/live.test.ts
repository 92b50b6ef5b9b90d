// A list of jobs that follows live events.
import { readFileSync } from 'node:fs';

import { expect, it } from 'vitest';

import type { Job } from '../../src/api/views';
import type { Schemas } from '../../src/api/client';
import { withRun } from '../../src/jobs/live';
import { merged } from '../../src/runs/live';
import { RUN_STATES } from '../../src/runs/states';

const job = { id: 'j', namespace: 'shop', name: 'nightly', recent: [{ id: '02', state: 'running' }, { id: '01', state: 'failed' }], runs: 7, running: ['02'], failed_in_a_row: 1, last_run: null } as unknown as Job;
const run = (id: string, state: string, name = 'nightly') =>
  ({ id, state, namespace: 'shop', job_name: name, planned: '2026-11-18T00:00:00Z', duration_ms: 12 }) as Schemas['RunView'];

it('a run that ends is counted once', () => {
  const ended = withRun(job, run('02', 'succeeded'));
  expect(ended).toMatchObject({ runs: 8, running: [], failed_in_a_row: 0, last_run: { id: '02', state: 'succeeded' } });
  expect(withRun(ended, run('02', 'succeeded')).runs).toBe(8);
});
it('a new run comes first, whatever the order of events', () => {
  expect(withRun(withRun(job, run('04', 'claimed')), run('03', 'skipped')).recent.map((recent) => recent.id)).toEqual(['04', '03', '02', '01']);
});
it('another job is left alone', () => {
  expect(withRun(job, run('05', 'failed', 'other'))).toBe(job);
});
it('a failure goes on with the row', () => {
  expect(withRun(job, run('03', 'timed_out')).failed_in_a_row).toBe(2);
});
it('what counts as a failure is what the server counts as one', () => {
  const rust = readFileSync(new URL('../../../crates/belfry-core/src/run.rs', import.meta.url), 'utf8');
  const failures = /fn is_failure[^}]*?\{\s*match self \{\s*([^=]*)=> true/.exec(rust)?.[1]?.match(/(?<=::)\w+/g) ?? [];
  const words = failures.map((name) => name.replace(/(?<=[a-z])(?=[A-Z])/g, '_').toLowerCase());
  expect(RUN_STATES.filter((state) => withRun(job, run('03', state)).failed_in_a_row === 2)).toEqual(words);
});
it('a lost run whose result comes late is as it ended, and counted once', () => {
  const recent = ['lost', 'failed', 'succeeded', 'failed'].map((state, n) => ({ id: `0${4 - n}`, state }));
  const red = { ...job, recent, runs: 9, running: [], failed_in_a_row: 2, last_run: { id: '04', state: 'lost' } } as unknown as Job;
  expect(withRun(red, run('04', 'succeeded'))).toMatchObject({ runs: 9, failed_in_a_row: 0, last_run: { id: '04', state: 'succeeded' } });
  expect(withRun(red, run('03', 'succeeded'))).toMatchObject({ runs: 9, failed_in_a_row: 1, last_run: { id: '04', state: 'lost' } });
  expect(withRun(red, run('04', 'failed'))).toMatchObject({ runs: 9, failed_in_a_row: 2, last_run: { id: '04', state: 'failed' } });
  const long = { ...red, recent: recent.slice(0, 2), failed_in_a_row: 70 } as unknown as Job;
  expect(withRun(long, run('04', 'killed')).failed_in_a_row).toBe(70);
  expect(withRun(long, run('04', 'cancelled')).failed_in_a_row).toBe(69);
});
it('a success takes back the failures before it, not those after it', () => {
  const recent = ['failed', 'running', 'failed'].map((state, n) => ({ id: `0${3 - n}`, state }));
  expect(withRun({ ...job, recent, failed_in_a_row: 2 } as unknown as Job, run('02', 'succeeded')).failed_in_a_row).toBe(1);
});
it('an end is not undone by an event that is older', () => {
  const ended = withRun(job, run('02', 'succeeded'));
  expect(withRun(ended, run('02', 'running'))).toBe(ended);
  expect(merged(run('02', 'failed'), run('02', 'running')).state).toBe('failed');
  expect(merged(run('02', 'running'), run('02', 'failed')).state).toBe('failed');
});
it('whether it runs is said by its newest event, whatever else the answer knew of it', () => {
  // Read while it ended: one part of the answer is from before, the other from after.
  const torn = { ...job, recent: [{ id: '02', state: 'killed' }] } as unknown as Job;
  expect(withRun(torn, run('02', 'killed')).running).toEqual([]);
  const early = { ...job, recent: [{ id: '02', state: 'claimed' }] } as unknown as Job;
  expect(withRun(early, run('02', 'killed'))).toMatchObject({ running: [], runs: 8 });
  expect(withRun(withRun(job, run('03', 'running')), run('03', 'running')).running).toEqual(['02', '03']);
});
it('a run that is older than all that is shown is not counted again and does not run again', () => {
  const recent = Array.from({ length: 60 }, (_, n) => ({ id: `${99 - n}`, state: 'succeeded' }));
  const busy = { ...job, recent } as unknown as Job;
  expect(withRun(busy, run('02', 'failed'))).toMatchObject({ running: [], runs: 7 });
  expect(withRun(busy, run('01', 'running'))).toBe(busy);
});
