// Where each line stands in a column of output, wrapped or not: which lines are in view, and how high the rest is. Pure.
import type { Line } from './lines';

const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]/g;

/** Columns that a text takes: characters of East Asia take two. */
export function columns(text: string): number {
  return text.length + (text.match(WIDE)?.length ?? 0);
}

export class RowIndex {
  /** Rows before each line, and at the end all of them. Only kept while lines wrap. */
  private before: number[] = [0];
  private wrapAt: number | null = null;
  private forgotten = 0;

  /** `wrapAt`: columns of a row; null: lines do not wrap. `forgotten`: how many are no longer kept before these. */
  update(lines: readonly Line[], wrapAt: number | null, forgotten = 0): void {
    if (wrapAt !== this.wrapAt || forgotten !== this.forgotten || lines.length < this.before.length - 1) this.before = [0];
    this.wrapAt = wrapAt;
    this.forgotten = forgotten;
    if (wrapAt === null) return;
    // The last line may have grown since.
    if (this.before.length > 1) this.before.length -= 1;
    for (let i = this.before.length - 1; i < lines.length; i++) {
      const rows = Math.max(1, Math.ceil(columns(lines[i]?.plain ?? '') / wrapAt));
      this.before.push((this.before[i] ?? 0) + rows);
    }
  }

  rowOf(line: number): number {
    return this.wrapAt === null ? line : (this.before[Math.min(line, this.before.length - 1)] ?? 0);
  }

  lineAt(row: number): number {
    if (this.wrapAt === null) return Math.max(0, Math.floor(row));
    let low = 0;
    let high = this.before.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if ((this.before[middle] ?? 0) <= row) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}
