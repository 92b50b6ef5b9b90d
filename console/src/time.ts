// Instants and durations as text. Pure: the language and the zone come in.

const formats = new Map<string, Intl.DateTimeFormat>();

function format(zone: string | undefined): Intl.DateTimeFormat {
  const key = zone ?? '';
  let made = formats.get(key);
  if (!made) {
    const fields = { year: 'numeric', month: '2-digit', day: '2-digit', hour: '2-digit', minute: '2-digit', second: '2-digit' } as const;
    made = new Intl.DateTimeFormat('en-GB', { ...fields, hourCycle: 'h23', ...(zone ? { timeZone: zone } : {}) });
    formats.set(key, made);
  }
  return made;
}

export interface Clocked {
  date: string;
  time: string;
}

/** The same form in every language: `2026-11-18` and `04:00:00`. Without a zone, on the viewer's clock. */
export function onClock(at: number, zone?: string): Clocked {
  const part: Record<string, string> = {};
  for (const { type, value } of format(zone).formatToParts(at)) part[type] = value;
  return { date: `${part.year}-${part.month}-${part.day}`, time: `${part.hour}:${part.minute}:${part.second}` };
}

export function exact(at: number, zone?: string): string {
  const { date, time } = onClock(at, zone);
  return `${date} ${time}`;
}

export function viewerZone(): string {
  return Intl.DateTimeFormat().resolvedOptions().timeZone;
}

/** As short as it is true: `14:05:09` today, with the date on other days. */
export function short(at: number, now: number, zone?: string): string {
  const there = onClock(at, zone);
  const today = onClock(now, zone).date;
  if (there.date === today) return there.time;
  const day = there.date.slice(0, 4) === today.slice(0, 4) ? there.date.slice(5) : there.date;
  return `${day} ${there.time.slice(0, 5)}`;
}

/** `04:00` today, with the day on other days. */
export function toMinute(at: number, now: number, zone?: string): string {
  const { date, time } = onClock(at, zone);
  return (date === onClock(now, zone).date ? '' : `${date.slice(5)} `) + time.slice(0, 5);
}

const HOUR_MS = 3_600_000;

/** The beginning of the hour on the viewer's clock, which in some zones is half past of UTC. */
export function hourStart(at: number): number {
  const offset = new Date(at).getTimezoneOffset() * 60_000;
  return Math.floor((at - offset) / HOUR_MS) * HOUR_MS + offset;
}

/** `850ms`, `4.2s`, `3m 09s`, `2h 05m`, `3d 4h`: units as in job documents. */
export function duration(ms: number): string {
  const sign = ms < 0 ? '−' : '';
  const n = Math.abs(ms);
  if (n < 1_000) return `${sign}${Math.round(n)}ms`;
  if (n < 10_000) return `${sign}${(Math.floor(n / 100) / 10).toFixed(1)}s`;
  const s = Math.floor(n / 1_000);
  if (s < 60) return `${sign}${s}s`;
  if (s < 3_600) return `${sign}${Math.floor(s / 60)}m ${two(s % 60)}s`;
  if (s < 86_400) return `${sign}${Math.floor(s / 3_600)}h ${two(Math.floor((s % 3_600) / 60))}m`;
  return `${sign}${Math.floor(s / 86_400)}d ${Math.floor((s % 86_400) / 3_600)}h`;
}

/** For counting: whole seconds, so that it does not flicker. */
export function counted(ms: number): string {
  return duration(Math.trunc(ms / 1_000) * 1_000).replace(/^0ms$/, '0s').replace('.0s', 's');
}

export function bytes(n: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let value = n;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

function two(n: number): string {
  return String(n).padStart(2, '0');
}

/** What a `<input type="datetime-local">` holds, on the viewer's clock; with 8 characters of the time also its seconds. */
export function toInput(instant: string | undefined, characters = 5): string {
  const at = Date.parse(instant ?? '');
  if (Number.isNaN(at)) return '';
  const { date, time } = onClock(at);
  return `${date}T${time.slice(0, characters)}`;
}
