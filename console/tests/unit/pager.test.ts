// Reading a list page by page.
import { describe, expect, it, vi } from 'vitest';

import { Failure } from '../../src/api/failure';
import { Pager, type Page } from '../../src/api/pager.svelte';

const pages: Record<string, Page<string>> = {
  '': { items: ['a', 'b'], next: 'c' },
  c: { items: ['c', 'd'], next: 'e' },
  e: { items: ['e'], next: null },
};
function pager(asked: string[] = [], from = pages): Pager<string> {
  return new Pager((cursor = '') => {
    asked.push(cursor);
    return Promise.resolve(from[cursor] ?? { items: [] });
  });
}

describe('a pager', () => {
  it('reads on with the cursor of the last page until there is none', async () => {
    const asked: string[] = [];
    const list = pager(asked);
    expect([list.first, list.more]).toEqual([true, false]);
    await list.restart();
    await list.readMore();
    await list.readMore();
    await list.readMore();
    expect(list.items).toEqual(['a', 'b', 'c', 'd', 'e']);
    expect([asked, list.more]).toEqual([['', 'c', 'e'], false]);
  });
  it('reads the page of one item again, and leaves the others', async () => {
    const asked: string[] = [];
    const list = pager(asked, { ...pages, c: { items: ['C', 'D'], next: 'e' } });
    await list.restart();
    await list.readMore();
    asked.length = 0;
    await list.refresh(2);
    expect([asked, list.items]).toEqual([['c'], ['a', 'b', 'C', 'D']]);
  });
  it('keeps what it has when reading fails, and says why', async () => {
    let away = false;
    const list = new Pager<string>((cursor = '') => (away ? Promise.reject(new Failure(503, 'store_away', 'x')) : Promise.resolve(pages[cursor] ?? { items: [] })));
    await list.restart();
    away = true;
    await list.readMore();
    expect([list.items, list.failure?.code, list.loading]).toEqual([['a', 'b'], 'store_away', false]);
  });
  it('forgets the answer to a question that was replaced', async () => {
    let answer: (page: Page<string>) => void = () => {};
    const list = new Pager<string>(() => new Promise((later) => (answer = later)));
    const slow = list.restart();
    const slowAnswer = answer;
    const quick = list.restart(() => Promise.resolve({ items: ['new'], next: null }));
    slowAnswer({ items: ['old'], next: null });
    await Promise.all([slow, quick]);
    expect(list.items).toEqual(['new']);
  });
  it('drops what follows a page that ends elsewhere now, and reads it again', async () => {
    const from = { ...pages };
    const list = pager([], from);
    await list.restart();
    await list.readMore();
    from[''] = { items: ['0', 'a'], next: 'b' };
    from.b = { items: ['b', 'c'], next: 'd' };
    await list.refresh(0);
    expect(list.items).toEqual(['0', 'a']);
    await list.readMore();
    expect(list.items).toEqual(['0', 'a', 'b', 'c']);
  });
  it('reads all pages again through the one that is looked at', async () => {
    const asked: string[] = [];
    const list = pager(asked);
    await list.restart();
    await list.readMore();
    await list.readMore();
    asked.length = 0;
    await list.restart(undefined, 3);
    expect([asked, list.items, list.more]).toEqual([['', 'c'], ['a', 'b', 'c', 'd'], true]);
    await list.restart(undefined, 99);
    expect(list.items).toEqual(['a', 'b', 'c', 'd', 'e']);
  });
  it('shows what stands on two pages once', async () => {
    const list = new Pager<{ id: number }>((cursor) => Promise.resolve(cursor ? { items: [{ id: 2 }, { id: 3 }] } : { items: [{ id: 1 }, { id: 2 }], next: 'x' }), (item) => item.id);
    await list.restart();
    await list.readMore();
    list.prepend([{ id: 1 }, { id: 0 }]);
    expect(list.items.map((item) => item.id)).toEqual([1, 0, 2, 3]);
  });
  it('does a refresh that was asked for while reading after it', async () => {
    const asked: string[] = [];
    const list = pager(asked);
    const reading = list.restart();
    await list.refresh(0);
    await reading;
    expect(asked).toEqual(['', '']);
  });
  it('is done however often it is told to read again, and reads once more then', async () => {
    const asked: string[] = [];
    const list = pager(asked);
    await list.restart();
    asked.length = 0;
    const rounds = Array.from({ length: 5 }, () => list.restart(undefined, 3));
    await rounds[0];
    expect([asked, list.items, list.loading]).toEqual([['', 'c', '', 'c'], ['a', 'b', 'c', 'd'], false]);
  });
  it('after a break does not wait for an answer from before it', async () => {
    const asked: string[] = [];
    const list = new Pager<string>(() => (asked.push('') === 1 ? new Promise(() => {}) : Promise.resolve({ items: ['a'] })));
    void list.restart();
    list.stop();
    await list.restart();
    expect([list.items, list.loading]).toEqual([['a'], false]);
  });
  it('reads all pages again on which items are, and those that are asked for while it reads', async () => {
    const asked: string[] = [];
    const list = pager(asked);
    await list.restart(undefined, 99);
    asked.length = 0;
    await list.refresh(1, 3);
    expect([asked, list.items]).toEqual([['', 'c'], ['a', 'b', 'c', 'd', 'e']]);
    asked.length = 0;
    const reading = list.refresh(0);
    void list.refresh(4);
    void list.refresh(2);
    await reading;
    expect([asked, list.items]).toEqual([['', 'c', 'e'], ['a', 'b', 'c', 'd', 'e']]);
  });
  it('does not undo by an older answer what was told while it was on its way', async () => {
    let answer: (page: Page<string>) => void = () => {};
    const list = new Pager<string>(() => new Promise((later) => (answer = later)));
    const reading = list.restart();
    list.change((item) => item.toUpperCase());
    answer({ items: ['a'], next: null });
    await reading;
    expect(list.items).toEqual(['A']);
  });
  it('does not undo it either when the reading takes long, and forgets it some time after', async () => {
    vi.useFakeTimers();
    const answers: ((page: Page<string>) => void)[] = [];
    const list = new Pager<string>(() => new Promise((later) => answers.push(later)));
    const reading = list.restart(undefined, 9);
    const step = async (item: string, next: string | null) => {
      await vi.advanceTimersByTimeAsync(20_000);
      answers.shift()?.({ items: [item], next });
      await vi.advanceTimersByTimeAsync(0);
    };
    list.change((item) => (item === 'a' ? 'A' : item));
    await step('a', 'b');
    list.change((item) => (item === 'b' ? 'B' : item));
    await step('b', null);
    await reading;
    expect(list.items).toEqual(['A', 'B']);
    await vi.advanceTimersByTimeAsync(6_000);
    const again = list.restart();
    await step('a', null);
    await again;
    expect(list.items).toEqual(['a']);
    vi.useRealTimers();
  });
});
