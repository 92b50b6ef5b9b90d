// What whoever keeps a cluster does: nodes that join, drain and leave, services that move, scripts, users, tokens, audit.
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { after, afterEach, before, beforeEach, test } from 'node:test';

import { ended, until } from './belfry.mjs';
import { openWindow, shot, signIn, startBoth, violations, visit } from './browser.mjs';

let belfry;
let browser;
let page;

before(async () => {
  [belfry, browser] = await startBoth({ kind: 'server' });
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

const button = (name, within = page) => within.getByRole('button', { name, exact: true });
const dialog = () => page.getByRole('dialog');
const confirm = (name) => button(name, dialog()).click();

test('nodes join by the line that the console shows', async () => {
  for (const name of ['one', 'two']) {
    await visit(page, belfry, '#/nodes');
    await button('Join a node').click();
    await button('Make a token', dialog()).click();
    const line = await dialog().getByLabel('Line to run on the new machine').inputValue();
    assert.deepEqual(await violations(page), []);
    if (name === 'one') await shot(page, 'nodes-join');
    await button('Copy', dialog()).click();
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), line);
    await button('Close', dialog()).last().click();
    const [, token] = /^belfry agent --join '(.+)'$/.exec(line);
    belfry.run('agent', '--join', token, '--name', name, '--data', join(belfry.folder, name), '--allow-root');
    await page.getByRole('link', { name, exact: true }).waitFor();
  }
  await until('both take work', async () => (await belfry.api('GET', '/nodes')).items.filter((node) => node.healthy).length === 2);
});

test('a service shows where it is, and moves', async () => {
  await belfry.api('POST', '/jobs', { name: 'web', action: { service: { command: 'echo up; sleep infinity' } } });
  const service = async () => (await belfry.api('GET', '/services')).items[0];
  const before = await until('it runs', async () => ((await service())?.state === 'running' ? service() : null));
  await visit(page, belfry, '#/services');
  const row = page.getByRole('row').filter({ hasText: 'web' });
  await row.getByText(before.node_name, { exact: true }).waitFor();
  await row.getByText('Running').waitFor();
  await button('Move', row).click();
  const other = before.node_name === 'one' ? 'two' : 'one';
  await dialog().getByLabel('To').selectOption(other);
  assert.deepEqual(await violations(page), []);
  await confirm('Move');
  await row.getByText(other, { exact: true }).waitFor();
  await until('it runs there', async () => {
    const now = await service();
    return now.state === 'running' && now.node_name === other;
  });
});

test('a job is run on the node that is chosen', async () => {
  await belfry.api('POST', '/jobs', { name: 'chosen', action: { shell: { command: 'true' } } });
  for (const name of ['two', 'one']) {
    await visit(page, belfry, '#/jobs/default/chosen');
    await button('Run now').click();
    await dialog().getByLabel('Node').fill(name);
    await confirm('Run now');
    await page.waitForURL(/#\/runs\//);
    const run = await ended(belfry, page.url().split('/').at(-1));
    assert.deepEqual([run.node_name, run.state], [name, 'succeeded']);
    await page.getByRole('link', { name: `on ${name}` }).waitFor();
  }
  await visit(page, belfry, '#/jobs/default/chosen');
  await button('Run now').click();
  await dialog().getByLabel('Node').fill('moon');
  await confirm('Run now');
  await dialog().getByRole('alert').waitFor();
});

test('a node tells what its machine is', async () => {
  const { id } = (await belfry.api('GET', '/nodes')).items.find((one) => one.name === 'one');
  const { host } = await until('its machine is known', async () => {
    const node = await belfry.api('GET', `/nodes/${id}`);
    return node.host && node;
  });
  await visit(page, belfry, `#/nodes/${id}`);
  const section = page.locator('section', { has: page.getByRole('heading', { name: 'Machine' }) });
  const fact = (term) => section.locator(`dt:text-is("${term}") + dd`);
  const size = (bytes) => {
    const steps = Math.min(4, Math.floor(Math.log2(bytes) / 10));
    const value = bytes / 1024 ** steps;
    return `${steps === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${['B', 'KiB', 'MiB', 'GiB', 'TiB'][steps]}`;
  };
  for (const [term, total, left] of [['Memory', 'memory_total', 'memory_available'], ['Disk', 'disk_total', 'disk_free']]) {
    const meter = section.getByRole('meter', { name: term });
    // It is measured again and again, here and there.
    await until(`${term} is as full as the API says`, async () => {
      const { host: now } = await belfry.api('GET', `/nodes/${id}`);
      return Math.abs(Number(await meter.getAttribute('aria-valuenow')) - 100 * (1 - now[left] / now[total])) < 2;
    });
    const told = (await fact(term).textContent()).trim();
    assert.match(told, /^[\d.]+ [KMGT]?i?B of /);
    assert.ok(told.endsWith(` of ${size(host[total])} free`), `${term}: ${told}`);
  }
  assert.match(await fact('Processor').textContent(), new RegExp(`(^|· |\\s)${host.cpus} processors?\\s*$`));
  assert.match(await fact('Load of 1, 5, 15 min').textContent(), /^\d+\.\d\d · \d+\.\d\d · \d+\.\d\d$/);
  assert.equal(await fact('System').textContent(), `${host.os} · ${host.kernel}`);
  assert.ok(Math.abs(Date.parse(await fact('Booted').locator('time').getAttribute('datetime')) - Date.parse(host.booted_at)) < 5_000);
});

test('a node is drained, excluded, changed and deleted', async () => {
  const node = async () => (await belfry.api('GET', '/nodes')).items.find((one) => one.name === 'one');
  await visit(page, belfry, `#/nodes/${(await node()).id}`);
  await button('Drain').click();
  await confirm('Drain');
  await button('Undrain').waitFor();
  assert.equal((await node()).draining, true);
  await button('Undrain').click();
  await button('Drain').waitFor();
  await button('Exclude').click();
  await confirm('Exclude');
  await button('Include').waitFor();
  assert.equal((await node()).excluded, true);
  await button('Include').click();
  await button('Exclude').waitFor();
  await button('Settings').click();
  await dialog().getByLabel('Weight').fill('many');
  await confirm('Save');
  await dialog().getByRole('alert').first().waitFor();
  await dialog().getByLabel('Weight').fill('7');
  await dialog().getByLabel('Slots').fill('5');
  await dialog().getByLabel('Labels').fill('zone=a\ndisk=<b>fast</b>');
  assert.deepEqual(await violations(page), []);
  await confirm('Save');
  await page.getByText('disk=<b>fast</b>').waitFor();
  const { weight, slots, labels } = await node();
  assert.deepEqual({ weight, slots, labels }, { weight: 7, slots: 5, labels: { zone: 'a', disk: '<b>fast</b>' } });
  await button('Delete').click();
  await dialog().getByRole('textbox').fill('one');
  await confirm('Delete');
  await page.waitForURL(/#\/nodes$/);
  await until('it is gone', async () => (await node()) === undefined);
});

test('a script is written, changed by two, compared and deleted', async () => {
  await visit(page, belfry, '#/new/script');
  await page.getByLabel('Name', { exact: true }).fill('clean');
  await page.getByLabel('Script', { exact: true }).fill('echo 1\n');
  await button('Save as a new version').click();
  await page.waitForURL(/#\/scripts\/default\/clean$/);
  await page.getByText('version 1', { exact: true }).waitFor();
  await belfry.api('PUT', '/scripts/default/clean', { body: 'echo theirs\n' });
  await page.getByLabel('Script', { exact: true }).fill('echo mine\n');
  await button('Save as a new version').click();
  await page.getByText('saved version 2 while you were editing').waitFor();
  assert.deepEqual(await violations(page), []);
  await button('Save mine over theirs').click();
  await page.getByText('version 3', { exact: true }).waitFor();
  await page.getByRole('link', { name: 'Show 3' }).click();
  await page.getByRole('group', { name: 'Version 3 against the one before' }).getByText('echo mine').waitFor();
  await belfry.api('POST', '/jobs', { name: 'user-of-it', action: { script: { name: 'clean' } } });
  await page.reload();
  await page.getByRole('link', { name: 'default/user-of-it' }).waitFor();
  await button('Delete').click();
  await dialog().getByRole('textbox').fill('clean');
  await confirm('Delete');
  await page.getByText('it is used by default/user-of-it').waitFor();
  await belfry.api('DELETE', '/jobs/default/user-of-it');
  await button('Delete').click();
  await dialog().getByRole('textbox').fill('clean');
  await confirm('Delete');
  await page.waitForURL(/#\/scripts$/);
});

test('the text of a script that was not saved is there when one has signed in again, and is of the version that it began from', async () => {
  await belfry.api('PUT', '/scripts/default/drafted', { body: 'echo one\n' });
  await visit(page, belfry, '#/scripts/default/drafted');
  const text = page.getByLabel('Script', { exact: true });
  await text.fill('echo mine\n');
  await page.context().clearCookies();
  await button('Save as a new version').click();
  await page.getByText('Your session has ended').waitFor();
  await belfry.api('PUT', '/scripts/default/drafted', { body: 'echo theirs\n' });
  await page.locator('input[autocomplete=username]').fill('admin');
  await page.locator('input[type=password]').fill(belfry.password);
  await page.locator('form button.primary').click();
  await page.getByText('These are your unsaved changes from before.').waitFor();
  assert.equal(await text.inputValue(), 'echo mine\n');
  assert.deepEqual(await violations(page), []);
  await shot(page, 'script-restored');
  await button('Save as a new version').click();
  await page.getByText('saved version 2 while you were editing').waitFor();
  await button('Take theirs, forget mine').click();
  assert.equal(await text.inputValue(), 'echo theirs\n');
  // What one leaves on purpose is forgotten.
  await text.fill('echo never\n');
  await page.evaluate(() => (location.hash = '#/scripts'));
  await confirm('Leave and forget the changes');
  await page.getByRole('heading', { name: 'Scripts', exact: true }).waitFor();
  await visit(page, belfry, '#/scripts/default/drafted');
  assert.equal(await text.inputValue(), 'echo theirs\n');
  assert.equal(await page.getByText('These are your unsaved changes from before.').count(), 0);
});

test('users are made, given roles, kept out, given a new password and deleted', async () => {
  await visit(page, belfry, '#/users');
  await button('New user').click();
  await dialog().getByLabel('Name', { exact: true }).fill('uma');
  await dialog().getByLabel('Password').fill('short');
  await confirm('Save');
  await dialog().getByText('at least 10 characters and').waitFor();
  await dialog().getByLabel('Password').fill('long-enough-for-it');
  assert.deepEqual(await violations(page), []);
  await confirm('Save');
  const row = page.getByRole('row').filter({ hasText: 'uma' });
  await row.waitFor();
  await button('Roles', row).click();
  await button('Add a role', dialog()).click();
  await dialog().getByLabel('Namespace 2').fill('team');
  await dialog().getByLabel('Role 2').selectOption('editor');
  await confirm('Save');
  await row.getByText('team').waitFor();
  assert.deepEqual((await belfry.api('GET', '/users/uma')).grants, { default: 'viewer', team: 'editor' });
  await button('Disable', row).click();
  await confirm('Disable');
  await row.getByText('Disabled').waitFor();
  await button('Enable', row).click();
  await row.getByText('Enabled').waitFor();
  await button('Reset password', row).click();
  await dialog().getByLabel('Password').fill('another-long-one');
  await confirm('Save');
  await dialog().waitFor({ state: 'detached' });
  const login = (password) => fetch(`${belfry.base}/api/v1/login`, { method: 'POST', headers: { 'content-type': 'application/json', 'x-belfry': '1' }, body: JSON.stringify({ user: 'uma', password }) });
  assert.equal((await login('another-long-one')).status, 200);
  await button('Delete', row).click();
  await dialog().getByRole('textbox').fill('uma');
  await confirm('Delete');
  await row.waitFor({ state: 'detached' });
  const own = page.getByRole('row').filter({ hasText: '(you)' });
  await button('Disable', own).click();
  await confirm('Disable');
  await page.getByText('at least one enabled user must stay admin everywhere').waitFor();
});

test('what others do to users and tokens is shown, and what they have taken away is not given back', async () => {
  await belfry.api('POST', '/users', { name: 'una', password: 'long-enough-for-it', grants: { default: 'viewer', team: 'editor' } });
  const { id } = await belfry.api('POST', '/tokens', { label: 'of-una', expires_in: '1d' });
  const tokens = await openWindow(browser);
  await signIn(tokens, belfry, 'admin', belfry.password, '#/tokens');
  const revoked = tokens.getByRole('row').filter({ hasText: 'of-una' });
  await revoked.waitFor();
  await visit(page, belfry, '#/users');
  const row = page.getByRole('row').filter({ hasText: 'una' });
  await row.getByText('team').waitFor();
  await belfry.api('PATCH', '/users/una', { grants: { default: 'viewer' } });
  await belfry.api('DELETE', `/tokens/${id}`);
  await button('Roles', row).click();
  await button('Add a role', dialog()).click();
  await dialog().getByPlaceholder('Namespace, or * for all').last().fill('ops');
  await confirm('Save');
  await dialog().waitFor({ state: 'detached' });
  assert.deepEqual((await belfry.api('GET', '/users/una')).grants, { default: 'viewer', ops: 'viewer' });
  await belfry.api('DELETE', '/users/una');
  await row.waitFor({ state: 'detached' });
  await revoked.waitFor({ state: 'detached' });
  assert.deepEqual(tokens.errors, []);
  await tokens.context().close();
});

test('a token is shown once, works, and is worth nothing when revoked', async () => {
  await visit(page, belfry, '#/tokens');
  await button('New token').click();
  await dialog().getByLabel('Label').fill('ci <i>x</i>');
  await dialog().getByLabel('Expires').selectOption('30d');
  await dialog().getByLabel('Fewer roles than mine').check();
  await dialog().getByLabel('Role 1').selectOption('viewer');
  assert.deepEqual(await violations(page), []);
  await confirm('Make the token');
  const token = await dialog().getByLabel('Secret of the token').inputValue();
  await shot(page, 'tokens-secret');
  assert.equal((await belfry.api('GET', '/jobs', undefined, { token, status: true })).status, 200);
  assert.equal((await belfry.api('GET', '/users', undefined, { token, status: true })).status, 403);
  await confirm('I have kept it');
  assert.equal((await page.content()).includes(token), false);
  const row = page.getByRole('row').filter({ hasText: 'ci <i>x</i>' });
  await button('Revoke', row).click();
  await confirm('Revoke');
  await row.waitFor({ state: 'detached' });
  assert.equal((await belfry.api('GET', '/jobs', undefined, { token, status: true })).status, 401);
});

test('the audit is filtered by the address, read page by page, and shows a change', async () => {
  await belfry.api('POST', '/jobs', { name: 'watched', schedule: '0 1 * * *', action: { shell: { command: 'true' } } });
  await belfry.api('PATCH', '/jobs/default/watched', { schedule: '0 2 * * *' });
  for (let i = 0; i < 110; i++) await belfry.api('PATCH', '/jobs/default/watched', { description: `change ${i}` });
  await visit(page, belfry, '#/audit?action=job.update&actor=cli');
  const rows = page.locator('tbody tr[data-row]');
  // The next page is read when its place comes near.
  await rows.last().scrollIntoViewIfNeeded();
  await page.waitForFunction(() => document.querySelector('table')?.getAttribute('aria-rowcount') > 111);
  assert.equal(await rows.filter({ hasNotText: 'job.update' }).count(), 0);
  await page.getByLabel('Who').fill('nobody-of-that-name');
  await page.waitForURL(/actor=nobody-of-that-name/);
  await page.getByText('Nothing of that kind was changed').waitFor();
  await visit(page, belfry, '#/audit?action=job.update');
  await rows.first().getByRole('button').click();
  await page.waitForURL(/seq=\d+/);
  await dialog().getByRole('group', { name: 'The change' }).getByText('description: change 109').waitFor();
  assert.deepEqual(await violations(page), []);
  await shot(page, 'audit-entry');
});

test('two nodes of one name are offered once, and break no page', async () => {
  for (const folder of ['twin-1', 'twin-2']) {
    const { token } = await belfry.api('POST', '/nodes/join-tokens', {});
    belfry.run('agent', '--join', token, '--name', 'twin', '--data', join(belfry.folder, folder), '--allow-root');
  }
  await until('both are there', async () => (await belfry.api('GET', '/nodes')).items.filter((node) => node.name === 'twin' && node.healthy).length === 2);
  await belfry.api('POST', '/jobs', { name: 'anywhere', action: { shell: { command: 'true' } } });
  const offered = (list) => until(`${list} offers it`, async () => (await page.locator(`${list} option[value=twin]`).count()) === 1);
  await visit(page, belfry, '#/jobs');
  await offered('datalist#nodes');
  await visit(page, belfry, '#/jobs/default/anywhere');
  await button('Run now').click();
  await offered('datalist#run-nodes');
  await page.keyboard.press('Escape');
  await visit(page, belfry, '#/nodes');
  await until('both have a row', async () => (await page.getByRole('link', { name: 'twin', exact: true }).count()) === 2);
  await visit(page, belfry, '#/jobs/default/anywhere/edit');
  await page.locator('main details').evaluateAll((all) => all.forEach((one) => (one.open = true)));
  await until('the editor offers it', async () => (await page.locator('datalist option[value=twin]').count()) > 0);
});
