// Something read for a page: read again when its key is another one, never because the key was looked at again.
import { expect, it, vi } from 'vitest';

import { contact } from '../../src/api/contact.svelte';
import { Resource, resource } from '../../src/api/resource.svelte';

/** A job that live events replace, as a page holds it. */
class Held {
  job = $state.raw({ name: 'a', runs: 0 });
}
const settled = () => new Promise((later) => setTimeout(later));

it('an equal key reads nothing again, another one does', async () => {
  const asked: string[] = [];
  const held = new Held();
  let made: Resource<string> | undefined;
  const stop = $effect.root(() => {
    made = resource(
      () => ({ name: held.job.name }),
      ({ name }) => {
        asked.push(name);
        return Promise.resolve(`read ${name}`);
      },
    );
  });
  await settled();
  held.job = { name: 'a', runs: 1 };
  await settled();
  expect([asked, made?.data]).toEqual([['a'], 'read a']);
  held.job = { name: 'b', runs: 1 };
  await settled();
  expect([asked, made?.data]).toEqual([['a', 'b'], 'read b']);
  stop();
});

it('what its reading looks at does not make it read again', async () => {
  const held = new Held();
  let asked = 0;
  const stop = $effect.root(() => {
    resource(() => 'all', () => Promise.resolve((asked++, held.job.runs)));
  });
  await settled();
  held.job = { name: 'a', runs: 1 };
  await settled();
  expect(asked).toBe(1);
  stop();
});

it('what is told while it is read is not undone by the older answer', async () => {
  let answer: (read: number[]) => void = () => {};
  let made: Resource<number[]> | undefined;
  const stop = $effect.root(() => {
    made = resource(() => 'all', () => new Promise<number[]>((later) => (answer = later)));
  });
  await settled();
  made?.change((known) => [...known, 2]);
  answer([1]);
  await settled();
  expect(made?.data).toEqual([1, 2]);
  made?.change((known) => [...known, 3]);
  expect(made?.data).toEqual([1, 2, 3]);
  stop();
});

it('what was told a moment ago is not undone by a server that had not heard of it', async () => {
  vi.useFakeTimers({ toFake: ['Date'] });
  const made = new Resource<string>(() => Promise.resolve('running'));
  await made.reload();
  made.change(() => 'ended');
  await made.reload();
  expect(made.data).toBe('ended');
  vi.advanceTimersByTime(10_000);
  await made.reload();
  expect(made.data).toBe('running');
  made.change(() => 'ended');
  await made.reload(() => Promise.resolve('of another job'));
  expect(made.data).toBe('of another job');
  vi.useRealTimers();
});

it('what is read every so often is read at once when the window is seen again, if its time has passed', async () => {
  vi.useFakeTimers();
  const listeners = new Set<() => void>();
  const window = { hidden: false, addEventListener: (_: string, one: () => void) => listeners.add(one), removeEventListener: (_: string, one: () => void) => listeners.delete(one) };
  vi.stubGlobal('document', window);
  const show = (is: boolean) => {
    window.hidden = !is;
    for (const one of listeners) one();
  };
  let asked = 0;
  const stop = $effect.root(() => {
    resource(() => 'all', () => Promise.resolve(++asked), { every: 60_000 });
  });
  await vi.advanceTimersByTimeAsync(0);
  await vi.advanceTimersByTimeAsync(60_000);
  expect(asked).toBe(2);
  show(false);
  await vi.advanceTimersByTimeAsync(30_000);
  show(true);
  expect(asked).toBe(2);
  show(false);
  await vi.advanceTimersByTimeAsync(200_000);
  expect(asked).toBe(2);
  show(true);
  await vi.advanceTimersByTimeAsync(0);
  expect(asked).toBe(3);
  stop();
  expect(listeners.size).toBe(0);
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

it('what takes longer to read than the time between two readings is there all the same, and is asked anew when the server is back', async () => {
  vi.useFakeTimers();
  vi.stubGlobal('document', { baseURI: 'http://belfry/', hidden: false, addEventListener: () => {}, removeEventListener: () => {} });
  let asked = 0;
  let made: Resource<string> | undefined;
  const stop = $effect.root(() => {
    made = resource(
      () => 'all',
      (_, signal) =>
        new Promise<string>((answer, refuse) => {
          asked++;
          setTimeout(() => answer('slow'), 2_500);
          signal.addEventListener('abort', () => refuse(signal.reason as Error));
        }),
      { every: 1_000 },
    );
  });
  await vi.advanceTimersByTimeAsync(5_000);
  expect([made?.data, asked]).toEqual(['slow', 2]);
  contact.lost();
  contact.heard();
  expect(asked).toBe(3);
  stop();
  vi.clearAllTimers();
  vi.useRealTimers();
  vi.unstubAllGlobals();
});
