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
/** A browser gives a page so much memory and no more. */
const CHARS_MAX = 64 * 1024 * 1024;

interface Stream {
  open: Line | null;
  style: Style;
  decoder: TextDecoder;
}

export class Lines {
  all: Line[] = [];
  /** Lines that fell out of this window; the server may still have them. */
  forgotten = 0;
  private chars = 0;
  private readonly streams = new Map<string, Stream>();

  /** Without so many of its first bytes. */
  add(chunk: Chunk, known = 0): void {
    const stream = this.stream(chunk.stream);
    if (chunk.dropped_bytes > 0) {
      this.close(stream);
      this.all.push({ text: '', plain: '', stream: chunk.stream, at: chunk.at_ms, start: PLAIN, gap: chunk.dropped_bytes });
    }
    const text = (known === 0 && chunk.text) || stream.decoder.decode(bytesOf(chunk).subarray(known), { stream: true });
    this.put(stream, text, chunk);
    if (this.all.length > LINES_MAX || this.chars > CHARS_MAX) this.forget();
  }

  /** Where the line with this number is in `all`, if it has come and is still kept. Numbers count from 1, what is forgotten too. */
  indexOf(number: number): number | undefined {
    const index = number - 1 - this.forgotten;
    return index in this.all ? index : undefined;
  }

  /** How many of them, from the first, grow no more. */
  get settled(): number {
    const open = [...this.streams.values()].map((stream) => (stream.open ? this.all.lastIndexOf(stream.open) : -1));
    return Math.min(this.all.length, ...open.filter((index) => index >= 0));
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
      const length = line.text.length;
      line.text += rest.slice(0, room);
      this.chars += line.text.length - length;
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

  /** A fifth of them at once: with each chunk a few would cost more. */
  private forget(): void {
    const gone = this.all.splice(0, Math.floor(this.all.length / 5));
    this.forgotten += gone.length;
    for (const line of gone) this.chars -= line.text.length;
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

export function bytesOf({ text, base64 }: Chunk): Uint8Array<ArrayBuffer> {
  return text == null ? Uint8Array.from(atob(base64 ?? ''), (letter) => letter.charCodeAt(0)) : new TextEncoder().encode(text);
}
