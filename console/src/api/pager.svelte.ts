// A list read page by page with the API's cursors. Pages that are shown can be read again in place, without losing the scroll.
import { untrack } from 'svelte';

import { contact } from './contact.svelte';
import { asFailure, isAbort, type Failure } from './failure';
import { Told, type Edit } from './told';

export interface Page<T> {
  items: T[];
  next?: string | null;
  missing?: string | null;
}

type LoadPage<T> = (cursor: string | undefined, signal: AbortSignal) => Promise<Page<T>>;

export class Pager<T> {
  pages: Page<T>[] = $state.raw([]);
  failure: Failure | undefined = $state.raw();
  loading = $state(false);
  /** Each once: what moved between two readings may stand on two pages. */
  items: T[] = $derived([...new Map(this.pages.flatMap((page) => page.items).map((item) => [this.key(item), item])).values()]);
  /** Nothing was read yet, so "empty" cannot be said. */
  first = $derived(this.pages.length === 0);
  more = $derived(this.pages.length > 0 && Boolean(this.pages.at(-1)?.next));
  private going: AbortController | undefined;
  private readonly told = new Told<T>();
  /** What is to be read when the reading that goes on is done: from one item to another, or all up to one. */
  private due: [first: number, last: number] | undefined;
  private again: number | undefined;

  constructor(
    private load: LoadPage<T>,
    private readonly key: (item: T) => unknown = (item) => item,
  ) {}

  /**
   * Another question: what was read is kept on the screen until the answer is there. `through`: reads on to the page that holds this item.
   * The same one is asked once more when the answer of now is there: who is asked again and again would else never be done.
   */
  async restart(load: LoadPage<T> = this.load, through = 0): Promise<void> {
    if (load === this.load && this.loading) {
      this.again = through;
      return;
    }
    if (load !== this.load) this.told.forget();
    this.load = load;
    this.due = this.again = undefined;
    await this.read(async (ask) => {
      const pages = [await ask()];
      for (let read = 0; (read += pages.at(-1)?.items.length ?? 0) <= through; ) {
        const cursor = pages.at(-1)?.next;
        if (!cursor) break;
        pages.push(await ask(cursor));
      }
      return pages;
    });
  }

  reload(): Promise<void> {
    return this.restart();
  }

  async readMore(): Promise<void> {
    const cursor = this.pages.at(-1)?.next;
    if (this.loading || !cursor) return;
    await this.read(async (ask) => [await ask(cursor)], (pages) => [...this.pages, ...pages]);
  }

  /** Reads the pages that hold these items again; when another reading is going, after that. */
  async refresh(first: number, last = first): Promise<void> {
    if (this.loading) {
      this.due = [Math.min(first, this.due?.[0] ?? first), Math.max(last, this.due?.[1] ?? last)];
      return;
    }
    const [from, to] = [this.pageOf(first), this.pageOf(last)];
    await this.read(
      async (ask) => {
        const pages: Page<T>[] = [];
        let cursor = this.pages[from - 1]?.next;
        do {
          const page = await ask(cursor ?? undefined);
          pages.push(page);
          cursor = page.next;
        } while (cursor && pages.length <= to - from);
        return pages;
      },
      // Where the last one ends elsewhere now, those behind it begin at a wrong place: they are read again when they are looked at.
      (pages) => [...this.pages.slice(0, from), ...pages, ...(pages.at(-1)?.next === this.pages[to]?.next ? this.pages.slice(to + 1) : [])],
    );
  }

  /** Changes items that are shown, as a live event says; and those of answers that may be older. */
  change(edit: Edit<T>): void {
    this.pages = edited(this.pages, edit);
    this.told.add(edit);
  }

  prepend(items: readonly T[]): void {
    const [head, ...tail] = this.pages;
    if (head) this.pages = [{ ...head, items: [...items, ...head.items] }, ...tail];
  }

  /** Also after a break: what was asked before it may never be answered. */
  stop(): void {
    this.going?.abort();
    this.loading = false;
    this.due = this.again = undefined;
  }

  private pageOf(index: number): number {
    let end = 0;
    const at = this.pages.findIndex((page) => (end += page.items.length) > index);
    return at < 0 ? Math.max(0, this.pages.length - 1) : at;
  }

  private async read(ask: (load: (cursor?: string) => Promise<Page<T>>) => Promise<Page<T>[]>, put = (pages: Page<T>[]) => pages): Promise<void> {
    this.going?.abort();
    const going = new AbortController();
    this.going = going;
    this.loading = true;
    this.told.reading(true);
    try {
      const pages = await untrack(() => ask((cursor) => this.load(cursor, going.signal)));
      if (going.signal.aborted) return;
      this.pages = put(edited(pages, (item) => this.told.upon(item)));
      this.failure = undefined;
    } catch (thrown) {
      if (isAbort(thrown) || going.signal.aborted) return;
      this.failure = asFailure(thrown);
      this.due = undefined;
    }
    this.loading = false;
    this.told.reading(false);
    const { due, again } = this;
    this.due = this.again = undefined;
    if (again !== undefined) await this.restart(undefined, again);
    else if (due) await this.refresh(...due);
  }
}

/** For the script of a component: reads again when the server is back. What was asked before the break may never be answered. */
export function whenBack<T>(pager: Pager<T>, again = (): void => void pager.restart()): void {
  $effect(() =>
    contact.onBack(() => {
      pager.stop();
      again();
    }),
  );
}

function edited<T>(pages: Page<T>[], edit: Edit<T>): Page<T>[] {
  return pages.map((page) => ({ ...page, items: page.items.map(edit) }));
}
