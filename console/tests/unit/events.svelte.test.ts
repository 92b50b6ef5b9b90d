// The stream of changed runs, when it tells again and again that something was missed.
import { expect, it, vi } from 'vitest';

it('that something was missed is told at once, and then at most every five seconds', async () => {
  vi.useFakeTimers();
  vi.stubGlobal('document', { baseURI: 'http://belfry/', hidden: false, addEventListener: () => {} });
  let send: (event: string) => void = () => {};
  const body = new ReadableStream<Uint8Array>({ start: (to) => void (send = (event) => to.enqueue(new TextEncoder().encode(`event: ${event}\ndata: {}\n\n`))) });
  vi.stubGlobal('fetch', () => Promise.resolve(new Response(body, { headers: { 'content-type': 'text/event-stream' } })));
  const { events } = await import('../../src/api/events.svelte');
  const told = [0, 0];
  const stops = told.map((_, index) => events.listen({ missed: () => told[index]!++ }));
  await vi.advanceTimersByTimeAsync(10);
  send('missed');
  await vi.advanceTimersByTimeAsync(10);
  expect(told).toEqual([1, 1]);
  for (let i = 0; i < 49; i++) {
    send('missed');
    await vi.advanceTimersByTimeAsync(100);
  }
  expect(told).toEqual([1, 1]);
  await vi.advanceTimersByTimeAsync(200);
  expect(told).toEqual([2, 2]);
  await vi.advanceTimersByTimeAsync(6_000);
  expect(told).toEqual([2, 2]);
  for (const stop of stops) stop();
  vi.useRealTimers();
  vi.unstubAllGlobals();
});
