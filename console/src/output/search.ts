// Finding text in output, and marking it in lines that have styles. Pure.
import type { Segment } from './ansi';
import type { Line } from './lines';

export function findLines(lines: readonly Line[], wanted: string): number[] {
  if (wanted === '') return [];
  // Quicker than a copy of 100,000 lines in small letters.
  const pattern = new RegExp(wanted.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&'), 'iu');
  const found: number[] = [];
  for (let i = 0; i < lines.length; i++) if (pattern.test(lines[i]?.plain ?? '')) found.push(i);
  return found;
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
