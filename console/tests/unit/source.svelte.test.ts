// The live output of a run whose page nobody sees for a while: its connection is given back, and it goes on where it was.
import { afterEach, beforeEach, expect, it, vi } from 'vitest';

interface Stream {
  lastId: string | null;
  open: boolean;
  send: (event: string, data: unknown, id?: string) => void;
}
const streams: Stream[] = [];
const look: (() => void)[] = [];
const window = { baseURI: 'http://belfry/', hidden: false, addEventListener: (_: string, listen: () => void) => look.push(listen), removeEventListener: () => {} };

function stream(address: URL | string, init: RequestInit): Promise<Response> {
  if (String(address).includes('healthz')) return Promise.resolve(new Response('ok'));
  const made: Stream = { lastId: new Headers(init.headers).get('last-event-id'), open: true, send: () => {} };
  const body = new ReadableStream<Uint8Array>({
    start: (to) => {
      made.send = (event, data, id) => to.enqueue(new TextEncoder().encode(`event: ${event}\n${id ? `id: ${id}\n` : ''}data: ${JSON.stringify(data)}\n\n`));
      init.signal?.addEventListener('abort', () => {
        made.open = false;
        to.error(init.signal?.reason);
      });
    },
  });
  streams.push(made);
  return Promise.resolve(new Response(body, { headers: { 'content-type': 'text/event-stream' } }));
}
async function seen(is: boolean): Promise<void> {
  window.hidden = !is;
  for (const listen of [...look]) listen();
  await vi.advanceTimersByTimeAsync(0);
}
const chunk = (offset: number, text: string, dropped_bytes = 0) => ({ attempt: 1, seq: offset, stream: 'stdout', at_ms: 0, offset, dropped_bytes, text });

beforeEach(() => {
  vi.resetModules();
  vi.useFakeTimers();
  streams.length = look.length = 0;
  window.hidden = false;
  vi.stubGlobal('document', window);
  vi.stubGlobal('fetch', stream);
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

async function followed() {
  const { OutputSource } = await import('../../src/output/source.svelte');
  const source = new OutputSource('R', null, { run: () => {}, ended: () => {} });
  source.start(true);
  await vi.advanceTimersByTimeAsync(0);
  return source;
}

it('its stream is given back, opened when it is seen again, and what did not come again is told as a gap', async () => {
  const source = await followed();
  streams[0]?.send('output', chunk(0, 'é\n'), '1:0');
  await seen(false);
  await vi.advanceTimersByTimeAsync(19_000);
  expect(streams.map((one) => one.open)).toEqual([true]);
  await vi.advanceTimersByTimeAsync(30_000);
  expect([streams.map((one) => one.open), source.failure]).toEqual([[false], undefined]);
  await seen(true);
  await vi.advanceTimersByTimeAsync(2_000);
  expect(streams.map(({ open, lastId }) => [open, lastId])).toEqual([[false, null], [true, '1:0']]);
  streams[1]?.send('output', chunk(10, 'z\n'), '1:5');
  streams[1]?.send('output', chunk(12, 'end\n'), '1:6');
  await vi.advanceTimersByTimeAsync(0);
  expect(source.lines.all.map((line) => line.gap || line.text)).toEqual(['é', 7, 'z', 'end']);
  source.stop();
  await vi.advanceTimersByTimeAsync(10_000);
  expect(streams.map((one) => one.open)).toEqual([false, false]);
});

it('a glance elsewhere costs nothing, and what follows without a break has no gap', async () => {
  const source = await followed();
  streams[0]?.send('output', chunk(0, 'a\n'), '1:0');
  await seen(false);
  await vi.advanceTimersByTimeAsync(5_000);
  await seen(true);
  await vi.advanceTimersByTimeAsync(15_000);
  streams[0]?.send('output', chunk(2, 'b\n'), '1:1');
  await vi.advanceTimersByTimeAsync(0);
  expect([streams.length, source.lines.all.map((line) => line.text)]).toEqual([1, ['a', 'b']]);
  source.stop();
});

it('what is kept of the end is not shown twice to whoever saw it, and shown behind its gap to whoever did not', async () => {
  const source = await followed();
  for (const [index, said] of [chunk(0, 'head\n'), chunk(5, 'live\n'), chunk(5, '', 5), chunk(10, 'tail\n'), chunk(10, 'tail\n'), chunk(15, '', 20), chunk(35, 'end\n')].entries()) streams[0]?.send('output', said, `1:${index}`);
  await vi.advanceTimersByTimeAsync(0);
  expect(source.lines.all.map((line) => line.gap || line.text)).toEqual(['head', 'live', 'tail', 20, 'end']);
  source.stop();
});

it('of what reaches into what was shown only the rest is, and a gap is as large as what is missing', async () => {
  const source = await followed();
  const base64 = (text: string, from: number) => ({ text: null, base64: Buffer.from(text).subarray(from).toString('base64') });
  // The last of them begin inside a character, and inside what was shown of it.
  const half = { ...chunk(6, ''), text: null, base64: Buffer.from('é').subarray(0, 1).toString('base64') };
  for (const [index, said] of [chunk(0, 'abcd'), chunk(2, 'cdef'), half, { ...chunk(6, ''), ...base64('éü\n', 0) }, chunk(8, 'ü\n'), chunk(11, '', 0), chunk(5, '', 26), chunk(31, 'end\n')].entries())
    streams[0]?.send('output', said, `1:${index}`);
  await vi.advanceTimersByTimeAsync(0);
  expect(source.lines.all.map((line) => line.gap || line.text)).toEqual(['abcdeféü', 20, 'end']);
  source.stop();
});

it('of a page that was opened unseen nothing is followed until it is seen', async () => {
  window.hidden = true;
  const source = await followed();
  await vi.advanceTimersByTimeAsync(5_000);
  expect(streams).toEqual([]);
  await seen(true);
  await vi.advanceTimersByTimeAsync(2_000);
  expect(streams.length).toBe(1);
  source.stop();
});
