// What is asked for twice because the first time was not answered is one wish.
import { afterEach, beforeEach, expect, it, vi } from 'vitest';

const sent: { path: string; key: string }[] = [];
let answers: (() => Promise<Response>)[] = [];
const json = (status: number, body: unknown) => () => Promise.resolve(new Response(JSON.stringify(body), { status, headers: { 'content-type': 'application/json' } }));
const gone = () => Promise.reject(new TypeError('network'));
const started = json(200, { id: 'R' });
const refused = (status: number, code: string) => json(status, { error: { code, message: code } });

beforeEach(() => {
  vi.resetModules();
  vi.useFakeTimers();
  sent.length = 0;
  vi.stubGlobal('document', { baseURI: 'http://belfry/', hidden: false, addEventListener: () => {} });
  vi.stubGlobal('fetch', (input: string | URL, init: RequestInit) => {
    const { pathname } = new URL(input);
    sent.push({ path: pathname, key: (JSON.parse(init.body as string) as { idempotency_key: string }).idempotency_key });
    return (answers.shift() ?? gone)();
  });
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

/** How many wishes those were that were asked for since. */
const wishes = () => new Set(sent.splice(0).map(({ key }) => key)).size;

it('a start that was not answered has the same key when it is asked for again, and another one when it was', async () => {
  const { runJob } = await import('../../src/api/jobs');
  answers = [gone, refused(503, 'outcome_unknown'), started, started];
  await expect(runJob('shop', 'nightly', { node: 'a' })).rejects.toMatchObject({ status: 0 });
  await expect(runJob('shop', 'nightly', { node: 'a' })).rejects.toMatchObject({ code: 'outcome_unknown' });
  await runJob('shop', 'nightly', { node: 'a' });
  expect([sent.length, wishes()]).toEqual([3, 1]);
  answers = [started, started];
  await runJob('shop', 'nightly', { node: 'a' });
  await runJob('shop', 'nightly', { node: 'a' });
  expect(wishes()).toBe(2);
});

it('two presses before there is an answer are one start', async () => {
  const { rerun } = await import('../../src/api/runs');
  answers = [started, started];
  await Promise.all([rerun('R'), rerun('R')]);
  expect([sent.length, wishes()]).toEqual([2, 1]);
});

it('another job, other parameters, what was refused, and what was asked for long ago are wishes of their own', async () => {
  const { runJob } = await import('../../src/api/jobs');
  answers = [gone, started, started];
  await expect(runJob('shop', 'nightly')).rejects.toMatchObject({ status: 0 });
  await runJob('shop', 'hourly');
  await runJob('shop', 'nightly', { force: true });
  expect(wishes()).toBe(3);
  answers = [refused(409, 'disabled'), started];
  await expect(runJob('shop', 'weekly')).rejects.toMatchObject({ status: 409 });
  await runJob('shop', 'weekly');
  expect(wishes()).toBe(2);
  answers = [gone, started];
  await expect(runJob('shop', 'daily')).rejects.toMatchObject({ status: 0 });
  vi.setSystemTime(Date.now() + 3_600_000);
  await runJob('shop', 'daily');
  expect(wishes()).toBe(2);
});
