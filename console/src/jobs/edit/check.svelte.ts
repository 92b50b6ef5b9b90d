// Has the server judge the document while it is edited, without saving it.
import { client, take } from '../../api/client';
import { asFailure, isAbort, Failure } from '../../api/failure';
import type { Doc } from './document';

const TYPING_MS = 350;

export type Verdict = { kind: 'unknown' } | { kind: 'good'; exists: boolean } | { kind: 'refused'; failure: Failure };

export class Check {
  verdict: Verdict = $state.raw({ kind: 'unknown' });
  private going: AbortController | undefined;
  private timer: ReturnType<typeof setTimeout> | undefined;

  /** To be called at each change; the last one is asked about. */
  later(doc: Doc): () => void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.ask(doc), TYPING_MS);
    return () => this.stop();
  }

  /** The document is saved as it is now: what was said of an earlier one does not count, and no more is asked. */
  forget(): void {
    this.stop();
    this.verdict = { kind: 'unknown' };
  }

  refuse(failure: Failure): void {
    this.verdict = { kind: 'refused', failure: inDocument(failure) };
  }

  private stop(): void {
    clearTimeout(this.timer);
    this.going?.abort();
  }

  private async ask(doc: Doc): Promise<void> {
    this.going?.abort();
    const going = new AbortController();
    this.going = going;
    try {
      const body = { documents: [doc as never], dry_run: true };
      const answer = await take(client.POST('/api/v1/apply', { body, signal: going.signal }));
      this.verdict = { kind: 'good', exists: answer.created.length === 0 };
    } catch (thrown) {
      if (isAbort(thrown) || going.signal.aborted) return;
      const failure = asFailure(thrown);
      // Nothing was judged, and nothing can have happened.
      if (failure.status === 0) this.forget();
      else this.refuse(failure);
    }
  }
}

/** `documents[0].retry.attempts` of a dry run is `retry.attempts` of the job. */
function inDocument(failure: Failure): Failure {
  const field = failure.field?.replace(/^documents\[0\]\.?/, '') || null;
  return new Failure(failure.status, failure.code, failure.message, field, failure.revision);
}
