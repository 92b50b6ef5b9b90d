// The texts in Rust sources: what stands between quotes outside of comments, tests, the log, and what cannot happen.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

const CRATES = new URL('../../../crates/', import.meta.url).pathname;

/** Of a file, or of every source under a folder, given from `crates/`; those that begin with `!` are left out. */
export function rustTexts(...places: string[]): string[] {
  const without = places.filter((place) => place.startsWith('!')).map((place) => join(CRATES, place.slice(1)));
  const found = places.filter((place) => !place.startsWith('!')).flatMap((place) => files(join(CRATES, place)));
  return found
    .filter((file) => !without.includes(file))
    .flatMap((file) => textsOf(readFileSync(file, 'utf8')));
}

function files(place: string): string[] {
  if (place.endsWith('.rs')) return [place];
  return readdirSync(place, { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.rs') && !/(^|\/)tests?(\.rs|\/)|conformance/.test(name))
    .map((name) => join(place, name));
}

const TOKEN = /\/\/[^\n]*|r#"([^]*?)"#|r"([^"]*)"|b?"((?:[^"\\]|\\[^])*)"|'(?:\\[^']+|[^'\\])'/g;

/** What leads to a text within its statement: a line of the log, or a promise of the code to itself. */
const UNSEEN = /\b(?:(?:trace|debug|info|warn|error|panic|unreachable|(?:debug_)?assert(?:_\w+)?)!\(|expect\()[^;{}]*$/;

export function textsOf(source: string): string[] {
  const shipped = source.split(/#\[cfg\(test\)\]\s*mod tests \{/)[0] ?? '';
  return [...shipped.matchAll(TOKEN)].flatMap(({ index, 1: hashed, 2: raw, 3: quoted }) => {
    if (UNSEEN.test(shipped.slice(Math.max(0, index - 240), index))) return [];
    const text = hashed ?? raw ?? quoted?.replace(/\\\n\s*/g, '').replace(/\\n/g, '\n').replace(/\\(["\\])/g, '$1');
    return text === undefined ? [] : [text];
  });
}
