// Finding text in output, and marking it in lines that have styles. Pure.
import type { Segment } from './ansi';
import type { Lines } from './lines';

/** What was looked through is not looked through again: of output that goes on only what is new. */
export class Finder {
  private lines: Lines | undefined;
  private wanted = '';
  /** By their numbers, less one; and up to which all were looked through. */
  private found: number[] = [];
  private seen = 0;

  /** Where in `lines.all` the lines with this text are. */
  find(lines: Lines, wanted: string): number[] {
    const { all, forgotten } = lines;
    if (lines !== this.lines || wanted !== this.wanted) {
      this.found = [];
      this.seen = 0;
    }
    this.lines = lines;
    this.wanted = wanted;
    if (wanted === '') return [];
    // Quicker than a copy of 100,000 lines in small letters.
    const pattern = new RegExp(wanted.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&'), 'iu');
    const known = this.found.filter((line) => line >= forgotten && line < this.seen);
    for (let i = Math.max(0, this.seen - forgotten); i < all.length; i++) if (pattern.test(all[i]?.plain ?? '')) known.push(i + forgotten);
    this.found = known;
    this.seen = forgotten + lines.settled;
    return known.map((line) => line - forgotten);
  }
}

export type Marked = Segment & { hit: boolean };

export function mark(segments: readonly Segment[], wanted: string): Marked[] {
  if (wanted === '') return segments.map((segment) => ({ ...segment, hit: false }));
  const whole = segments.map((segment) => segment.text).join('').toLowerCase();
  const text = wanted.toLowerCase();
  const edges: [number, number][] = [];
  for (let at = whole.indexOf(text); at >= 0; at = whole.indexOf(text, at + text.length)) edges.push([at, at + text.length]);
  const marked: Marked[] = [];
  let at = 0;
  for (const segment of segments) {
    const end = at + segment.text.length;
    let from = at;
    for (const [start, stop] of edges) {
      if (stop <= from || start >= end) continue;
      if (start > from) marked.push({ text: segment.text.slice(from - at, start - at), style: segment.style, hit: false });
      const to = Math.min(stop, end);
      marked.push({ text: segment.text.slice(Math.max(start, from) - at, to - at), style: segment.style, hit: true });
      from = to;
    }
    if (from < end) marked.push({ text: segment.text.slice(from - at), style: segment.style, hit: false });
    at = end;
  }
  return marked;
}
