// Going to a line that the address or a search asks for, while more lines come.
import { afterEach, expect, it } from 'vitest';

import { goTo } from '../../src/output/goto.svelte';

class Page {
  asked = $state('q');
  found: number[] = $state.raw([]);
  gone: unknown[] = [];
}
let stop: () => void = () => {};
const settled = () => new Promise((later) => setTimeout(later));

async function opened(): Promise<Page> {
  const page = new Page();
  stop = $effect.root(() => goTo(() => page.asked, () => page.found[0], (line) => page.gone.push(line)));
  await settled();
  return page;
}
afterEach(() => stop());

it('goes there when it has come, once, whatever comes after it', async () => {
  const page = await opened();
  expect(page.gone).toEqual([]);
  page.found = [7];
  await settled();
  page.found = [7, 9];
  await settled();
  expect(page.gone).toEqual([7]);
});
it('goes to another one that is asked for, also when it is the same line', async () => {
  const page = await opened();
  page.found = [7];
  await settled();
  page.asked = 'qu';
  await settled();
  page.asked = 'x';
  page.found = [];
  await settled();
  page.found = [12];
  await settled();
  expect(page.gone).toEqual([7, 7, 12]);
});
it('does not go again where going reads or changes what it looks at', async () => {
  const page = await opened();
  stop();
  let rows = $state(1);
  stop = $effect.root(() => goTo(() => page.asked, () => page.found[0], (line) => page.gone.push([line, rows])));
  page.found = [7];
  await settled();
  rows = 2;
  await settled();
  expect(page.gone).toEqual([[7, 1]]);
});
