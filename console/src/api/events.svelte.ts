// The one live stream of changed runs that all pages share. Opened while a page listens and the window is seen, and again after a break.
import type { Schemas } from './client';
import { contact } from './contact.svelte';
import { isAbort } from './failure';
import { follow, type ServerEvent } from './sse';
import { whenUnseen } from './unseen';

type Run = Schemas['RunView'];

interface Listener {
  /** Runs that changed, each as it is now; a few times a second at most, however busy the cluster is. */
  runs?: (runs: Run[]) => void;
  /** Something may have been missed: read the list again. */
  missed?: () => void;
}

const AGAIN_MS = 2_000;
const TOLD_EVERY_MS = 250;
/** Each round has every list that is shown read again. */
const MISSED_EVERY_MS = 5_000;
/** Between two pages nobody listens for a moment. */
const NOBODY_MS = 1_500;

class Events {
  private open = $state(false);
  live = $derived(this.open && contact.lostAt === null);
  private readonly listeners = new Set<Listener>();
  private going: AbortController | null = null;
  private again: ReturnType<typeof setTimeout> | undefined;
  private leaving: ReturnType<typeof setTimeout> | undefined;
  private broken = false;
  private readonly changed = new Map<string, Run>();
  private telling = false;
  private missedAt = 0;
  private missing: ReturnType<typeof setTimeout> | undefined;

  constructor() {
    whenUnseen(() => this.stop(true), () => this.start());
    // A connection that was open across the break may be dead without a sign.
    contact.onBack(() => (this.going ? this.stop(true) : this.start()));
  }

  /** To be used in an effect: returns how to stop. */
  listen(listener: Listener): () => void {
    this.listeners.add(listener);
    clearTimeout(this.leaving);
    this.start();
    return () => {
      this.listeners.delete(listener);
      if (this.listeners.size === 0) this.leaving = setTimeout(() => this.stop(false), NOBODY_MS);
    };
  }

  private start(): void {
    if (this.going || this.listeners.size === 0 || document.hidden) return;
    const going = new AbortController();
    this.going = going;
    void this.run(going);
  }

  private stop(missing: boolean): void {
    this.broken ||= missing;
    this.going?.abort();
  }

  private async run(going: AbortController): Promise<void> {
    try {
      await follow('/api/v1/events', (event) => this.tell(event), {
        signal: going.signal,
        opened: () => this.opened(),
      });
      this.broken = true;
    } catch (thrown) {
      this.broken ||= !isAbort(thrown);
    }
    this.open = false;
    this.going = null;
    clearTimeout(this.again);
    this.again = setTimeout(() => contact.lostAt ?? this.start(), AGAIN_MS);
  }

  private opened(): void {
    this.open = true;
    if (this.broken) this.missed();
    this.broken = false;
  }

  private tell(event: ServerEvent): void {
    if (event.event === 'missed') this.missed();
    if (event.event !== 'run') return;
    const run = JSON.parse(event.data) as Run;
    this.changed.set(run.id, run);
    if (this.telling) return;
    this.telling = true;
    setTimeout(() => this.tellRuns(), TOLD_EVERY_MS);
  }

  private missed(): void {
    this.missing ??= setTimeout(() => {
      this.missing = undefined;
      this.missedAt = Date.now();
      for (const listener of [...this.listeners]) listener.missed?.();
    }, this.missedAt + MISSED_EVERY_MS - Date.now());
  }

  private tellRuns(): void {
    const runs = [...this.changed.values()];
    this.changed.clear();
    this.telling = false;
    for (const listener of [...this.listeners]) listener.runs?.(runs);
  }
}

export const events = new Events();
