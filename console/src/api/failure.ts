// A refusal as the API says it, or a request that got no answer.

export class Failure extends Error {
  constructor(
    /** 0: no answer. */
    readonly status: number,
    readonly code: string,
    message: string,
    readonly field: string | null = null,
    /** With `stale_revision`: the one that is current. */
    readonly revision: number | null = null,
  ) {
    super(message);
    this.name = 'Failure';
  }
}

interface Told {
  error?: { code?: string; message?: string; field?: string | null; revision?: number | null };
}

export function failureOf(status: number, body: unknown): Failure {
  const told = (body as Told | null | undefined)?.error;
  if (told?.code) return new Failure(status, told.code, told.message ?? told.code, told.field ?? null, told.revision ?? null);
  return new Failure(status, 'no_reason', typeof body === 'string' && body.length < 300 ? body : `HTTP ${status}`);
}

export function asFailure(thrown: unknown): Failure {
  if (thrown instanceof Failure) return thrown;
  return new Failure(0, 'no_answer', thrown instanceof Error ? thrown.message : String(thrown));
}

export function isAbort(thrown: unknown): boolean {
  return thrown instanceof DOMException && thrown.name === 'AbortError';
}
