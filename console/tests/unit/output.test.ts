// What a run printed: terminal colours, lines from chunks, rows, search.
import { describe, expect, it } from 'vitest';

import { cubeColour, parseAnsi, withoutAnsi } from '../../src/output/ansi';
import { Lines, type Chunk } from '../../src/output/lines';
import { RowIndex } from '../../src/output/rows';
import { Finder, mark } from '../../src/output/search';

describe('terminal colours', () => {
  it('become styles of parts', () => {
    expect(parseAnsi('a\x1b[1;31mb\x1b[0mc').segments).toEqual([
      { text: 'a', style: {} },
      { text: 'b', style: { bold: true, fg: 1 } },
      { text: 'c', style: {} },
    ]);
  });
  it('have 256 and true ones', () => {
    expect(parseAnsi('\x1b[38;5;208mx\x1b[48;2;1;2;255my').segments.map((part) => part.style)).toEqual([{ fg: 208 }, { fg: 208, bg: '#0102ff' }]);
    expect([cubeColour(3), cubeColour(208), cubeColour(244), cubeColour('#0102ff')]).toEqual([null, 'rgb(255 135 0)', 'rgb(128 128 128)', '#0102ff']);
  });
  it('go on in the next line until they end', () => {
    const { end } = parseAnsi('\x1b[32mgreen');
    expect(parseAnsi('still\x1b[39mnot', end).segments.map((part) => part.style)).toEqual([{ fg: 2 }, {}]);
  });
  it('leave out every other sequence and control character', () => {
    expect(withoutAnsi('\x1b[2K\x1b]0;title\x07a\x1b[1Ab\x07c\x1b(B')).toBe('abc');
  });
  it('never become markup', () => {
    expect(parseAnsi('<b>x</b>').segments).toEqual([{ text: '<b>x</b>', style: {} }]);
  });
});

let seq = 0;
function chunk(text: string, stream = 'stdout', more: Partial<Chunk> = {}): Chunk {
  return { attempt: 1, seq: seq++, stream, at_ms: 0, offset: 0, dropped_bytes: 0, text, ...more };
}
function lines(...chunks: Chunk[]): Lines {
  const made = new Lines();
  for (const one of chunks) made.add(one);
  return made;
}
const shown = (made: Lines) => made.all.map((line) => (line.gap ? `gap ${line.gap}` : `${line.stream === 'stderr' ? 'E ' : ''}${line.plain}`));

describe('lines', () => {
  it('are put together across chunks and streams', () => {
    expect(shown(lines(chunk('a'), chunk('x\n', 'stderr'), chunk('b\nc'), chunk('\n')))).toEqual(['ab', 'E x', 'c']);
  });
  it('keep what was not written over', () => {
    expect(shown(lines(chunk('10%\r'), chunk('20%\r100%\r\n')))).toEqual(['100%']);
  });
  it('decode characters that were cut between chunks', () => {
    const bytes = [...new TextEncoder().encode('中文\n')];
    const piece = (part: number[]) => chunk('', 'stdout', { text: null, base64: btoa(String.fromCharCode(...part)) });
    expect(shown(lines(piece(bytes.slice(0, 4)), piece(bytes.slice(4))))).toEqual(['中文']);
  });
  it('mark what was not kept', () => {
    expect(shown(lines(chunk('a\n'), chunk('z\n', 'stdout', { dropped_bytes: 7 })))).toEqual(['a', 'gap 7', 'z']);
  });
  it('that are endless are cut', () => {
    expect(lines(chunk('x'.repeat(9_000))).all.map((line) => line.plain.length)).toEqual([4_000, 4_000, 1_000]);
  });
  it('carry the style of the stream, not of the other', () => {
    const made = lines(chunk('\x1b[31mred\n'), chunk('err\n', 'stderr'), chunk('more\n'));
    expect(made.all.map((line) => line.start)).toEqual([{}, {}, { fg: 1 }]);
  });
});

describe('the number of a line', () => {
  it('leads to it, also when lines before it are no longer kept', () => {
    const made = lines(chunk('a\n'.repeat(10)), chunk('b\n'.repeat(299_991)));
    expect([made.forgotten, made.indexOf(60_001), made.indexOf(300_001)]).toEqual([60_000, 0, 240_000]);
  });
  it('leads nowhere before the line has come and after it is no longer kept', () => {
    const made = lines(chunk('a\n'.repeat(300_001)));
    expect([5, 60_000, 300_002, 0, NaN].map((number) => made.indexOf(number))).toEqual(Array(5).fill(undefined));
  });
});

describe('very long lines', () => {
  it('are bounded by their size too, a fifth of the lines at a time', () => {
    const made = new Lines();
    const line = `${'x'.repeat(3_999)}\n`;
    for (let at = 0; at <= 64; at++) made.add(chunk(line.repeat(256)));
    const kept = made.all.reduce((chars, { text }) => chars + text.length, 0);
    expect(kept).toBeLessThan(64 * 1024 * 1024);
    expect([made.forgotten > 0, made.all.length + made.forgotten]).toEqual([false, 65 * 256]);
    for (let at = 0; at < 3; at++) made.add(chunk(line.repeat(256)));
    expect([made.forgotten, made.all.length]).toEqual([Math.floor((66 * 256) / 5), 68 * 256 - Math.floor((66 * 256) / 5)]);
  });
});

describe('rows', () => {
  const made = lines(chunk(`${'x'.repeat(25)}\n\n${'字'.repeat(6)}\nend\n`));
  it('are one a line without wrapping', () => {
    const index = new RowIndex();
    index.update(made.all, null);
    expect([index.rowOf(3), index.lineAt(2.7)]).toEqual([3, 2]);
  });
  it('count wrapped lines, wide characters twice', () => {
    const index = new RowIndex();
    index.update(made.all, 10);
    expect([0, 1, 2, 3, 4].map((line) => index.rowOf(line))).toEqual([0, 3, 4, 6, 7]);
    expect([0, 2, 3, 4, 5, 6].map((row) => index.lineAt(row))).toEqual([0, 0, 1, 2, 2, 3]);
  });
});

describe('search', () => {
  it('finds lines in any case', () => {
    expect(new Finder().find(lines(chunk('Error\nok\nan error\n')), 'ERROR')).toEqual([0, 2]);
  });
  it('goes on with what is new, with lines that grow, and without what is forgotten', () => {
    const finder = new Finder();
    const made = lines(chunk('hit\nno\n'), chunk('h', 'stderr'), chunk('a hit\n'));
    expect(finder.find(made, 'hit')).toEqual([0, 3]);
    made.add(chunk('it\n', 'stderr'));
    made.add(chunk('hit\n'));
    expect(finder.find(made, 'hit')).toEqual([0, 2, 3, 4]);
    expect(finder.find(made, 'no')).toEqual([1]);
    const long = lines(chunk('hit\n'.repeat(299_999)));
    expect(finder.find(long, 'hit').length).toBe(299_999);
    long.add(chunk('x\nhit\n'));
    expect([long.forgotten, finder.find(long, 'hit').slice(-2)]).toEqual([60_000, [239_998, 240_000]]);
    expect(finder.find(long, 'hit').length).toBe(240_000);
  });
  it('looks through nothing twice', () => {
    let looked = 0;
    const made = lines(chunk('a\n'.repeat(1_000)));
    for (const line of made.all) {
      const { plain } = line;
      Object.defineProperty(line, 'plain', { get: () => (looked++, plain) });
    }
    const finder = new Finder();
    finder.find(made, 'a');
    made.add(chunk('b\n'));
    expect([finder.find(made, 'a').length, looked]).toEqual([1_000, 1_000]);
  });
  it('marks hits across parts of different colour', () => {
    const { segments } = parseAnsi('a fo\x1b[31mo b');
    expect(mark(segments, 'foo').map(({ text, hit }) => (hit ? `[${text}]` : text))).toEqual(['a ', '[fo]', '[o]', ' b']);
  });
});
