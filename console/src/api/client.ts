// The typed client of the API. Every request goes through `reach`, which notices a server that is away and a session that ended.
import type { Client } from 'openapi-fetch';

import { apiAddress, contact } from './contact.svelte';
import { asFailure, Failure, failureOf, isAbort } from './failure';
import type { components, paths } from './schema';

export type Schemas = components['schemas'];

/** What a proxy answers for a server that is away. A 503 with our own body is a server that is there. */
const GATEWAY_AWAY: readonly number[] = [502, 504];
/** With its body. Nothing that is asked takes so long on a server that is there. */
const ANSWER_MS = 30_000;

/** What to throw for a request that was not answered, or whose answer broke off. */
export function noAnswer(thrown: unknown): unknown {
  if (isAbort(thrown) || thrown instanceof Failure) return thrown;
  // Slow is not away: that is asked first.
  if (thrown instanceof DOMException) void contact.retry();
  else contact.lost();
  return asFailure(thrown);
}

export async function reach(input: RequestInfo | URL, init?: RequestInit): Promise<Response> {
  const { logins } = contact;
  const answer = await fetch(input, init).catch((thrown: unknown) => {
    throw noAnswer(thrown);
  });
  const ours = answer.headers.get('content-type')?.includes('json') ?? false;
  if (GATEWAY_AWAY.includes(answer.status) || (answer.status >= 500 && !ours)) {
    contact.lost();
    throw new Failure(0, 'no_answer', `HTTP ${answer.status}`);
  }
  contact.heard(answer.headers.get('date'));
  if (answer.status === 401 && logins === contact.logins && !answer.url.endsWith('/api/v1/login')) contact.onUnauthorized();
  return answer;
}

interface Asked {
  params?: { path?: Record<string, string>; query?: Record<string, unknown>; header?: Record<string, string | undefined> };
  body?: unknown;
  headers?: Record<string, string>;
  parseAs?: 'text';
  signal?: AbortSignal;
}

async function call(method: string, path: string, { params = {}, body, headers: more, parseAs, signal }: Asked = {}): Promise<Answered<unknown>> {
  const address = new URL(apiAddress(path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(params.path?.[name] ?? ''))));
  for (const [key, value] of Object.entries(params.query ?? {})) if (value != null && value !== '') address.searchParams.set(key, String(value));
  // A foreign page cannot send `x-belfry`: the server takes changes with a session cookie only with it.
  const headers = new Headers({ accept: 'application/json', 'x-belfry': '1', ...more });
  for (const [key, value] of Object.entries(params.header ?? {})) if (value !== undefined) headers.set(key, value);
  if (body !== undefined) headers.set('content-type', 'application/json');
  const late = AbortSignal.timeout(ANSWER_MS);
  const response = await reach(address, { method, headers, ...(body === undefined ? {} : { body: JSON.stringify(body) }), signal: signal ? AbortSignal.any([signal, late]) : late });
  try {
    const text = await response.text();
    if (!response.ok) return { error: fromJson(text), response };
    return { data: parseAs ? text : text && JSON.parse(text), response };
  } catch (thrown) {
    throw noAnswer(thrown);
  }
}

/** A proxy in between may refuse with a page of its own. */
function fromJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

const asks = (method: string) => (path: string, asked?: Asked) => call(method, path, asked);

/** The types are openapi-fetch's, which know every path; what it does beyond this is not needed here. */
export const client = { GET: asks('GET'), POST: asks('POST'), PUT: asks('PUT'), PATCH: asks('PATCH'), DELETE: asks('DELETE') } as unknown as Client<paths>;

type Answered<T> = { data?: T; error?: unknown; response: Response };

/** The body of an answer, or its refusal thrown as a `Failure`. */
export async function take<T>(asked: Promise<Answered<T>>): Promise<T> {
  const { data, error, response } = await asked;
  if (!response.ok) throw failureOf(response.status, error);
  return data as T;
}
