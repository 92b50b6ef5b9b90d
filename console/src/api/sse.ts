// Server-sent events over fetch: unlike EventSource it tells a refusal from a lost connection. The parser is pure.
import { apiAddress, contact } from './contact.svelte';
import { noAnswer, reach } from './client';
import { failureOf } from './failure';

export interface ServerEvent {
  event: string;
  data: string;
  id: string | null;
}

/** Takes text as it comes, in any pieces, and gives whole events. */
export function sseParser(emit: (event: ServerEvent) => void): (text: string) => void {
  let rest = '';
  let event = 'message';
  let data: string[] = [];
  let id: string | null = null;
  const line = (text: string) => {
    if (text === '') {
      if (data.length > 0) emit({ event, data: data.join('\n'), id });
      event = 'message';
      data = [];
      return;
    }
    if (text.startsWith(':')) return;
    const at = text.indexOf(':');
    const field = at < 0 ? text : text.slice(0, at);
    const value = at < 0 ? '' : text.slice(at + 1).replace(/^ /, '');
    if (field === 'event') event = value;
    else if (field === 'data') data.push(value);
    else if (field === 'id') id = value;
  };
  return (text) => {
    const lines = (rest + text).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop() ?? '';
    for (const one of lines) line(one);
  };
}

interface Following {
  signal: AbortSignal;
  lastId?: string | null;
  query?: Record<string, string | undefined>;
  opened?: () => void;
}

/** The server gives a sign of life every 15 s. */
const SILENCE_MS = 40_000;

/** Follows one stream until it ends; a refusal is thrown, and so is silence. */
export async function follow(path: string, emit: (event: ServerEvent) => void, how: Following): Promise<void> {
  const address = new URL(apiAddress(path));
  for (const [key, value] of Object.entries(how.query ?? {})) if (value) address.searchParams.set(key, value);
  const headers: Record<string, string> = { accept: 'text/event-stream' };
  if (how.lastId) headers['last-event-id'] = how.lastId;
  const silent = new AbortController();
  let timer: ReturnType<typeof setTimeout> | undefined;
  const listen = () => {
    clearTimeout(timer);
    timer = setTimeout(() => silent.abort(new DOMException('', 'TimeoutError')), SILENCE_MS);
  };
  listen();
  try {
    const answer = await reach(address, { headers, signal: AbortSignal.any([how.signal, silent.signal]), cache: 'no-store' });
    if (!answer.ok || !answer.body) throw failureOf(answer.status, await answer.json().catch(() => null));
    how.opened?.();
    const parse = sseParser(emit);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      listen();
      contact.heard();
      parse(value);
    }
  } catch (thrown) {
    throw noAnswer(silent.signal.aborted ? silent.signal.reason : thrown);
  } finally {
    clearTimeout(timer);
  }
}
