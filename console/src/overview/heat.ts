// The schedule heat map: a row for each hour, a cell for each minute, drawn as one path for each level. Pure.

export const CELL = 10;
export const LEVELS = 4;

/** 0: nothing; the most of all is the highest level. Small numbers stay apart, large ones do not hide them. */
export function levelOf(value: number, most: number): number {
  if (value <= 0) return 0;
  if (most <= LEVELS) return Math.min(LEVELS, value);
  return Math.max(1, Math.ceil((Math.log(value + 1) / Math.log(most + 1)) * LEVELS));
}

/** Bigger squares for more, so that the map reads without colour. */
export function heatPaths(values: readonly number[]): string[] {
  const most = Math.max(0, ...values);
  const paths = Array.from({ length: LEVELS + 1 }, () => '');
  for (const [minute, value] of values.entries()) {
    const level = levelOf(value, most);
    if (level === 0) continue;
    const size = 3 + level * 1.6;
    const inset = (CELL - size) / 2;
    const [x, y] = [(minute % 60) * CELL + inset, Math.floor(minute / 60) * CELL + inset];
    paths[level] += `M${x.toFixed(1)} ${y.toFixed(1)}h${size.toFixed(1)}v${size.toFixed(1)}h-${size.toFixed(1)}z`;
  }
  return paths;
}
