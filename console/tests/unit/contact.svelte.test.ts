// A server that goes away, falls silent, or breaks off in the middle of an answer; and reading on when it is back.
import { afterEach, beforeEach, expect, it, vi } from 'vitest';

type Answer = () => Promise<Response>;
/** What the server does with a path; the first entry that fits. */
let server: [RegExp, Answer][] = [];
const asked: string[] = [];
const json = (body: unknown): Answer => () => Promise.resolve(new Response(JSON.stringify(body), { headers: { 'content-type': 'application/json' } }));
const gone: Answer = () => Promise.reject(new TypeError('network'));

beforeEach(() => {
  vi.resetModules();
  vi.useFakeTimers();
  asked.length = 0;
  vi.stubGlobal('document', { baseURI: 'http://belfry/', hidden: false, addEventListener: () => {} });
  vi.stubGlobal('fetch', (input: string | URL) => {
    const { pathname, search } = new URL(input);
    asked.push(pathname + search);
    return (server.find(([path]) => path.test(pathname))?.[1] ?? gone)();
  });
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

it('silence is noticed where nothing is asked, and an answer ends it', async () => {
  const { contact } = await import('../../src/api/contact.svelte');
  let back = 0;
  contact.onBack(() => back++);
  contact.heard();
  const heardAt = contact.heardAt;
  server = [[/healthz/, gone]];
  await vi.advanceTimersByTimeAsync(19_000);
  expect([contact.lostAt, asked]).toEqual([null, []]);
  await vi.advanceTimersByTimeAsync(1_500);
  expect([contact.lostAt, asked]).toEqual([heardAt, ['/healthz']]);
  server = [[/healthz/, json('ok')]];
  await vi.advanceTimersByTimeAsync(15_000);
  expect([contact.lostAt, back]).toEqual([null, 1]);
});

it('what is heard while it is asked counts, not the question that nobody answered', async () => {
  const { contact } = await import('../../src/api/contact.svelte');
  let fail: () => void = () => {};
  server = [[/healthz/, () => new Promise((_, no) => (fail = () => no(new TypeError('late'))))]];
  const trying = contact.retry();
  await vi.advanceTimersByTimeAsync(100);
  contact.heard();
  fail();
  await trying;
  expect(contact.lostAt).toBe(null);
});

it('an answer that breaks off is a failure of contact, a refusal without a reason is not', async () => {
  const { contact } = await import('../../src/api/contact.svelte');
  const { client, take } = await import('../../src/api/client');
  server = [[/users/, () => Promise.resolve(new Response('<html>', { status: 403 }))]];
  await expect(take(client.GET('/api/v1/users'))).rejects.toMatchObject({ status: 403, code: 'no_reason' });
  expect(contact.lostAt).toBe(null);
  server = [[/users/, () => Promise.resolve(new Response('{"items":[', { headers: { 'content-type': 'application/json' } }))]];
  await expect(take(client.GET('/api/v1/users'))).rejects.toMatchObject({ status: 0, code: 'no_answer' });
  expect(contact.lostAt).not.toBe(null);
});

it('output that broke off is read on from where it was, each line once', async () => {
  await import('../../src/api/contact.svelte');
  const { OutputSource } = await import('../../src/output/source.svelte');
  const page = (seq: number, next: number | null) => json({ attempt: 1, chunks: [{ seq, attempt: 1, offset: seq * 2, stream: 'stdout', text: `${seq}\n`, dropped_bytes: 0, at: '', at_ms: 0 }], next });
  const answers = [page(0, 1), gone, page(1, null)];
  server = [
    [/output/, () => (answers.shift() ?? gone)()],
    [/healthz/, json('ok')],
  ];
  const source = new OutputSource('R', null, { run: () => {}, ended: () => {} });
  source.start(false);
  await vi.advanceTimersByTimeAsync(20_000);
  expect(asked.filter((path) => path.includes('output'))).toEqual(['/api/v1/runs/R/output?from=0', '/api/v1/runs/R/output?from=1', '/api/v1/runs/R/output?from=1']);
  expect([source.done, source.failure, source.lines.all.map((line) => line.text)]).toEqual([true, undefined, ['0', '1']]);
  source.stop();
});

it('a refusal of what was asked before signing in does not end the session', async () => {
  vi.stubGlobal('addEventListener', () => {});
  vi.stubGlobal('location', { hash: '#/login' });
  vi.stubGlobal('history', { replaceState: (_state: unknown, _title: string, hash: string) => (location.hash = hash) });
  const { session } = await import('../../src/session.svelte');
  let refuse: () => void = () => {};
  const refused = new Response('{}', { status: 401, headers: { 'content-type': 'application/json' } });
  server = [
    [/whoami/, () => new Promise((answer) => (refuse = () => answer(refused)))],
    [/login/, json({ name: 'ada', grants: { '*': 'admin' }, signed_in_with: 'password', default_timezone: 'UTC', version: '1' })],
  ];
  const asking = session.ask();
  await session.login('ada', 'secret');
  refuse();
  await asking;
  expect([session.me?.name, location.hash]).toEqual(['ada', '#/']);
});
