// Many windows of one browser, which has six connections to a server: those that nobody sees do not hold them.
import assert from 'node:assert/strict';
import { readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';

import { until } from './belfry.mjs';
import { openWindow, signIn, startBoth, visit } from './browser.mjs';

const WINDOWS = 7;
const UNSEEN_MS = 21_000;
let belfry;
let browser;

before(async () => {
  [belfry, browser] = await startBoth();
});
after(async () => {
  await browser?.close();
  await belfry?.stop();
});

/** Runs in the page, before anything of it: this browser takes every window for one that is seen. */
function mayBeUnseen() {
  let unseen = false;
  Object.defineProperty(document, 'hidden', { get: () => unseen });
  globalThis.unseen = (is) => {
    unseen = is;
    document.dispatchEvent(new Event('visibilitychange'));
  };
}

test('of seven windows with runs that go on the seventh works, and the others go on when they are seen', async () => {
  const go = join(belfry.folder, 'go');
  const command = `echo first; until [ -e '${go}' ]; do sleep 0.1; done; head -c 300000 /dev/zero | tr '\\0' x; echo; echo second; touch '${go}'.$$; sleep infinity`;
  await belfry.api('POST', '/jobs', { name: 'many', overlap: 'allow', output: { keep: '1KiB' }, action: { shell: { command } } });
  const first = await openWindow(browser);
  await signIn(first, belfry);
  await first.context().addInitScript(mayBeUnseen);
  const pages = [];
  for (let i = 0; i < WINDOWS; i++) {
    const { id } = await belfry.api('POST', '/jobs/default/many/run', {});
    const page = await first.context().newPage();
    await page.clock.install();
    page.streams = 0;
    page.on('request', (request) => (page.streams += /\/(stream|events)$/.test(request.url())));
    page.on('requestfailed', (request) => (page.streams -= /\/(stream|events)$/.test(request.url())));
    await page.goto(`${belfry.url}/#/runs/${id}`);
    await page.getByRole('log').getByText('first', { exact: true }).waitFor();
    pages.push(page);
    if (i === WINDOWS - 1) break;
    await page.evaluate(() => globalThis.unseen(true));
    await page.clock.fastForward(UNSEEN_MS);
    await until('it gives its streams back', () => page.streams === 0);
  }
  const [old] = pages;
  const seventh = pages.at(-1);
  await visit(seventh, belfry, '#/jobs');
  await seventh.getByLabel('Choose default/many').waitFor();
  const id = new URL(old.url()).hash.split('/').at(-1);
  await visit(seventh, belfry, `#/runs/${id}`);
  await seventh.getByRole('log').getByText('first', { exact: true }).waitFor();
  // More than is kept of it, while nobody looked.
  writeFileSync(go, '');
  await until('all have printed', () => readdirSync(belfry.folder).filter((name) => name.startsWith('go.')).length === WINDOWS);
  await old.evaluate(() => globalThis.unseen(false));
  await until('it follows again', () => old.streams === 2);
  assert.equal(await old.getByRole('log').getByText('first', { exact: true }).count(), 1);
  await belfry.api('POST', '/jobs/default/many/kill', {});
  await old.locator('main header').getByText('Killed').waitFor();
  await old.getByRole('log').getByText(/KiB were not kept/).waitFor();
  await old.getByRole('log').getByText('second', { exact: true }).waitFor();
  assert.deepEqual(first.errors, []);
  await first.context().close();
});
