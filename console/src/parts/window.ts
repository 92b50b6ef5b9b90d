// Which rows of a long list are drawn: those in view and a few around. Pure.

export interface RowWindow {
  from: number;
  to: number;
  /** Pixels that stand for the rows that are not drawn. */
  above: number;
  below: number;
}

const AROUND = 12;
/** Up to here all rows are drawn, so that the browser's own search finds them; it cannot find those that are still to be read. */
export const DRAWN_WHOLE_MAX = 150;

export function rowWindow(count: number, rowHeight: number, top: number, viewHeight: number, more = false): RowWindow {
  if ((count <= DRAWN_WHOLE_MAX && !more) || rowHeight <= 0) return { from: 0, to: count, above: 0, below: 0 };
  const shown = Math.ceil(viewHeight / rowHeight) + 2 * AROUND + 1;
  const wanted = Math.floor(top / rowHeight) - AROUND;
  const from = Math.max(0, Math.min(wanted, count - shown));
  const to = Math.min(count, from + shown);
  return { from, to, above: from * rowHeight, below: (count - to) * rowHeight };
}
