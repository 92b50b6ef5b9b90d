// Which lines differ between two texts (Myers). Pure.

export interface DiffLine {
  kind: 'same' | 'gone' | 'new';
  text: string;
  /** Line numbers, from 1, on the side where the line is. */
  before: number | null;
  after: number | null;
}

/** Beyond so many differing lines the middle is shown as replaced: nobody reads it line by line. */
const EDITS_MAX = 300;

export function diffLines(before: readonly string[], after: readonly string[]): DiffLine[] {
  let head = 0;
  while (head < before.length && head < after.length && before[head] === after[head]) head++;
  let tail = 0;
  while (tail < before.length - head && tail < after.length - head && before.at(-1 - tail) === after.at(-1 - tail)) tail++;
  const lines: DiffLine[] = [];
  for (let i = 0; i < head; i++) lines.push({ kind: 'same', text: before[i] ?? '', before: i + 1, after: i + 1 });
  const left = before.slice(head, before.length - tail);
  const right = after.slice(head, after.length - tail);
  for (const line of middle(left, right)) {
    lines.push({ ...line, before: line.before && line.before + head, after: line.after && line.after + head });
  }
  for (let i = tail; i > 0; i--) {
    lines.push({ kind: 'same', text: before.at(-i) ?? '', before: before.length - i + 1, after: after.length - i + 1 });
  }
  return lines;
}

function middle(left: readonly string[], right: readonly string[]): DiffLine[] {
  const trace = walk(left, right);
  if (!trace) return [...gone(left, 0, left.length), ...added(right, 0, right.length)];
  const lines: DiffLine[] = [];
  let x = left.length;
  let y = right.length;
  for (let d = trace.length - 1; d >= 0; d--) {
    const reached = trace[d] ?? new Map<number, number>();
    const k = x - y;
    const down = k === -d || (k !== d && (reached.get(k - 1) ?? -1) < (reached.get(k + 1) ?? -1));
    const fromK = down ? k + 1 : k - 1;
    const fromX = d === 0 ? 0 : (reached.get(fromK) ?? 0);
    const fromY = d === 0 ? 0 : fromX - fromK;
    while (x > fromX && y > fromY) {
      lines.push({ kind: 'same', text: left[x - 1] ?? '', before: x, after: y });
      x--;
      y--;
    }
    if (d === 0) break;
    if (down) lines.push(...added(right, fromY, fromY + 1));
    else lines.push(...gone(left, fromX, fromX + 1));
    x = fromX;
    y = fromY;
  }
  return lines.toReversed();
}

/** For each number of edits, how far each diagonal had come before it. */
function walk(left: readonly string[], right: readonly string[]): Map<number, number>[] | null {
  const trace: Map<number, number>[] = [];
  const reached = new Map<number, number>([[1, 0]]);
  for (let d = 0; d <= Math.min(left.length + right.length, EDITS_MAX); d++) {
    trace.push(new Map(reached));
    for (let k = -d; k <= d; k += 2) {
      const down = k === -d || (k !== d && (reached.get(k - 1) ?? -1) < (reached.get(k + 1) ?? -1));
      let x = down ? (reached.get(k + 1) ?? 0) : (reached.get(k - 1) ?? 0) + 1;
      while (x < left.length && x - k < right.length && left[x] === right[x - k]) x++;
      reached.set(k, x);
      if (x >= left.length && x - k >= right.length) return trace;
    }
  }
  return null;
}

function gone(lines: readonly string[], from: number, to: number): DiffLine[] {
  return lines.slice(from, to).map((text, i) => ({ kind: 'gone', text, before: from + i + 1, after: null }));
}

function added(lines: readonly string[], from: number, to: number): DiffLine[] {
  return lines.slice(from, to).map((text, i) => ({ kind: 'new', text, before: null, after: from + i + 1 }));
}

export type Shown = DiffLine | { kind: 'fold'; count: number };

/** Long stretches without a difference become one line. */
export function folded(lines: readonly DiffLine[], around = 3): Shown[] {
  const near = new Uint8Array(lines.length);
  for (const [index, line] of lines.entries()) {
    if (line.kind !== 'same') near.fill(1, Math.max(0, index - around), index + around + 1);
  }
  const shown: Shown[] = [];
  for (const [index, line] of lines.entries()) {
    const last = shown.at(-1);
    if (near[index]) shown.push(line);
    else if (last?.kind === 'fold') last.count++;
    else shown.push({ kind: 'fold', count: 1 });
  }
  return shown;
}
