// The output of a run as it comes: from the live stream while the run is open, page by page once it has ended. Comes back after a break.
import { client, take } from '../api/client';
import { contact } from '../api/contact.svelte';
import { asFailure, isAbort, type Failure } from '../api/failure';
import type { Run } from '../api/runs';
import { follow, type ServerEvent } from '../api/sse';
import { whenUnseen } from '../api/unseen';
import { bytesOf, Lines, type Chunk } from './lines';

const AGAIN_MS = 1_500;
const DRAWN_EVERY_MS = 80;

interface Listener {
  run: (run: Run) => void;
  ended: () => void;
}

export class OutputSource {
  lines = new Lines();
  /** Grows when lines changed: arrays of 100,000 lines are not made reactive. */
  version = $state(0);
  /** The attempt that is shown. */
  attempt = $state(0);
  done = $state(false);
  failure: Failure | undefined = $state.raw();
  private readonly going = new AbortController();
  private lastId: string | null = null;
  /** Up to where the stream has told what this attempt printed. */
  private told = { attempt: 0, end: 0 };
  private from = 0;
  private drawing = false;

  /** `attempt` null: the current one, and each next one when it starts. */
  constructor(
    private readonly run: string,
    private readonly wanted: number | null,
    private readonly listener: Listener,
  ) {}

  start(open: boolean): void {
    void this.keepOn(open);
  }

  stop(): void {
    this.going.abort();
  }

  /** After a break, or when it is seen again, it goes on where it was; what was refused to a reader stays refused. */
  private async keepOn(open: boolean): Promise<void> {
    const { signal } = this.going;
    for (;;) {
      try {
        if (contact.lostAt === null && !(open && document.hidden)) await (open ? this.follow(signal) : this.read(signal));
      } catch (thrown) {
        // A stream that was given back is no failure; it is not the end either.
        if (!isAbort(thrown)) {
          this.failure = asFailure(thrown);
          if (!open && this.failure.status !== 0) return;
        }
      }
      if (this.done) return;
      if (signal.aborted) return;
      await new Promise((later) => setTimeout(later, AGAIN_MS));
      if (signal.aborted) return;
    }
  }

  private async follow(signal: AbortSignal): Promise<void> {
    const seen = new AbortController();
    const stop = whenUnseen(() => seen.abort());
    try {
      await follow(`/api/v1/runs/${this.run}/stream`, (event) => this.take(event), {
        signal: AbortSignal.any([signal, seen.signal]),
        lastId: this.lastId,
        query: this.lastId || this.wanted === null ? {} : { attempt: String(this.wanted) },
        opened: () => (this.failure = undefined),
      });
    } finally {
      stop();
    }
  }

  private take(event: ServerEvent): void {
    if (event.event === 'output') {
      // What is not kept has none.
      if (event.id) this.lastId = event.id;
      this.tell(JSON.parse(event.data) as Chunk);
    } else if (event.event === 'state' || event.event === 'end') {
      this.listener.run(JSON.parse(event.data) as Run);
      if (event.event === 'end') {
        this.done = true;
        this.version++;
        this.listener.ended();
      }
    }
  }

  /** What is not kept comes only while it is printed: where it was missed a gap is shown, and what was seen then is not shown again from what is kept. */
  private tell(chunk: Chunk): void {
    const { attempt, end } = this.told;
    const known = chunk.attempt === attempt ? end : 0;
    const { length } = bytesOf(chunk);
    // A gap stands where it begins, with nothing behind it; or before the chunk that follows it.
    const from = chunk.offset + (length ? 0 : chunk.dropped_bytes);
    if (from + length <= known) return;
    this.told = { attempt: chunk.attempt, end: from + length };
    this.put({ ...chunk, dropped_bytes: Math.max(0, from - known) }, Math.max(0, known - from));
  }

  private async read(signal: AbortSignal): Promise<void> {
    const path = { id: this.run };
    while (!this.done) {
      const query = { from: this.from, ...(this.wanted === null ? {} : { attempt: this.wanted }) };
      const body = (await take(client.GET('/api/v1/runs/{id}/output', { params: { path, query }, signal }))) as { attempt: number; chunks: Chunk[]; next?: number | null };
      this.failure = undefined;
      this.attempt = body.attempt;
      for (const chunk of body.chunks) this.put(chunk);
      this.from = body.next ?? 0;
      this.done = body.next == null;
    }
    // With its end all of it is shown: "printed nothing" must not flash up first.
    this.version++;
  }

  private put(chunk: Chunk, known = 0): void {
    if (chunk.attempt !== this.attempt) {
      if (this.wanted !== null && chunk.attempt !== this.wanted) return;
      this.attempt = chunk.attempt;
      this.lines = new Lines();
    }
    this.lines.add(chunk, known);
    if (this.drawing) return;
    this.drawing = true;
    setTimeout(() => {
      this.drawing = false;
      this.version++;
    }, DRAWN_EVERY_MS);
  }
}

/** All of it as text, for comparing. */
export async function outputText(run: string, signal: AbortSignal): Promise<string> {
  return take(client.GET('/api/v1/runs/{id}/output', { params: { path: { id: run } }, parseAs: 'text', headers: { accept: 'text/plain' }, signal })) as Promise<string>;
}
