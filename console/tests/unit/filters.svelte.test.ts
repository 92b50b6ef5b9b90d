// What is typed into the filters of a list, and when it is in the address.
import { afterEach, beforeEach, expect, it, vi } from 'vitest';

let stop: () => void = () => {};

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal('addEventListener', () => {});
  vi.stubGlobal('location', { hash: '' });
  vi.stubGlobal('history', { replaceState: (_state: unknown, _title: string, hash: string) => (location.hash = hash) });
});
afterEach(() => {
  stop();
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

async function shown() {
  const { filters } = await import('../../src/filters.svelte');
  const { router } = await import('../../src/router.svelte');
  router.go('#/jobs?state=failing', { replace: true });
  let made: ReturnType<typeof filters> | undefined;
  stop = $effect.root(() => {
    made = filters(['q', 'label', 'state']);
  });
  await vi.advanceTimersByTimeAsync(0);
  const typed = (key: string, value: string) => made?.later(key)({ currentTarget: { value } } as unknown as Event);
  return { typed, clear: () => made?.clear(), text: (key: string) => made?.text(key), some: () => made?.some };
}

it('is there at once after a pause, and while one types fast when that pauses, without the space around it', async () => {
  const { typed } = await shown();
  typed('q', 'b');
  await vi.advanceTimersByTimeAsync(0);
  expect(location.hash).toBe('#/jobs?state=failing&q=b');
  typed('q', 'back');
  await vi.advanceTimersByTimeAsync(150);
  typed('q', ' backup ');
  await vi.advanceTimersByTimeAsync(150);
  expect(location.hash).toBe('#/jobs?state=failing&q=b');
  await vi.advanceTimersByTimeAsync(100);
  expect(location.hash).toBe('#/jobs?state=failing&q=backup');
});
it('is there from each field, however soon one goes on to the next', async () => {
  const { typed } = await shown();
  typed('q', 'backup');
  typed('label', 'team=db');
  await vi.advanceTimersByTimeAsync(1_000);
  expect(location.hash).toBe('#/jobs?state=failing&q=backup&label=team%3Ddb');
});
it('stays away when all are cleared meanwhile', async () => {
  const { typed, clear, some } = await shown();
  typed('q', 'backup');
  expect(some()).toBe(true);
  clear();
  await vi.advanceTimersByTimeAsync(1_000);
  expect([location.hash, some()]).toEqual(['#/jobs', false]);
});
it('does not come into the address of the next page', async () => {
  const { typed } = await shown();
  typed('q', 'backup');
  stop();
  location.hash = '#/nodes';
  await vi.advanceTimersByTimeAsync(1_000);
  expect(location.hash).toBe('#/nodes');
});
it('keeps the space after a word while another one may follow, and only then', async () => {
  const { typed, text, clear } = await shown();
  typed('q', 'foo ');
  expect(text('q')).toBe('foo ');
  await vi.advanceTimersByTimeAsync(300);
  expect([location.hash, text('q')]).toEqual(['#/jobs?state=failing&q=foo', 'foo ']);
  typed('q', 'foo b');
  expect(text('q')).toBe('foo b');
  await vi.advanceTimersByTimeAsync(300);
  expect([location.hash, text('q')]).toEqual(['#/jobs?state=failing&q=foo+b', 'foo b']);
  const { router } = await import('../../src/router.svelte');
  router.set({ q: 'other' });
  expect(text('q')).toBe('other');
  typed('q', 'more');
  clear();
  expect(text('q')).toBe('');
});
