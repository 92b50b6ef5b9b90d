// The jobs that are chosen in a list, and what is done to all of them: a few at a time, each failure kept.
import { SvelteMap } from 'svelte/reactivity';

import type { Job } from '../api/views';
import { asFailure, type Failure } from '../api/failure';

const AT_ONCE = 4;

export interface Outcome {
  done: number;
  failed: { job: Job; failure: Failure }[];
}

export class Selection {
  readonly chosen = new SvelteMap<string, Job>();
  private last: number | null = null;

  /** With the shift key, everything from the last one that was chosen. */
  toggle(items: readonly Job[], index: number, range: boolean): void {
    const from = range && this.last !== null ? Math.min(this.last, index) : index;
    const to = range && this.last !== null ? Math.max(this.last, index) : index;
    const on = !this.chosen.has(items[index]?.id ?? '');
    for (const job of items.slice(from, to + 1)) {
      if (on) this.chosen.set(job.id, job);
      else this.chosen.delete(job.id);
    }
    this.last = index;
  }

  all(items: readonly Job[], on: boolean): void {
    this.chosen.clear();
    this.last = null;
    if (on) for (const job of items) this.chosen.set(job.id, job);
  }
}

export async function forEachJob(jobs: readonly Job[], act: (job: Job) => Promise<unknown>, progress: (done: number) => void): Promise<Outcome> {
  const outcome: Outcome = { done: 0, failed: [] };
  const left = [...jobs];
  let finished = 0;
  const worker = async () => {
    for (let job = left.shift(); job; job = left.shift()) {
      try {
        await act(job);
        outcome.done++;
      } catch (thrown) {
        outcome.failed.push({ job, failure: asFailure(thrown) });
      }
      progress(++finished);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  return outcome;
}
