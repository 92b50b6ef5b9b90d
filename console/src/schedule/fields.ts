// The fields of a cron expression as text: 5, 6 (seconds first) or 7 (year last). Validity is the server's matter.

export interface CronFields {
  second: string;
  minute: string;
  hour: string;
  day: string;
  month: string;
  weekday: string;
  year: string;
}

export function splitFields(expression: string): CronFields | null {
  const parts = expression.trim().toUpperCase().split(/\s+/);
  if (parts.length < 5 || parts.length > 7) return null;
  const all = [...(parts.length === 5 ? ['0'] : []), ...parts, ...(parts.length < 7 ? ['*'] : [])];
  const [second = '0', minute = '*', hour = '*', day = '*', month = '*', weekday = '*', year = '*'] = all;
  const star = (field: string) => (field === '?' ? '*' : field);
  return { second, minute, hour, day: star(day), month, weekday: star(weekday), year };
}

/** Numbers and lists of them, ranges opened; null for anything else. `names` count from `low`. */
export function asNumbers(field: string, low: number, high: number, names: readonly string[] = []): number[] | null {
  const numbers: number[] = [];
  for (const part of field.split(',')) {
    const ends = part.split('-').map((end) => (names.includes(end) ? names.indexOf(end) + low : /^\d+$/.test(end) ? Number(end) : NaN));
    const [from = NaN, to = from] = ends;
    if (ends.length > 2 || !(from >= low) || !(to <= high) || from > to) return null;
    for (let n = from; n <= to; n++) numbers.push(n);
  }
  return numbers;
}

/** The n of a field that means "every n"; null when it is another. */
export function asStep(field: string): number | null {
  const step = /^(?:\*|0)\/(\d+)$/.exec(field);
  return step?.[1] ? Number(step[1]) : null;
}
