// The front page shows what really is, and asks little for it.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { ended, until } from './belfry.mjs';
import { openWindow, signIn, startBoth } from './browser.mjs';

const REQUESTS_MAX = 6;
/** Nothing is read anew so soon; what is asked twice within it is asked once too often. */
const AGAIN_MS_MIN = 3_000;
let belfry;
let browser;

before(async () => {
  [belfry, browser] = await startBoth();
});
after(async () => {
  await browser?.close();
  await belfry?.stop();
});

test('every section of the overview shows what is so, with at most six requests', async () => {
  const job = (name, command, more) => belfry.api('POST', '/jobs', { name, action: { shell: { command } }, ...more });
  await job('broken', 'exit 7', { schedule: '0 4 * * *' });
  await job('steady', 'sleep infinity');
  await job('often', 'true', { schedule: '0 5 * * *' });
  await job('halted', 'true', { enabled: false });
  for (let i = 0; i < 2; i++) await ended(belfry, (await belfry.api('POST', '/jobs/default/broken/run', {})).id);
  await ended(belfry, (await belfry.api('POST', '/jobs/default/often/run', {})).id);
  const { id } = await belfry.api('POST', '/jobs/default/steady/run', {});
  await until('it runs', async () => (await belfry.api('GET', `/runs/${id}`)).state === 'running');
  // A server that was just started is still taking them.
  await until('all shards are owned', async () => (await belfry.api('GET', '/cluster')).servers.flatMap((server) => server.shards).length === 16);
  const page = await openWindow(browser);
  await signIn(page, belfry, 'admin', belfry.password, '#/jobs');
  // What the page before asked for is not counted.
  await page.goto('about:blank');
  const asked = [];
  page.on('request', (request) => {
    const path = new URL(request.url()).pathname;
    if (!path.startsWith('/api/')) return;
    // What is read anew as time goes by: on a busy machine that may begin before all is drawn.
    if (asked.some((before) => before.path === path && Date.now() - before.at > AGAIN_MS_MIN)) return;
    asked.push({ path, at: Date.now() });
  });
  await page.goto(`${belfry.url}/#/`);
  const section = (name) => page.locator('main section', { has: page.getByRole('heading', { name, exact: true }) });
  await until('every section is there', async () => (await page.locator('main section').count()) === 5);
  assert.ok(asked.length <= REQUESTS_MAX, `it asked ${asked.length} times: ${asked.map(({ path }) => path).join(' ')}`);
  await section('Needs attention').locator('li', { hasText: 'default/broken' }).first().waitFor();
  await section('Running now').locator('li', { hasText: 'default/steady' }).waitFor();
  await section('Around now').getByRole('img', { name: /^default\/broken: 2 Failed/ }).waitFor();
  await section('Next 24 hours, by minute').getByRole('img', { name: /at most [1-9]\d* in one minute/ }).waitFor();
  await section('Cluster').getByText('16 of 16 owned').waitFor();
  const lines = (text) => text.split('\n').map((line) => line.trim()).filter(Boolean).join(' | ');
  const tiles = () => page.locator('main ul.tiles > li').allInnerTexts();
  // The record of a run follows its end.
  for (const wanted of ['Jobs | 4 | 1 paused', 'Nodes | 1/1 | healthy', 'Open runs | 1 | 1 Running', 'Success in 7 days | 33.3 % | 3 runs']) await until(wanted, async () => (await tiles()).map(lines).includes(wanted));
  // A busy minute of the full hour keeps its time.
  const times = await section('Next 24 hours, by minute').locator('ol li > .tabular').allInnerTexts();
  assert.ok(times.length > 0);
  for (const time of times) assert.match(time, /^(\d\d-\d\d )?\d\d:\d\d$/);
  // And it is live: what ends is gone without a reload.
  await belfry.api('POST', `/runs/${id}/kill`);
  await section('Running now').getByText('Nothing runs at the moment.').waitFor();
  assert.deepEqual(page.errors, []);
  await page.context().close();
});
