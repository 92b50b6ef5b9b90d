// Something read from the API for a page: read again when what it depends on changes, when asked, and when the server is back.
import { untrack } from 'svelte';

import { contact } from './contact.svelte';
import { asFailure, isAbort, type Failure } from './failure';
import { Told, type Edit } from './told';

export class Resource<T> {
  data: T | undefined = $state.raw();
  failure: Failure | undefined = $state.raw();
  loading = $state(false);
  /** Nothing was read yet. */
  first: boolean = $derived(this.data === undefined);
  private going: AbortController | undefined;
  private readonly told = new Told<T>();

  constructor(private load: (signal: AbortSignal) => Promise<T>) {}

  /** What was read before stays until the new answer is there. */
  async reload(load: (signal: AbortSignal) => Promise<T> = this.load): Promise<void> {
    if (load !== this.load) this.told.forget();
    this.load = load;
    this.going?.abort();
    const going = new AbortController();
    this.going = going;
    this.loading = true;
    this.told.reading(true);
    try {
      const data: T = await load(going.signal);
      if (going.signal.aborted) return;
      this.data = this.told.upon(data);
      this.failure = undefined;
    } catch (thrown) {
      if (isAbort(thrown) || going.signal.aborted) return;
      this.failure = asFailure(thrown);
    }
    this.loading = false;
    this.told.reading(false);
  }

  /** Changes what is shown, as a live event says; and answers that may be older. */
  change(edit: Edit<T>): void {
    if (this.data !== undefined) this.data = edit(this.data);
    this.told.add(edit);
  }

  stop(): void {
    this.going?.abort();
  }
}

/** While the window is seen; at once when it is seen again and the time has passed. Returns how to stop that. */
function repeat(every: number, again: () => void): () => void {
  let last = Date.now();
  const look = () => {
    if (document.hidden || contact.lostAt !== null) return;
    last = Date.now();
    again();
  };
  const seen = () => {
    if (Date.now() - last >= every) look();
  };
  const timer = setInterval(look, every);
  document.addEventListener('visibilitychange', seen);
  return () => {
    clearInterval(timer);
    document.removeEventListener('visibilitychange', seen);
  };
}

/**
 * For the script of a component. `key` is read reactively, and compared by its JSON text: another one forgets the data and loads anew.
 * `every` reads again after so many milliseconds, while the window is seen and no answer is waited for.
 */
export function resource<K, T>(
  key: () => K,
  load: (key: Exclude<K, null>, signal: AbortSignal) => Promise<T>,
  how: { every?: number; keep?: boolean } = {},
): Resource<T> {
  const made = new Resource<T>(() => Promise.reject(new Error('not asked yet')));
  const text = $derived(JSON.stringify(key()));
  $effect(() => {
    const wanted = JSON.parse(text) as K;
    if (!how.keep) made.data = undefined;
    if (wanted === null) return;
    void untrack(() => made.reload((signal) => load(wanted as Exclude<K, null>, signal)));
    const forget = contact.onBack(() => void made.reload());
    const stop = how.every && repeat(how.every, () => {
      // An answer that takes longer than that would else never be there.
      if (!made.loading) void made.reload();
    });
    return () => {
      forget();
      if (stop) stop();
      made.stop();
    };
  });
  return made;
}
