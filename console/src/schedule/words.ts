// A schedule in words. Says only what it is sure of: an expression that it does not understand stays as it is written.
import type { Messages } from '../i18n/messages.svelte';
import { dayWords } from './days';
import { asNumbers, asStep, splitFields, type CronFields } from './fields';

type Words = Messages['schedule'];

const SHORTHANDS: Record<string, string> = {
  '@hourly': '0 * * * *',
  '@daily': '0 0 * * *',
  '@midnight': '0 0 * * *',
  '@weekly': '0 0 * * 0',
  '@monthly': '0 0 1 * *',
  '@yearly': '0 0 1 1 *',
  '@annually': '0 0 1 1 *',
};
/** More times a day than this are told as fields, not one by one. */
const TIMES_MAX = 6;

export function scheduleWords(schedule: string | readonly string[] | null | undefined, words: Words): string {
  const list = schedule == null ? [] : typeof schedule === 'string' ? [schedule] : schedule;
  if (list.length === 0) return words.manual;
  return list.map((expression) => expressionWords(expression, words)).join(words.and);
}

export function expressionWords(expression: string, words: Words): string {
  const text = expression.trim();
  const [form, ...rest] = text.split(/\s+/);
  const given = rest.join(' ');
  if (form === '@every') return words.every(given);
  if (form === '@after') return words.after(given);
  if (form === '@at') return words.once(given);
  if (form === '@boot') return words.boot;
  const fields = splitFields(SHORTHANDS[text.toLowerCase()] ?? text);
  if (!fields) return text;
  const days = dayWords(fields, words);
  const time = timeWords(fields, words);
  if (time === null || days === null) return text;
  // "every 5 minutes" needs no "every day".
  return days === '' && time.dense ? time.text : words.onDays(time.text, days || words.daily);
}

interface TimeWords {
  text: string;
  /** Goes on all day, so the day is not worth a word. */
  dense: boolean;
}

function timeWords({ second, minute, hour }: CronFields, words: Words): TimeWords | null {
  const hours = hourSpan(hour, words);
  if (second !== '0') {
    const step = second === '*' ? 1 : asStep(second);
    if (step === null || minute !== '*' || hours === null) return plainTimes(second, minute, hour, words);
    return { text: within(words.seconds(step), hours, words), dense: hours === '' };
  }
  const step = minute === '*' ? 1 : asStep(minute);
  if (step !== null && hours !== null) return { text: within(words.minutes(step), hours, words), dense: hours === '' };
  if (minute === 'H' && hour === 'H') return { text: words.ownTime, dense: false };
  if (minute === 'H' && hour === '*') return { text: words.ownMinute, dense: true };
  const minutes = asNumbers(minute, 0, 59);
  if (minute === 'H' && asNumbers(hour, 0, 23)) return { text: words.ownMinuteOf(hour), dense: false };
  if (!minutes) return null;
  const marks = minutes.map((n) => `:${two(n)}`).join(words.comma);
  if (hour === '*') return { text: words.hourly(marks), dense: true };
  const hourStep = asStep(hour);
  if (hourStep !== null) return { text: words.hours(hourStep, marks), dense: true };
  const between = /^(\d+)-(\d+)$/.exec(hour);
  if (between && minutes.length === 1) return { text: within(words.hourly(marks), hours ?? '', words), dense: false };
  return plainTimes('0', minute, hour, words);
}

function plainTimes(second: string, minute: string, hour: string, words: Words): TimeWords | null {
  const seconds = asNumbers(second, 0, 59);
  const minutes = asNumbers(minute, 0, 59);
  const hours = asNumbers(hour, 0, 23);
  if (!seconds || !minutes || !hours || seconds.length > 1 || minutes.length * hours.length > TIMES_MAX) return null;
  const tail = seconds[0] ? `:${two(seconds[0])}` : '';
  const times = hours.flatMap((h) => minutes.map((m) => `${two(h)}:${two(m)}${tail}`));
  return { text: words.at(times.join(words.comma)), dense: false };
}

/** '' for all day, null when it is not one span. */
function hourSpan(hour: string, words: Words): string | null {
  if (hour === '*') return '';
  const span = /^(\d+)(?:-(\d+))?$/.exec(hour);
  if (!span?.[1]) return null;
  return words.between(`${two(Number(span[1]))}:00`, `${two(Number(span[2] ?? span[1]))}:59`);
}

function within(text: string, hours: string, words: Words): string {
  return hours === '' ? text : words.within(text, hours);
}

function two(n: number): string {
  return String(n).padStart(2, '0');
}
