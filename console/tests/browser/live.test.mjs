// What happens while one looks: output as it is printed, very long output, and a server that goes away or falls silent and comes back.
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';

import { ended, until } from './belfry.mjs';
import { openWindow, shot, signIn, startBoth, toasted, visit } from './browser.mjs';

let belfry;
let browser;

before(async () => {
  [belfry, browser] = await startBoth();
});
after(async () => {
  await browser?.close();
  await belfry?.stop();
});

test('a line is seen while the run that printed it goes on', async () => {
  // Each line waits for the one before it to be seen: what came only with the end would never come.
  const heard = join(belfry.folder, 'heard');
  await belfry.api('POST', '/jobs', { name: 'talk', action: { shell: { command: `for i in $(seq 5); do echo "said $i."; until [ -e '${heard}'$i ]; do sleep 0.05; done; done` } } });
  const { id } = await belfry.api('POST', '/jobs/default/talk/run', {});
  const page = await openWindow(browser);
  await signIn(page, belfry, 'admin', belfry.password, `#/runs/${id}`);
  for (let i = 1; i <= 5; i++) {
    await page.getByRole('log').getByText(`said ${i}.`).waitFor();
    writeFileSync(`${heard}${i}`, '');
  }
  assert.equal((await ended(belfry, id)).state, 'succeeded');
  assert.deepEqual(page.errors, []);
  await page.context().close();
});

test('100,000 lines keep the page small', async (t) => {
  await belfry.api('POST', '/jobs', { name: 'flood', output: { keep: '16MiB' }, action: { shell: { command: 'seq 100000' } } });
  const { id } = await belfry.api('POST', '/jobs/default/flood/run', {});
  await ended(belfry, id);
  const page = await openWindow(browser);
  await signIn(page, belfry, 'admin', belfry.password, `#/runs/${id}`);
  await page.getByText('100000 lines').first().waitFor();
  const elements = await page.evaluate(() => document.querySelectorAll('*').length);
  t.diagnostic(`${elements} elements with 100,000 lines`);
  assert.ok(elements < 2_000);
  await page.context().close();
});

test('100,000 lines keep the page small while they come', async (t) => {
  const [go, on] = ['flood-go', 'flood-on'].map((name) => join(belfry.folder, name));
  const wait = (file) => `until [ -e '${file}' ]; do sleep 0.05; done`;
  await belfry.api('POST', '/jobs', { name: 'floods', output: { keep: '16MiB' }, action: { shell: { command: `${wait(go)}; seq 50000; ${wait(on)}; seq 50001 100000; sleep infinity` } } });
  const { id } = await belfry.api('POST', '/jobs/default/floods/run', {});
  const page = await openWindow(browser);
  await signIn(page, belfry, 'admin', belfry.password, `#/runs/${id}`);
  // At each change of the page: also in the middle of it, it must not hold more.
  await page.evaluate(() => {
    globalThis.most = 0;
    new MutationObserver(() => (globalThis.most = Math.max(globalThis.most, document.querySelectorAll('*').length))).observe(document, { subtree: true, childList: true });
  });
  writeFileSync(go, '');
  await page.getByText('50000 lines').first().waitFor();
  writeFileSync(on, '');
  await page.getByText('100000 lines').first().waitFor();
  await page.getByRole('log').getByText('100000', { exact: true }).first().waitFor();
  const most = await page.evaluate(() => globalThis.most);
  t.diagnostic(`at most ${most} elements while 100,000 lines came`);
  assert.ok(most > 0 && most < 2_000, `${most}`);
  await belfry.api('POST', `/runs/${id}/kill`);
  await page.context().close();
});

test('a server that goes away is said so, nothing is shown as if it still ran, and what is shown is true again when it is back', async () => {
  await belfry.api('POST', '/jobs', { name: 'steady', action: { shell: { command: 'sleep infinity' } } });
  await belfry.api('POST', '/jobs', { name: 'web', action: { service: { command: 'sleep infinity' } } });
  const page = await openWindow(browser);
  await signIn(page, belfry);
  const section = page.locator('main section', { has: page.getByRole('heading', { name: 'Running now' }) });
  const tile = page.locator('ul.tiles > li', { hasText: 'Open runs' });
  const [running, runningAsOf, asOf] = [/^Running$/, /^Running\sas of \d\d:\d\d:\d\d$/, /^\sas of \d\d:\d\d:\d\d$/];
  /** Where it is told that something runs: as it is told while that is known, and while it is not. Not there: told by nothing. */
  const told = {
    services: [[page.locator('tr[data-row]', { hasText: 'web' }), running, runningAsOf]],
    run: [[page.locator('main header'), running, runningAsOf]],
    runs: [[page.locator('tr[data-row]', { hasText: 'steady' }).first(), running, runningAsOf]],
    job: [[page.locator('main'), running, runningAsOf]],
    overview: [[section, null, asOf], [tile, /^2 Running$/, /^2 Running\sas of \d\d:\d\d:\d\d$/]],
  };
  for (const [name, places] of Object.entries(told)) {
    await until('the service runs', async () => (await belfry.api('GET', '/services')).items[0]?.state === 'running');
    const { id } = await belfry.api('POST', '/jobs/default/steady/run', {});
    await until('the run goes on', async () => (await belfry.api('GET', `/runs/${id}`)).state === 'running');
    await visit(page, belfry, { services: '#/services', run: `#/runs/${id}`, runs: '#/runs?job=steady', job: '#/jobs/default/steady', overview: '#/' }[name]);
    if (name === 'overview') await section.getByRole('link', { name: 'default/steady' }).waitFor();
    for (const [where, known] of places) if (known) await where.getByText(known).waitFor();
    assert.equal(await page.getByText(/as of/).count(), 0, `${name}: all is live`);
    await belfry.halt();
    await page.getByText('The server does not answer.').first().waitFor();
    for (const [where, known, old] of places) {
      await where.getByText(old).waitFor();
      if (known) assert.equal(await where.getByText(known).count(), 0, `${name} says that it runs`);
    }
    const labels = page.locator('main svg[role=img], main .strip a');
    const heard = await labels.evaluateAll((all) => all.map((one) => one.getAttribute('aria-label')));
    assert.deepEqual(heard.filter((label) => /running/i.test(label) && !/as of \d\d:\d\d:\d\d$/.test(label)), [], `${name}: as it is heard`);
    await shot(page, `server-away-${name}`);
    await belfry.restart();
    await page.getByText('The server does not answer.').first().waitFor({ state: 'detached' });
    // `belfry up` took the run with it: the page must not go on saying that it runs.
    const run = await ended(belfry, id);
    if (name === 'run') await until('the page says how it ended', async () => (await page.locator('main').innerText()).toLowerCase().includes(run.state.replace('_', ' ')));
    if (name === 'overview') await section.getByRole('link', { name: 'default/steady' }).waitFor({ state: 'detached' });
    for (const [where, , old] of places) await where.getByText(old).waitFor({ state: 'detached' });
  }
  assert.deepEqual(page.errors, []);
  await page.context().close();
});

test('what is not known to be saved is not said to be tried again, and stays to be saved', async () => {
  await belfry.api('POST', '/jobs', { name: 'unheard', action: { shell: { command: 'true' } } });
  const page = await openWindow(browser);
  await signIn(page, belfry, 'admin', belfry.password, '#/jobs/default/unheard/edit');
  const description = page.locator('[data-field=description] input');
  await description.fill('at first');
  const list = await openWindow(browser, { language: 'zh' });
  await signIn(list, belfry, 'admin', belfry.password, '#/jobs?q=unheard');
  await list.locator('tr[data-row] input').check();
  await page.getByText('The server would take it.').waitFor();
  await belfry.halt();
  await page.getByText('The server does not answer.').first().waitFor();
  await page.locator('[data-field=schedule] input').first().fill('0 4 * * *');
  await page.locator('.preview .refused').getByText('The server does not answer.').waitFor();
  // What was judged before it was changed once more does not stand there for it, and no dry run is in doubt.
  await description.fill('then');
  await page.getByText('The server would take it.').waitFor({ state: 'detached' });
  assert.equal(await page.locator('.verdict').textContent().then((text) => text.trim()), '');
  await page.getByRole('button', { name: 'Save', exact: true }).click();
  await page.locator('.verdict').getByText('It may or may not have happened: look before trying again.').waitFor();
  assert.equal(await page.getByText('Nothing was lost.').count(), 0);
  await shot(page, 'edit-unheard');
  // Neither is it refused: it stays chosen.
  await list.getByRole('button', { name: '暂停 (1)' }).click();
  await toasted(list, 'default/unheard: 服务端没有应答。 可能已经发生，也可能没有');
  assert.equal(await list.locator('tr[data-row] input').isChecked(), true);
  await shot(list, 'bulk-unheard');
  await belfry.restart();
  // What the save was answered stands there until it is done.
  await page.locator('strong', { hasText: 'The server does not answer.' }).waitFor({ state: 'detached' });
  await page.getByRole('button', { name: 'Save', exact: true }).click();
  await page.waitForURL(/unheard$/);
  assert.equal((await belfry.api('GET', '/jobs/default/unheard')).document.description, 'then');
  for (const one of [page, list]) {
    assert.deepEqual(one.errors, []);
    await one.context().close();
  }
});

test('a server that falls silent is said so, what may have changed is marked, and all is live again when it goes on', async () => {
  await belfry.api('POST', '/jobs', { name: 'silent', action: { shell: { command: 'echo going; sleep infinity' } } });
  const { id } = await belfry.api('POST', '/jobs/default/silent/run', {});
  await until('it runs', async () => (await belfry.api('GET', `/runs/${id}`)).state === 'running');
  const [jobs, nodes, users] = await Promise.all(
    ['#/jobs?q=silent', '#/nodes', '#/users'].map(async (place) => {
      const page = await openWindow(browser);
      await signIn(page, belfry, 'admin', belfry.password, place);
      await page.locator('tr[data-row], tbody tr').first().waitFor();
      return page;
    }),
  );
  const row = jobs.locator('tr[data-row]', { hasText: 'silent' });
  await row.getByText('running', { exact: true }).waitFor();
  belfry.freeze();
  // Also on a page that follows nothing and asks nothing by itself.
  await Promise.all([jobs, nodes, users].map((page) => page.getByText('The server does not answer.').first().waitFor()));
  await row.getByText(/^running\sas of \d\d:\d\d:\d\d$/).waitFor();
  await nodes.locator('tr[data-row]').first().getByText(/^Takes work\sas of \d\d:\d\d:\d\d$/).waitFor();
  assert.equal(await jobs.locator('header.bar').getByText('Not live').count(), 1);
  await shot(jobs, 'server-silent');
  belfry.thaw();
  await Promise.all([jobs, nodes, users].map((page) => page.getByText('The server does not answer.').first().waitFor({ state: 'detached' })));
  // What is told from now on is heard again.
  await jobs.locator('header.bar').getByText(/^Live/).waitFor({ state: 'attached' });
  await belfry.api('POST', '/jobs/default/silent/kill', {});
  const run = await ended(belfry, id);
  await row.getByText('running').waitFor({ state: 'detached' });
  await row.getByText(run.state, { exact: false }).first().waitFor();
  for (const page of [jobs, nodes, users]) {
    assert.deepEqual(page.errors, []);
    await page.context().close();
  }
});
