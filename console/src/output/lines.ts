// What a run printed, as lines: put together from chunks of two streams that may end anywhere, also inside a character. No DOM.
import { parseAnsi, PLAIN, withoutAnsi, type Style } from './ansi';

export interface Chunk {
  attempt: number;
  seq: number;
  stream: string;
  at_ms: number;
  /** Where its bytes begin in all that was printed. */
  offset: number;
  dropped_bytes: number;
  text?: string | null;
  base64?: string | null;
}

export interface Line {
  text: string;
  /** As it is searched and measured. */
  plain: string;
  stream: string;
  at: number;
  /** The style that the line begins with, from the lines before it. */
  start: Style;
  /** Bytes that were not kept, in place of a line. */
  gap: number;
}

/** A longer line goes on in the next one: no line may stall the page. */
const LINE_CHARS_MAX = 4_000;
const LINES_MAX = 300_000;
const LINES_DROPPED = 60_000;

interface Stream {
  open: Line | null;
  style: Style;
  decoder: TextDecoder;
}

export class Lines {
  all: Line[] = [];
  /** Lines that fell out of this window; the server may still have them. */
  forgotten = 0;
  private readonly streams = new Map<string, Stream>();

  add(chunk: Chunk): void {
    const stream = this.stream(chunk.stream);
    if (chunk.dropped_bytes > 0) {
      this.close(stream);
      this.all.push({ text: '', plain: '', stream: chunk.stream, at: chunk.at_ms, start: PLAIN, gap: chunk.dropped_bytes });
    }
    const text = chunk.text ?? stream.decoder.decode(bytesOf(chunk.base64 ?? ''), { stream: true });
    this.put(stream, text, chunk);
    if (this.all.length > LINES_MAX) this.forget();
  }

  /** Where the line with this number is in `all`, if it has come and is still kept. Numbers count from 1, what is forgotten too. */
  indexOf(number: number): number | undefined {
    const index = number - 1 - this.forgotten;
    return index in this.all ? index : undefined;
  }

  private put(stream: Stream, text: string, chunk: Chunk): void {
    let from = 0;
    while (from < text.length) {
      const end = text.indexOf('\n', from);
      this.append(stream, text.slice(from, end < 0 ? text.length : end), chunk);
      if (end < 0) return;
      this.close(stream);
      from = end + 1;
    }
  }

  private append(stream: Stream, text: string, chunk: Chunk): void {
    let rest = text;
    do {
      const line = (stream.open ??= this.begin(stream, chunk));
      const room = Math.max(1, LINE_CHARS_MAX - line.text.length);
      line.text += rest.slice(0, room);
      rest = rest.slice(room);
      settle(line);
      if (rest !== '') this.close(stream);
    } while (rest !== '');
  }

  private begin(stream: Stream, chunk: Chunk): Line {
    const line: Line = { text: '', plain: '', stream: chunk.stream, at: chunk.at_ms, start: stream.style, gap: 0 };
    this.all.push(line);
    return line;
  }

  private close(stream: Stream): void {
    const line = stream.open;
    if (!line) return;
    if (line.text.includes('\x1b')) stream.style = parseAnsi(line.text, line.start).end;
    stream.open = null;
  }

  private stream(name: string): Stream {
    let known = this.streams.get(name);
    if (!known) this.streams.set(name, (known = { open: null, style: PLAIN, decoder: new TextDecoder() }));
    return known;
  }

  private forget(): void {
    this.all = this.all.slice(LINES_DROPPED);
    this.forgotten += LINES_DROPPED;
  }
}

/** What was written over after a carriage return is not seen in a terminal either. */
function settle(line: Line): void {
  const text = line.text.replace(/\r+$/, '');
  const over = text.lastIndexOf('\r');
  line.plain = withoutAnsi(over < 0 ? text : text.slice(over + 1)).replaceAll('\t', '    ');
}

/** The text of a line as it is drawn. */
export function drawn(line: Line): string {
  const text = line.text.replace(/\r+$/, '');
  const over = text.lastIndexOf('\r');
  return (over < 0 ? text : text.slice(over + 1)).replaceAll('\t', '    ');
}

/** Where the bytes behind it begin. */
export function endOf({ offset, text, base64 }: Chunk): number {
  return offset + (text == null ? bytesOf(base64 ?? '') : new TextEncoder().encode(text)).length;
}

function bytesOf(base64: string): Uint8Array<ArrayBuffer> {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}
