// Job documents as YAML: reading with the line of every field, and writing.
import { yaml } from '../yaml';
import { ordered, type Doc } from './document';
import { YamlError, YamlReader, type Wrong } from './yaml-read';

export interface Unreadable {
  /** From 1. */
  line: number;
  wrong: Wrong | 'fields';
}

export type Read = { value: unknown; lines: Map<string, number> } | { unreadable: Unreadable };

/** Any YAML value, with the line on which each path (`retry.on[0]`) starts. */
export function readYaml(text: string): Read {
  const reader = new YamlReader(text);
  const line = (offset: number) => text.replaceAll('\r\n', '\n').slice(0, offset).split('\n').length;
  try {
    const value = reader.read();
    return { value, lines: new Map([...reader.starts].map(([path, offset]) => [path, line(offset)])) };
  } catch (thrown) {
    if (!(thrown instanceof YamlError)) throw thrown;
    return { unreadable: { line: line(thrown.offset), wrong: thrown.wrong } };
  }
}

/** The line of a field, or of what it would stand in. */
export function lineOf(lines: ReadonlyMap<string, number>, field: string): number | null {
  for (let path = field; path; path = path.replace(/(\.|^)[^.[\]]+$|\[\d+\]$/, '')) {
    const line = lines.get(path);
    if (line !== undefined) return line;
  }
  return null;
}

export function writeYaml(doc: Doc): string {
  return Object.keys(doc).length === 0 ? '' : `${yaml(ordered(doc))}\n`;
}

export { yaml as writeValue } from '../yaml';
