// Which rows of a long list are drawn.
import { expect, it } from 'vitest';

import { rowWindow } from '../../src/parts/window';

it('a short list is drawn whole', () => {
  expect(rowWindow(100, 36, 5000, 800)).toEqual({ from: 0, to: 100, above: 0, below: 0 });
});
it('one of which more is to be read is drawn as a long one', () => {
  expect(rowWindow(100, 36, 0, 800, true).to).toBeLessThan(60);
});
it('of ten thousand rows a screenful is drawn, and the rest is room', () => {
  const { from, to, above, below } = rowWindow(10_000, 36, 180_000, 800);
  expect(to - from).toBeLessThan(60);
  expect(from * 36).toBeLessThanOrEqual(180_000);
  expect(to * 36).toBeGreaterThanOrEqual(180_800);
  expect(above + (to - from) * 36 + below).toBe(360_000);
});
it('the end of the list is reached', () => {
  expect(rowWindow(1_000, 36, 36_000, 800).to).toBe(1_000);
});
