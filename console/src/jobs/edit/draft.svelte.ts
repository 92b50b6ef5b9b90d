// A job while it is edited: one document, seen as form and as YAML. Whichever side was changed last leads.
import type { Doc } from './document';
import { isDoc, same, setIn } from './document';
import { readYaml, writeYaml, type Unreadable } from './yaml';

export class Draft {
  /** The last document that could be read: what the form shows. */
  doc: Doc = $state.raw({});
  text = $state('');
  unreadable: Unreadable | null = $state.raw(null);
  lines: ReadonlyMap<string, number> = $state.raw(new Map());
  /** What the editing started from, and its revision; null for a new job. */
  base: Doc = $state.raw({});
  revision: number | null = $state.raw(null);
  changed = $derived(this.unreadable !== null || !same(sorted(this.doc), sorted(this.base)));

  constructor(base: Doc, revision: number | null) {
    this.replace(base, revision);
  }

  replace(base: Doc, revision: number | null): void {
    this.base = base;
    this.revision = revision;
    this.take(base);
  }

  /** Changes the document and writes the YAML anew. */
  take(doc: Doc): void {
    this.doc = doc;
    this.type(writeYaml(doc));
  }

  /** The form changed a field; undefined takes it away. */
  set(path: string, value: unknown): void {
    this.take(setIn(this.doc, path, value));
  }

  /** Somebody typed in the YAML. */
  type(text: string): void {
    this.text = text;
    const read = readYaml(text);
    if ('unreadable' in read) {
      this.unreadable = read.unreadable;
      return;
    }
    const value = read.value ?? {};
    if (!isDoc(value)) {
      this.unreadable = { line: 1, wrong: 'fields' };
      return;
    }
    this.unreadable = null;
    this.lines = read.lines;
    this.doc = value;
  }
}

function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (!isDoc(value)) return value;
  return Object.fromEntries(Object.keys(value).toSorted().map((key) => [key, sorted(value[key])]));
}
