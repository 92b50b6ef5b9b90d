// What stands in an input for a value of the document, and back. A text that is no number stays a text: the server says what it wants.
import type { FieldKind } from './fields';

export function shownText(value: unknown): string {
  if (value === undefined || value === null) return '';
  return typeof value === 'string' ? value : JSON.stringify(value);
}

export function readText(text: string, kind: FieldKind): unknown {
  if (text === '') return undefined;
  if (kind !== 'number' && kind !== 'integer' && kind !== 'numbers') return text;
  const number = Number(text);
  return text.trim() !== '' && Number.isFinite(number) ? number : text;
}

/** One expression is a text, several are a list; a list stays one. */
export function asSchedule(items: readonly unknown[], before: unknown): unknown {
  if (items.length === 0) return undefined;
  return items.length === 1 && !Array.isArray(before) ? items[0] : [...items];
}

export function asItems(value: unknown): unknown[] {
  if (value === undefined || value === null) return [];
  return Array.isArray(value) ? value : [value];
}
