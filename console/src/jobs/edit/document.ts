// Job documents as plain values: reading and changing them by path. Pure; a change gives a new document.
import { allFields } from './fields';

export type Doc = Record<string, unknown>;

export function isDoc(value: unknown): value is Doc {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

export function getIn(doc: unknown, path: string): unknown {
  let at: unknown = doc;
  for (const part of path.split('.')) {
    if (!isDoc(at)) return undefined;
    at = at[part];
  }
  return at;
}

/** Undefined takes the field away, and with it the objects around it that are empty then. */
export function setIn(doc: Doc, path: string, value: unknown): Doc {
  const [head = '', ...rest] = path.split('.');
  const next = { ...doc };
  let put = value;
  if (rest.length > 0) {
    const inner = doc[head];
    const changed = setIn(isDoc(inner) ? inner : {}, rest.join('.'), value);
    put = Object.keys(changed).length === 0 ? undefined : changed;
  }
  if (put === undefined) delete next[head];
  else next[head] = put;
  return next;
}

export function same(a: unknown, b: unknown): boolean {
  return JSON.stringify(a) === JSON.stringify(b);
}

function rank(path: string): number {
  const at = allFields.findIndex((field) => field.path === path || field.path.startsWith(`${path}.`));
  return at < 0 ? allFields.length : at;
}

/** The fields in the order of the form. What is the user's own (labels, payloads) keeps its order. */
export function ordered(doc: Doc, path = ''): Doc {
  const at = (key: string) => (path ? `${path}.${key}` : key);
  const keys = Object.keys(doc).toSorted((a, b) => rank(at(a)) - rank(at(b)));
  return Object.fromEntries(
    keys.map((key) => {
      const value = doc[key];
      const known = allFields.some((field) => field.path.startsWith(`${at(key)}.`));
      return [key, known && isDoc(value) ? ordered(value, at(key)) : value];
    }),
  );
}
