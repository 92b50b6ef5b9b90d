// Whether the server can be reached, and since when what is shown is old. Asks by itself: when nothing was heard for a while, and while it is away.

const FIRST_WAIT_MS = 1_000;
const LONGEST_WAIT_MS = 15_000;
/** A live stream gives a sign of life every 15 s; where there is none, this asks. */
const QUIET_MS = 20_000;
const PROBE_MS = 5_000;
const CLOCK_OFF_MS = 2_500;

class Contact {
  /** The last time anything was heard of the server while it could be reached; null while it can. */
  lostAt: number | null = $state(null);
  /** When it is asked next. */
  retryAt = $state(0);
  /** What the server's clock says beyond ours; 0 while they agree well enough. */
  clockOffset = $state(0);
  heardAt = Date.now();
  onUnauthorized: () => void = () => {};
  /** How often somebody signed in here: a refusal of what was asked before says nothing about the session of now. */
  logins = 0;

  private waiting: ReturnType<typeof setTimeout> | undefined;
  private wait = FIRST_WAIT_MS;
  private readonly back = new Set<() => void>();

  /** Called whenever the server can be reached again; returns how to stop that. */
  onBack(listen: () => void): () => void {
    this.back.add(listen);
    return () => this.back.delete(listen);
  }

  heard(date: string | null = null): void {
    this.heardAt = Date.now();
    if (date) this.compareClocks(Date.parse(date));
    this.wait = QUIET_MS;
    this.retryLater();
    if (this.lostAt === null) return;
    this.lostAt = null;
    for (const listen of [...this.back]) listen();
  }

  lost(): void {
    if (this.lostAt !== null) return;
    this.lostAt = this.heardAt;
    this.wait = FIRST_WAIT_MS;
    this.retryLater();
  }

  async retry(): Promise<void> {
    clearTimeout(this.waiting);
    const asked = Date.now();
    try {
      const answer = await fetch(apiAddress('/healthz'), { cache: 'no-store', signal: AbortSignal.timeout(PROBE_MS) });
      if (answer.ok) return this.heard(answer.headers.get('date'));
    } catch {
      // Still away.
    }
    if (this.heardAt > asked) return;
    if (this.lostAt === null) return this.lost();
    this.wait = Math.min(this.wait * 2, LONGEST_WAIT_MS);
    this.retryLater();
  }

  private retryLater(): void {
    clearTimeout(this.waiting);
    this.retryAt = Date.now() + this.wait;
    // A window that nobody sees asks nothing.
    this.waiting = setTimeout(() => (document.hidden ? this.retryLater() : void this.retry()), this.wait);
  }

  private compareClocks(server: number): void {
    // The header has whole seconds; half of one is its mean error.
    const offset = server + 500 - Date.now();
    this.clockOffset = Math.abs(offset) > CLOCK_OFF_MS ? offset : 0;
  }
}

/** Under whatever sub-path the console is served. */
export function apiAddress(path: string): string {
  return new URL(`.${path}`, document.baseURI).href;
}

export const contact = new Contact();
