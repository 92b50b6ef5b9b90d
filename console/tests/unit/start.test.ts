// Which jobs are started with one press.
import { expect, it } from 'vitest';

import type { Run } from '../../src/api/runs';
import type { Job } from '../../src/api/views';
import { isStarted, jobToRunAgain, startsAtOnce } from '../../src/jobs/start';

const job = (document: object) => ({ document: { action: { shell: { command: 'true' } }, run_on: 'one', ...document } }) as Job;
const run = (facts: Partial<Run>) => ({ namespace: 'shop', job_name: 'nightly', state: 'failed', trigger: 'schedule', ...facts }) as Run;

it('a job is, unless it always runs or has to be told the node', () => {
  expect([job({}), job({ run_on: 'home' })].map(startsAtOnce)).toEqual([true, true]);
  expect(isStarted(job({ run_on: 'each' }))).toBe(true);
  expect([job({ run_on: 'each' }), job({ action: { service: { command: ['sleep'] } } })].map(startsAtOnce)).toEqual([false, false]);
});
it('again only what has ended, and what is a job at all', () => {
  expect(jobToRunAgain(run({}))).toEqual({ ns: 'shop', name: 'nightly' });
  expect(['running', 'waiting'].map((state) => jobToRunAgain(run({ state })))).toEqual([null, null]);
  expect(jobToRunAgain(run({ trigger: 'wrapped' }))).toBe(null);
});
