// The line diff.
import { describe, expect, it } from 'vitest';

import { diffLines, folded } from '../../src/diff';

const signs = { same: ' ', gone: '-', new: '+' } as const;
function shown(before: string, after: string): string[] {
  return diffLines(before.split(' '), after.split(' ')).map((line) => signs[line.kind] + line.text);
}

describe('a diff', () => {
  it('of equal texts has no difference', () => {
    expect(shown('a b c', 'a b c')).toEqual([' a', ' b', ' c']);
  });
  it('shows what was replaced between what stayed', () => {
    expect(shown('a b c', 'a x c')).toEqual([' a', '-b', '+x', ' c']);
  });
  it('is as short as can be', () => {
    const lines = diffLines([...'ABCABBA'], [...'CBABAC']);
    expect(lines.filter((line) => line.kind !== 'same')).toHaveLength(5);
  });
  it('gives back both texts, whatever they are', () => {
    let seed = 7;
    const random = (n: number) => (seed = (seed * 1103515245 + 12345) % 2147483648) % n;
    for (let round = 0; round < 300; round++) {
      const one = Array.from({ length: random(12) }, () => String(random(4)));
      const two = Array.from({ length: random(12) }, () => String(random(4)));
      const lines = diffLines(one, two);
      expect(lines.filter((line) => line.kind !== 'new').map((line) => line.text)).toEqual(one);
      expect(lines.filter((line) => line.kind !== 'gone').map((line) => line.text)).toEqual(two);
      expect(lines.flatMap((line) => line.before ?? [])).toEqual(one.map((_, i) => i + 1));
      expect(lines.flatMap((line) => line.after ?? [])).toEqual(two.map((_, i) => i + 1));
    }
  });
  it('of two long texts that share nothing ends', () => {
    const many = (name: string) => Array.from({ length: 5_000 }, (_, i) => `${name}${i}`);
    expect(diffLines(many('a'), many('b'))).toHaveLength(10_000);
  });
  it('of texts with many differences shows the middle as replaced, and gives back both', () => {
    const one = Array.from({ length: 2_000 }, (_, i) => (i % 2 ? `same ${i}` : `old ${i}`));
    const two = one.map((line) => line.replace('old', 'new'));
    const lines = diffLines(one, two);
    expect(lines.filter((line) => line.kind !== 'new').map((line) => line.text)).toEqual(one);
    expect(lines.filter((line) => line.kind !== 'gone').map((line) => line.text)).toEqual(two);
    expect(lines.filter((line) => line.kind === 'same')).toHaveLength(1);
  });
  it('folds what is far from any difference', () => {
    const before = Array.from({ length: 20 }, (_, i) => String(i));
    const after = before.with(10, 'x');
    expect(folded(diffLines(before, after), 1).map((line) => (line.kind === 'fold' ? line.count : line.text))).toEqual([
      9, '9', '10', 'x', '11', 8,
    ]);
  });
});
