// What people do on the pages of runs: find them, read on, see new ones come, read the output of each attempt, take it along, compare it.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, afterEach, before, beforeEach, test } from 'node:test';

import { ended, until } from './belfry.mjs';
import { openWindow, shot, signIn, startBoth, violations, visit } from './browser.mjs';

let belfry;
let browser;
let page;

before(async () => {
  [belfry, browser] = await startBoth();
});
beforeEach(async () => {
  page = await openWindow(browser);
  await signIn(page, belfry);
});
afterEach(async () => {
  assert.deepEqual(page.errors, []);
  await page.context().close();
});
after(async () => {
  await browser?.close();
  await belfry?.stop();
});

const job = (name, command, more = {}) => belfry.api('POST', '/jobs', { name, action: { shell: { command } }, ...more });
const start = async (name, body = {}) => (await belfry.api('POST', `/jobs/default/${name}/run`, body)).id;
const running = (id) => until('it runs', async () => (await belfry.api('GET', `/runs/${id}`)).state === 'running');
const log = () => page.getByRole('log');
const rows = () => page.locator('tr[data-row]');

test('runs are filtered by job, state, node and time, read page by page, and new ones come in', async () => {
  // Whatever is started while the first one goes is skipped at once: many runs in a moment.
  await job('many', 'sleep infinity');
  const first = await start('many');
  await running(first);
  for (let i = 0; i < 130; i++) await start('many');
  await job('other', 'true');
  await ended(belfry, await start('other'));
  await visit(page, belfry, '#/runs');
  await page.getByLabel('Job, as namespace/name').fill('default/many');
  await page.waitForURL(/job=default%2Fmany|job=default\/many/);
  await page.locator('main header').getByText('100+', { exact: true }).waitFor();
  await rows().last().scrollIntoViewIfNeeded();
  await page.locator('main header').getByText('131', { exact: true }).waitFor();
  assert.equal(await rows().filter({ hasNotText: 'many' }).count(), 0);
  // Far from the top a new one waits; it does not move what one reads.
  await page.evaluate(() => scrollTo(0, document.body.scrollHeight));
  await rows().filter({ hasText: 'Running' }).waitFor();
  const waiting = await start('many');
  await page.getByRole('button', { name: '1 newer run: show' }).click();
  await until('it is the first', async () => (await rows().first().locator('a').first().getAttribute('href'))?.includes(waiting));
  // At the top it comes by itself.
  const next = await start('many');
  await until('it is the first', async () => (await rows().first().locator('a').first().getAttribute('href'))?.includes(next));
  await page.locator('main header').getByText('133', { exact: true }).waitFor();
  await page.getByLabel('State').selectOption('running');
  await page.waitForURL(/state=running/);
  await until('one is left', async () => (await rows().count()) === 1);
  await page.getByLabel('Node').fill('moon');
  await page.getByRole('alert').filter({ hasText: 'there is no node' }).waitFor();
  await page.getByLabel('Node').fill('alpha');
  await page.getByRole('alert').waitFor({ state: 'detached' });
  await rows().first().waitFor();
  await page.getByLabel('Time').selectOption('h1');
  await page.waitForURL(/last=h1/);
  await until('it is of this hour', async () => (await rows().count()) === 1);
  assert.deepEqual(await violations(page), []);
  await page.getByRole('button', { name: 'Clear' }).click();
  await rows().filter({ hasText: 'other' }).waitFor();
  await belfry.api('POST', `/runs/${first}/kill`);
});

test('on a busy cluster the list does not grow without end', async () => {
  await job('busy', 'sleep infinity');
  const first = await start('busy');
  await running(first);
  const many = async (n) => {
    for (let i = 0; i < n; i += 10) await Promise.all(Array.from({ length: 10 }, () => start('busy')));
  };
  await many(120);
  await visit(page, belfry, '#/runs?job=busy');
  await rows().last().scrollIntoViewIfNeeded();
  await page.locator('main header').getByText('121', { exact: true }).waitFor();
  await page.evaluate(() => scrollTo(0, document.body.scrollHeight));
  await rows().filter({ hasText: 'Running' }).waitFor();
  // Where the page was so far behind that it was told to read again, it counts anew.
  const newer = page.getByRole('button', { name: /^1000\+ newer runs: show$/ });
  await until('more than 1000 wait', async () => (await newer.count()) === 1 || (await many(50)), 5 * 60_000);
  await newer.click();
  // More than that are not put above the others: the list is read anew.
  await page.locator('main header').getByText('100+', { exact: true }).waitFor();
  await belfry.api('POST', `/runs/${first}/kill`);
});

test('output is wrapped or not, followed or not, and downloaded', async () => {
  await job('wordy', `echo ${'long '.repeat(200)}; while :; do echo "said $((i += 1))."; sleep 0.05; done`);
  const id = await start('wordy');
  await visit(page, belfry, `#/runs/${id}`);
  // More than fit: the log itself holds the last lines only.
  await until('60 lines came', async () => Number.parseInt(await page.getByText(/^\d+ lines?$/).textContent(), 10) > 60);
  const wide = () => log().evaluate((box) => box.scrollWidth > box.clientWidth);
  const atEnd = () => log().evaluate((box) => box.scrollTop + box.clientHeight >= box.scrollHeight - 20);
  await until('it follows', atEnd);
  await page.getByLabel('Follow').uncheck();
  await until('more was said below', async () => !(await atEnd()));
  await page.getByLabel('Follow').check();
  await until('it follows again', atEnd);
  await page.getByLabel('Follow').uncheck();
  await log().evaluate((box) => (box.scrollTop = 0));
  await log().getByText('long long').waitFor();
  assert.equal(await wide(), false);
  await page.getByLabel('Wrap').uncheck();
  await page.waitForURL(/wrap=0/);
  await until('the long line is not wrapped', wide);
  await page.getByLabel('Wrap').check();
  await until('it is wrapped again', async () => !(await wide()));
  await belfry.api('POST', `/runs/${id}/kill`);
  await ended(belfry, id);
  await page.locator('main header').getByText('Killed').waitFor();
  const coming = page.waitForEvent('download');
  await page.getByRole('link', { name: 'Download' }).click();
  const download = await coming;
  assert.equal(download.suggestedFilename(), `${id}.1.txt`);
  const text = readFileSync(await download.path(), 'utf8');
  assert.match(text, /^(long ?){200}\n/);
  assert.match(text, /said 1\.\nsaid 2\.\n/);
});

test('each attempt leads to its own output', async () => {
  const counted = join(belfry.folder, 'tries');
  await job('tried', `echo x >> '${counted}'; echo "try $(wc -l < '${counted}')."; exit 1`, { retry: { attempts: 2, delay: '1s' } });
  const id = await start('tried');
  await ended(belfry, id);
  await visit(page, belfry, `#/runs/${id}`);
  await page.getByRole('heading', { name: 'Output · attempt 2' }).waitFor();
  await log().getByText('try 2.').waitFor();
  await page.getByRole('link', { name: 'attempt 1' }).click();
  await page.waitForURL(/attempt=1/);
  await log().getByText('try 1.').waitFor();
  assert.equal(await log().getByText('try 2.').count(), 0);
  await page.getByRole('link', { name: 'attempt 2' }).click();
  await log().getByText('try 2.').waitFor();
});

test('a bad run is compared with the last good one', async () => {
  await job('compared', 'echo same; echo "rows: $N"; [ -z "$BAD" ]');
  const first = await start('compared', { env: { BAD: '1' } });
  await ended(belfry, first);
  await visit(page, belfry, `#/runs/${first}?compare=1`);
  await page.getByText('No run of this job before this one has succeeded.').waitFor();
  const good = await start('compared', { env: { N: '41' } });
  await ended(belfry, good);
  const bad = await start('compared', { env: { N: '0', BAD: '1' } });
  await ended(belfry, bad);
  await visit(page, belfry, `#/runs/${bad}`);
  await page.getByRole('link', { name: 'Compare with the last good run' }).click();
  const diff = page.getByRole('group', { name: 'Compare with the last good run' });
  await diff.locator('tr.gone', { hasText: 'rows: 41' }).waitFor();
  await diff.locator('tr.new', { hasText: 'rows: 0' }).waitFor();
  assert.equal(await diff.locator('tr.same', { hasText: 'same' }).count(), 1);
  assert.match(await page.getByRole('link', { name: /Last good run/ }).getAttribute('href'), new RegExp(good));
  assert.deepEqual(await violations(page), []);
  await shot(page, 'run-compare');
  await page.getByRole('link', { name: 'Show the output' }).click();
  await log().getByText('rows: 0').waitFor();
});

test('of two long outputs that share nothing the page draws a part, and says how much more there is', async () => {
  await job('different', 'seq $FROM $TO; [ -z "$BAD" ]', { output: { keep: '1MiB' } });
  await ended(belfry, await start('different', { env: { FROM: '1', TO: '3000' } }));
  const bad = await start('different', { env: { FROM: '5001', TO: '8000', BAD: '1' } });
  await ended(belfry, bad);
  await visit(page, belfry, `#/runs/${bad}?compare=1`);
  const diff = page.getByRole('group', { name: 'Compare with the last good run' });
  await diff.getByText(/^… and 5\d\d\d more lines$/).waitFor();
  assert.ok((await diff.locator('tbody tr').count()) < 1_100);
});
