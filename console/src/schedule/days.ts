// The days of a cron expression in words: day of the month, day of the week, month, year.
import type { Messages } from '../i18n/messages.svelte';
import { asNumbers, type CronFields } from './fields';

type Words = Messages['schedule'];

const WEEKDAYS = ['SUN', 'MON', 'TUE', 'WED', 'THU', 'FRI', 'SAT'];
const MONTHS = ['JAN', 'FEB', 'MAR', 'APR', 'MAY', 'JUN', 'JUL', 'AUG', 'SEP', 'OCT', 'NOV', 'DEC'];

/** '' for every day; null when it cannot be told for sure. */
export function dayWords(fields: CronFields, words: Words): string | null {
  const day = fields.day === '*' ? '' : dayOfMonth(fields.day, words);
  const weekday = fields.weekday === '*' ? '' : dayOfWeek(fields.weekday, words);
  const month = fields.month === '*' ? '' : months(fields.month, words);
  if (day === null || weekday === null || month === null) return null;
  const either = day && weekday ? words.or(day, weekday) : day || weekday;
  const parts = [either, month, fields.year === '*' ? '' : words.inYear(fields.year)].filter(Boolean);
  return parts.length === 0 ? '' : words.dayParts(parts as string[]);
}

function dayOfMonth(field: string, words: Words): string | null {
  if (field === 'L') return words.lastDay;
  if (field === 'LW') return words.lastWorkday;
  const before = /^L-(\d+)$/.exec(field);
  if (before?.[1]) return words.beforeLastDay(Number(before[1]));
  const near = /^(\d+)W$/.exec(field);
  if (near?.[1]) return words.workdayNear(Number(near[1]));
  if (field === 'H') return words.ownDay;
  const days = asNumbers(field, 1, 31);
  if (!days) return null;
  const span = /^(\d+)-(\d+)$/.exec(field);
  if (span) return words.dayRange(Number(span[1]), Number(span[2]));
  return words.onDaysOfMonth(days);
}

function dayOfWeek(field: string, words: Words): string | null {
  const nth = /^([0-7]|[A-Z]{3})#([1-5])$/.exec(field);
  const last = /^([0-7]|[A-Z]{3})L$/.exec(field);
  const one = nth?.[1] ?? last?.[1];
  if (one) {
    const [day] = asNumbers(one, 0, 7, WEEKDAYS) ?? [];
    const name = day === undefined ? undefined : words.weekdays[day % 7];
    if (name === undefined) return null;
    return nth ? words.nthWeekday(Number(nth[2]), name) : words.lastWeekday(name);
  }
  const days = asNumbers(field, 0, 7, WEEKDAYS)?.map((day) => words.weekdays[day % 7] ?? '');
  if (!days) return null;
  const first = days[0];
  const end = days.at(-1);
  if (/^[^,]+-[^,]+$/.test(field) && days.length > 2 && first && end) return words.weekdayRange(first, end);
  return words.onWeekdays(days);
}

function months(field: string, words: Words): string | null {
  const numbers = asNumbers(field, 1, 12, MONTHS);
  return numbers ? words.inMonths(numbers.map((month) => words.months[month - 1] ?? '')) : null;
}
