// What is one's own: how the console looks, its language, one's password.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { until } from './belfry.mjs';
import { openWindow, signIn, startBoth, violations, visit } from './browser.mjs';
import { serveUnder } from './serve.mjs';

let belfry;
let browser;

before(async () => {
  [belfry, browser] = await startBoth();
});
after(async () => {
  await browser?.close();
  await belfry?.stop();
});

test('light or dark and the language are chosen, and stay so', async () => {
  const page = await openWindow(browser);
  await signIn(page, belfry);
  const ground = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
  const light = await ground();
  await page.locator('header summary').click();
  await page.getByLabel('Dark').check();
  const dark = await ground();
  assert.notEqual(dark, light);
  await page.getByLabel('中文').check();
  await page.getByRole('navigation', { name: '页面' }).getByRole('link', { name: '任务' }).waitFor();
  assert.deepEqual(await violations(page), []);
  await page.reload();
  await page.getByRole('link', { name: '任务' }).first().waitFor();
  assert.deepEqual([await ground(), await page.evaluate(() => document.documentElement.lang)], [dark, 'zh-CN']);
  await page.locator('header summary').click();
  await page.getByLabel('浅色').check();
  await page.getByLabel('English').check();
  await page.getByRole('link', { name: 'Jobs' }).first().waitFor();
  assert.deepEqual([await ground(), await page.evaluate(() => document.documentElement.lang)], [light, 'en']);
  assert.deepEqual(page.errors, []);
  await page.context().close();
});

test('under a path of a proxy everything works as it does without one', async () => {
  const proxy = await serveUnder('/ops/belfry', belfry.url);
  try {
    await belfry.api('POST', '/jobs', { name: 'proxied', action: { shell: { command: 'echo going; sleep infinity' } } });
    const page = await openWindow(browser);
    const astray = [];
    page.on('response', (answer) => answer.status() === 404 && astray.push(answer.url()));
    await signIn(page, { ...belfry, url: proxy.url }, 'admin', belfry.password, '#/jobs/default/proxied');
    await page.locator('header.bar').getByText(/^Live/).waitFor({ state: 'attached' });
    // What is read, what is done, what is told, what is streamed, what is downloaded, and what is a file of its own.
    await page.getByRole('button', { name: 'Pause', exact: true }).click();
    await page.getByRole('button', { name: 'Resume', exact: true }).waitFor();
    const { id } = await belfry.api('POST', '/jobs/default/proxied/run', {});
    await page.locator(`a[href$="#/runs/${id}"]`).first().click();
    await page.getByRole('log').getByText('going').waitFor();
    const coming = page.waitForEvent('download');
    await page.getByRole('link', { name: 'Download' }).click();
    assert.ok((await coming).url().startsWith(`${proxy.url}/api/v1/`));
    await visit(page, belfry, '#/jobs/default/proxied/edit');
    await until('the document is in the form', async () => (await page.locator('main :is(input, textarea)').evaluateAll((fields) => fields.map((field) => field.value))).includes('echo going; sleep infinity'));
    assert.ok(page.url().startsWith(`${proxy.url}/#/`), page.url());
    await page.reload();
    await page.locator('header.bar nav').waitFor();
    assert.deepEqual([astray, page.errors], [[], []]);
    await belfry.api('POST', `/runs/${id}/kill`);
    await page.context().close();
  } finally {
    await proxy.stop();
  }
});

test('a password is changed, and only the new one is taken', async () => {
  const [was, is] = ['the-first-password', 'the-second-password'];
  await belfry.api('POST', '/users', { name: 'paula', password: was, grants: { '*': 'viewer' } });
  const page = await openWindow(browser);
  await signIn(page, belfry, 'paula', was);
  await visit(page, belfry, '#/password');
  const fill = async (current, wanted, again) => {
    await page.getByLabel('Current password').fill(current);
    await page.getByLabel('New password', { exact: true }).fill(wanted);
    await page.getByLabel('New password again').fill(again);
  };
  const change = page.getByRole('button', { name: 'Change', exact: true });
  await fill(was, is, `${is}x`);
  await page.getByText('The two new passwords differ.').waitFor();
  assert.equal(await change.isDisabled(), true);
  await fill('not this one', is, is);
  await change.click();
  await page.locator('main [role=alert]').waitFor();
  await fill(was, is, is);
  await change.click();
  await page.getByText('The password was changed').waitFor();
  await page.locator('input[autocomplete=username]').fill('paula');
  await page.locator('input[type=password]').fill(was);
  await page.locator('form button.primary').click();
  await page.locator('[role=alert]').waitFor();
  await page.locator('input[type=password]').fill(is);
  await page.locator('form button.primary').click();
  await page.locator('header.bar nav').waitFor();
  assert.deepEqual(page.errors, []);
  await page.context().close();
});
