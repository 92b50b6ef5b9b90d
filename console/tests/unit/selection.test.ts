// Jobs that are chosen in a list, one by one and a range at a time.
import { expect, it } from 'vitest';

import type { Job } from '../../src/api/views';
import { Selection } from '../../src/jobs/selection.svelte';

const list = (...ids: string[]) => ids.map((id) => ({ id })) as Job[];
const chosen = (selection: Selection) => [...selection.chosen.keys()];

it('a range goes from the last one that was chosen', () => {
  const selection = new Selection();
  const jobs = list('a', 'b', 'c', 'd');
  selection.toggle(jobs, 3, false);
  selection.toggle(jobs, 1, true);
  expect(chosen(selection).toSorted()).toEqual(['b', 'c', 'd']);
});
it('a range does not go from what was chosen in a list that is shown no more', () => {
  const selection = new Selection();
  selection.toggle(list('a', 'b', 'c', 'd'), 3, false);
  selection.all([], false);
  selection.toggle(list('w', 'x', 'y', 'z'), 1, true);
  expect(chosen(selection)).toEqual(['x']);
});
