// A list read page by page with the API's cursors. Pages that are shown can be read again in place, without losing the scroll.
import { untrack } from 'svelte';

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
  private due: number | undefined;

  constructor(
    private load: LoadPage<T>,
    private readonly key: (item: T) => unknown = (item) => item,
  ) {}

  /** Another question: what was read is kept on the screen until the answer is there. `through`: reads on to the page that holds this item. */
  async restart(load: LoadPage<T> = this.load, through = 0): Promise<void> {
    if (load !== this.load) this.told.forget();
    this.load = load;
    this.due = undefined;
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

  async readMore(): Promise<void> {
    const cursor = this.pages.at(-1)?.next;
    if (this.loading || !cursor) return;
    await this.read(async (ask) => [await ask(cursor)], (pages) => [...this.pages, ...pages]);
  }

  /** Reads the page that holds this item again; when another reading is going, after that. */
  async refresh(index: number): Promise<void> {
    if (this.loading) {
      this.due = index;
      return;
    }
    let start = 0;
    let at = this.pages.findIndex((page) => (start += page.items.length) > index);
    if (at < 0) at = Math.max(0, this.pages.length - 1);
    const cursor = this.pages[at - 1]?.next ?? undefined;
    await this.read(
      async (ask) => [await ask(cursor)],
      // Where the page ends elsewhere now, those behind it begin at a wrong place: they are read again when they are looked at.
      (pages) => [...this.pages.slice(0, at), ...pages, ...(pages[0]?.next === this.pages[at]?.next ? this.pages.slice(at + 1) : [])],
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

  stop(): void {
    this.going?.abort();
  }

  private async read(ask: (load: (cursor?: string) => Promise<Page<T>>) => Promise<Page<T>[]>, put = (pages: Page<T>[]) => pages): Promise<void> {
    this.going?.abort();
    const going = new AbortController();
    this.going = going;
    this.loading = true;
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
    const { due } = this;
    this.due = undefined;
    if (due !== undefined) await this.refresh(due);
  }
}

function edited<T>(pages: Page<T>[], edit: Edit<T>): Page<T>[] {
  return pages.map((page) => ({ ...page, items: page.items.map(edit) }));
}
