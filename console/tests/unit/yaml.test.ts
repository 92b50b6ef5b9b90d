import { load } from 'js-yaml';
import { describe, expect, it } from 'vitest';

import { getIn, ordered, setIn } from '../../src/jobs/edit/document';
import { lineOf, readYaml, writeYaml } from '../../src/jobs/edit/yaml';

function read(text: string): unknown {
  const got = readYaml(text);
  if ('unreadable' in got) throw new Error(`${got.unreadable.line}: ${got.unreadable.wrong}\n${text}`);
  return got.value;
}

const HARD = [
  '', ' ', 'a', 'yes', 'NO', 'null', '~', '1', '1.5', '1e3', '0x10', '0o17', '0b11', '-0x1', '+.5', '-.5e3', '.inf', '-.INF', '.nan', '027', '2026-12-01T00:00:00Z', '12:30:00', 'a: b', 'a:b', 'a:', ':a', 'a #b', '#a', '- a', '-', '?', '&a', '*a', '!a',
  '@daily', '`a`', '%a', '{a}', '[a', 'a, b', '"a"', "it's", 'a\nb', 'a\nb\n', 'a\n\n', '\na', '  a\nb', 'a \nb', 'a\n  b\n', '\ttab', 'a\tb', 'é中文', '中\n文\n', '\u0007', '\u2028', 'a\r\nb', '😀\nb', '---', '...', '=', '<<', '<b>&</b>',
  '0 4 * * *', 'set -e\nfor i in 1 2; do\n  echo $i\ndone\n', 'trailing ', 'C:\\x', 'http://a.b/c?d=e&f', '/usr/bin/x --a=b', 'x'.repeat(300),
];

/** As people write it. */
const WRITTEN = [
  'a: 1', '# c\na: 1 # d\n', '---\na: b\n...\n', 'a:\n  b: c\n  d:\n    - 1\n    - x: y\n      z: w\n    -\n      q: 1\ne: f', 'a:\n- 1\n- 2\nb: 3', '- - 1\n  - 2\n- 3', '- a: 1\n  b: 2\n- c: 3',
  'a: [1, two, "three", \'four\', [5], {six: 7}]', 'a: {b: c, d: [1, 2], "e": f,}', 'a: [\n  1,\n  2 # c\n  ]\nb: {}\nc: []', 'a: |\n  one\n    two\n\n  three\nb: 1', 'a: |-\n  x\nb: >\n  one\n  two\n\n  three\n', 'a: |+\n  x\n\nb: y',
  'a: >-\n  one\n  two\n    deep\n  three\n\n\n  four', 'a: "x\\n\\t\\u00e9\\x41 \\"q\\""', "a: 'it''s'", 'a: one\n  two\n  three\nb: c', 'a: "one\n  two\n\n  three"', "a: 'one\n  two'", 'a: http://x.y/z?q=1#f', 'a: b#c\nd: e #f', 'a: ~\nb: null\nc:\nd: ""',
  'a: true\nb: False\nc: yes\nd: 010\ne: 1e3\nf: .5\ng: 0x1F\nh: 0o17\ni: -3\nj: +4.0', 'a: 2026-12-01T00:00:00Z', '"a b": c\n\'d\': e', 'a b c: d', 'a:b: c', 'schedule:\n  - "0 4 * * *"\n  - \'@daily\'', 'a: x, y', 'x:\n\n  # note\n\n  y: 1\n\nz: 2', 'a:   b   ',
  'a: |2\n    x\n   y\n', 'a: [a b, c d]', '{a: 1}', '[1, 2]', 'just text', '""', '- |\n  a\n  b\n- c', 'a: {b: , c: d}', 'a: "\\\n  x"', 'a:\n  - b\n  -\n  - c', 'k: "a" # c', 'a: b\r\nc: d\r\n', 'as: {user: postgres, env: {K: V}, umask: "027"}',
];
/** What a whole reader refuses too. */
const REFUSED = ['cmd: echo "a: b"', 'a: - b', 'a: b: c', 'a:\n  b: 1\n   c: 2', 'a: [1, 2', 'a: "x', "a: 'x", 'a: 1\na: 2', '\ta: 1', 'a:\n\tb: 1', 'a: {b: c', 'a\nb: c', 'a: "\\q"', '- a\nb: c', 'a: @x', 'a: %x', 'a: `x', 'a: [1] x', 'a: "b" c', 'a: |x\n  b', 'a: 1\n---\nb: 2', 'a: }', 'a: ]'];

describe('YAML', () => {
  it('is read as a whole reader of YAML reads it', () => {
    for (const text of WRITTEN) expect([text, read(text)]).toEqual([text, load(text)]);
  });
  it('is refused where a whole reader refuses it', () => {
    for (const text of REFUSED) {
      expect(() => load(text), text).toThrow();
      expect([text, 'unreadable' in readYaml(text)]).toEqual([text, true]);
    }
  });
  it('refuses anchors and tags, and takes no harm from strange keys', () => {
    for (const text of ['a: &x 1\nb: *x', 'a: !!str 1', '&a b: c']) expect(readYaml(text)).toMatchObject({ unreadable: { wrong: 'reference' } });
    expect(Object.keys(read('__proto__: 1\nconstructor: 2') as object)).toEqual(['__proto__', 'constructor']);
  });
  it('gives back every text as it was, as value, as item, as key', () => {
    for (const text of HARD) {
      const doc = { name: text, action: { exec: { argv: [text, 'b', text] } }, labels: { [text]: text }, x: [{ a: text, b: [text] }, [text]] };
      expect(read(writeYaml(doc))).toEqual(doc);
      expect(load(writeYaml(doc))).toEqual(doc);
    }
  });
  it('gives back numbers, switches, nothing and empty things', () => {
    const doc = { limits: { cpus: 0.5, processes: 100 }, enabled: false, action: { handler: { name: 'n', payload: { a: null, b: [], c: {}, d: [1, [2, { e: 3 }]] } } } };
    expect(read(writeYaml(doc))).toEqual(doc);
  });
  it('is written as people write it', () => {
    const doc = { action: { shell: { command: 'set -e\necho a\n' } }, retry: { attempts: 3, on: ['failed', 'exit:75'] }, schedule: '0 4 * * *', name: 'dbbackup' };
    expect(writeYaml(doc)).toBe(
      'name: dbbackup\naction:\n  shell:\n    command: |\n      set -e\n      echo a\nschedule: 0 4 * * *\nretry:\n  attempts: 3\n  "on":\n    - failed\n    - exit:75\n',
    );
  });
  it('says at which line it cannot be read', () => {
    expect(readYaml('name: a\nschedule: "0\naction: [')).toMatchObject({ unreadable: { line: expect.any(Number) } });
    expect(readYaml('name: a\n\tx: b\n')).toMatchObject({ unreadable: { line: 2 } });
    expect(readYaml('name: a\nname: b\n')).toMatchObject({ unreadable: { line: 2 } });
    expect(readYaml('a: 1\n---\nb: 2\n')).toMatchObject({ unreadable: { line: 2, wrong: 'documents' } });
  });
  it('knows the line of each field', () => {
    const got = readYaml('# top\nname: a\nretry:\n  attempts: 3\n  on: [failed,\n    lost]\nschedule:\n  - "* * * * *"\n  - "x"\naction: {shell: {command: "a"}}\n');
    if ('unreadable' in got) throw new Error('unreadable');
    expect(['name', 'retry.attempts', 'retry.on[1]', 'schedule[1]', 'action.shell.command'].map((path) => lineOf(got.lines, path))).toEqual([2, 4, 6, 9, 10]);
    expect(lineOf(got.lines, 'retry.delay')).toBe(3);
    expect(lineOf(got.lines, 'webhook.url')).toBe(null);
  });
});

describe('documents', () => {
  it('lose a field with the objects around it', () => {
    expect(setIn({ retry: { attempts: 1 } }, 'retry.attempts', undefined)).toEqual({});
    expect(setIn({ a: 1 }, 'retry.attempts', 2)).toEqual({ a: 1, retry: { attempts: 2 } });
    expect(getIn({ retry: 5 }, 'retry.attempts')).toBe(undefined);
  });
  it('have the order of the form', () => {
    expect(Object.keys(ordered({ zzz: 1, action: {}, name: 'a', schedule: 'x' }))).toEqual(['name', 'action', 'schedule', 'zzz']);
  });
});
