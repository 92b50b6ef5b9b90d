// The editor: every field from form to server to YAML to form, what cannot be read or is refused, two editors, and changes that must not be lost.
import assert from 'node:assert/strict';
import { after, afterEach, before, beforeEach, test } from 'node:test';

import { load } from 'js-yaml';

import { until } from './belfry.mjs';
import { openWindow, settled, shot, signIn, startBoth, violations, visit } from './browser.mjs';
import { fill, leaves, openGroups, put, sampleOf, shown, valueAt } from './fields.mjs';

let belfry;
let browser;
let page;
const NOT_YET = ['owners', 'notify', 'expect', 'action.http', 'action.grpc', 'action.handler'];
const notYet = (path) => NOT_YET.some((known) => path === known || path.startsWith(`${known}.`));
const BASE = { shell: { command: 'true' }, exec: { argv: ['/bin/true'] }, script: { body: 'true' }, service: { command: 'true' } };
/** With the kinds of action that they go with, where not with all; and pairs of which a document has one. */
const ONLY_WITH = { signature: ['exec'] };
const NOT_WITH_SERVICE = /^(schedule|jitter|window|dst|misfire|overlap|timeout|retry|run_on|when_cut_off|placement|output\.fail_on)/;
const EXEC = { action: { exec: { argv: ['/bin/true'] } }, signature: { file: '/bin/true', sha256: 'a'.repeat(64) } };
/** Those that do not go with the others: from what, to what, and which field they take the place of. */
const APART = {
  'action.script.name': { from: { action: { script: { body: 'true' } } }, value: 'stored', instead: 'action.script.body' },
  'action.service.command': { from: { action: { service: { argv: ['/bin/true'] } } }, value: 'sleep 600', instead: 'action.service.argv' },
  'signature.md5': { from: EXEC, value: 'b'.repeat(32), instead: 'signature.sha256' },
  run_on: { from: {}, value: 'home' },
};

before(async () => {
  [belfry, browser] = await startBoth();
});
// A window for each: unsaved changes of one test that failed must not hold up the next.
beforeEach(async () => {
  page = await openWindow(browser);
  await signIn(page, belfry);
});
afterEach(() => page.context().close());
after(async () => {
  await browser?.close();
  await belfry?.stop();
});

const job = (name, more = {}) => belfry.api('POST', '/jobs', { name, action: { shell: { command: 'true' } }, ...more });
const yamlPane = () => page.getByRole('textbox', { name: 'YAML' });
const save = async () => {
  await page.getByRole('button', { name: 'Save', exact: true }).click();
  // From here on a refusal is the answer to what was saved, and not to something that was typed on the way.
  const refused = page.locator('.verdict .bad, .verdict .trouble');
  await until('it is saved or refused', async () => !page.url().endsWith('/edit') && !page.url().endsWith('/new/job') || (await refused.count()) > 0);
  assert.deepEqual(await refused.allTextContents(), []);
};

for (const kind of Object.keys(BASE)) {
  test(`every field with the action ${kind}: form, server, YAML, form`, async () => {
    const name = `fields-${kind}`;
    await job(name, { action: { [kind]: BASE[kind] } });
    await visit(page, belfry, `#/jobs/default/${name}/edit`);
    await openGroups(page);
    const wanted = {};
    const chosen = leaves.filter(({ path }) => {
      if (path === 'name' || notYet(path) || path in APART) return false;
      if (path.startsWith('action.')) return path.startsWith(`action.${kind}.`);
      if (kind === 'service' && NOT_WITH_SERVICE.test(path)) return false;
      return ONLY_WITH[path.split('.')[0]]?.includes(kind) ?? true;
    });
    for (const leaf of chosen) {
      const value = sampleOf(leaf);
      await fill(page, leaf, value);
      put(wanted, leaf.path, value);
    }
    // A service has either.
    if (kind === 'service') await page.locator('[data-field="action.service.command"] textarea').fill('');
    await save();
    const { document } = await belfry.api('GET', `/jobs/default/${name}`);
    for (const { path } of chosen) assert.deepEqual(valueAt(document, path), valueAt(wanted, path), `saved: ${path}`);

    await visit(page, belfry, `#/jobs/default/${name}/edit`);
    await openGroups(page);
    assert.deepEqual(load(await yamlPane().inputValue()), document, 'the YAML is the document');
    for (const leaf of chosen) assert.deepEqual(await shown(page, leaf), valueAt(wanted, leaf.path), `shown: ${leaf.path}`);
    assert.deepEqual(page.errors, []);
  });
}

test('an empty argument stays when another one is edited', async () => {
  await job('empty-argument', { action: { exec: { argv: ['printf', '%s|', '', 'x'] } } });
  await visit(page, belfry, '#/jobs/default/empty-argument/edit');
  const argument = (index) => page.locator('[data-field="action.exec.argv"] textarea').nth(index);
  await argument(3).fill('y');
  await save();
  const argv = async () => (await belfry.api('GET', '/jobs/default/empty-argument')).document.action.exec.argv;
  assert.deepEqual(await argv(), ['printf', '%s|', '', 'y']);
  // One that is not wanted is taken away.
  await visit(page, belfry, '#/jobs/default/empty-argument/edit');
  await page.getByRole('button', { name: /^Delete .*3$/ }).click();
  await save();
  assert.deepEqual(await argv(), ['printf', '%s|', 'y']);
});

test('the fields that do not go with those above', async () => {
  await belfry.api('PUT', '/scripts/default/stored', { body: 'true' });
  for (const [path, { from, value, instead }] of Object.entries(APART)) {
    const name = `apart-${path.replaceAll(/[^a-z0-9]/g, '-')}`;
    await job(name, from);
    await visit(page, belfry, `#/jobs/default/${name}/edit`);
    await openGroups(page);
    const leaf = leaves.find((one) => one.path === path);
    await fill(page, leaf, value);
    if (instead === 'action.service.argv') await page.locator(`[data-field="${instead}"] button`).first().click();
    else if (instead) await fill(page, { path: instead, kind: 'text' }, '');
    await save();
    assert.equal(valueAt((await belfry.api('GET', `/jobs/default/${name}`)).document, path), value);
    await visit(page, belfry, `#/jobs/default/${name}/edit`);
    await openGroups(page);
    assert.equal(await shown(page, leaf), value);
  }
});

test('what the form marks as not supported yet is what the server refuses so', async () => {
  const refused = [];
  for (const path of new Set(leaves.map((leaf) => (leaf.path.startsWith('action.') ? leaf.path.split('.').slice(0, 2).join('.') : leaf.path.split('.')[0])))) {
    const document = { name: 'x', action: path.startsWith('action.') ? {} : { shell: { command: 'true' } } };
    for (const leaf of leaves.filter((one) => one.path === path || one.path.startsWith(`${path}.`))) put(document, leaf.path, sampleOf(leaf));
    const { body } = await belfry.api('POST', '/apply', { documents: [document], dry_run: true }, { status: true });
    if (/not supported yet/.test(body?.error?.message ?? '')) refused.push(path);
  }
  assert.deepEqual(refused.toSorted(), NOT_YET.toSorted());
});

test('a new job from YAML; what cannot be read is said at its line and the form keeps its state', async () => {
  await visit(page, belfry, '#/new/job');
  await yamlPane().fill('name: typed\nschedule: "*/5 * * * *"\naction:\n  shell:\n    command: echo hi\nretry: {attempts: 2}\n');
  assert.equal(await page.locator('[data-field=name] input').inputValue(), 'typed');
  assert.equal(await page.locator('[data-field="retry.attempts"] input').inputValue(), '2');
  await page.getByText('every 5 minutes').waitFor();
  await page.getByText('The server would take it.').waitFor();
  await yamlPane().fill('name: typed\nschedule: "*/5 * * * *\naction:\n  shell: [\n');
  await page.getByText(/Line \d+ cannot be read/).first().waitFor();
  assert.equal(await page.locator('[data-field=name] input').inputValue(), 'typed');
  assert.equal(await page.locator('[data-field=name] input').isDisabled(), true);
  assert.equal(await page.getByRole('button', { name: 'Save', exact: true }).isDisabled(), true);
  assert.deepEqual(await violations(page), []);
  await shot(page, 'edit-unreadable');
  await page.getByRole('button', { name: "Write the form's state into the YAML" }).click();
  assert.match(await yamlPane().inputValue(), /command: echo hi/);
  await save();
  const { document } = await belfry.api('GET', '/jobs/default/typed');
  assert.equal(document.retry.attempts, 2);
});

test('the server refuses at the field, in the form and in the YAML, while one types', async () => {
  await job('refused');
  await visit(page, belfry, '#/jobs/default/refused/edit');
  await openGroups(page);
  await page.locator('[data-field="retry.attempts"] input').fill('0');
  await page.locator('[data-field="retry.attempts"] .refused').waitFor();
  assert.equal(await page.locator('[data-field="retry.attempts"] input').getAttribute('aria-invalid'), 'true');
  assert.match(await page.locator('.numbers .bad').textContent(), /\d/);
  assert.deepEqual(await violations(page), []);
  await shot(page, 'edit-refused');
  await page.locator('[data-field="retry.attempts"] input').fill('');
  await page.locator('[data-field="timezone"] input').fill('Mars/Olympus');
  await page.locator('[data-field="timezone"] .refused').waitFor();
  await page.locator('[data-field="timezone"] input').fill('Europe/Berlin');
  await page.locator('[data-field=schedule] input').first().fill('30 2 28 3 *');
  await page.getByText('Clock change:').first().waitFor();
  await page.getByText('Clock of the job (Europe/Berlin)').waitFor();
  await page.getByText('Your clock (Asia/Shanghai)').waitFor();
  await shot(page, 'edit-preview');
  await save();
});

test('the second of two editors sees three versions and decides', async () => {
  await job('contested', { description: 'base' });
  const other = await openWindow(browser);
  await signIn(other, belfry);
  const description = (on) => on.locator('[data-field=description] input');
  let base = 'base';
  for (const decide of ['Go on editing', 'Take theirs, forget mine', 'Save mine over theirs']) {
    await visit(page, belfry, '#/jobs');
    await visit(page, belfry, '#/jobs/default/contested/edit');
    await visit(other, belfry, '#/jobs');
    await visit(other, belfry, '#/jobs/default/contested/edit');
    await description(other).fill(`theirs ${decide}`);
    await other.getByRole('button', { name: 'Save', exact: true }).click();
    await other.waitForURL(/contested$/);
    await description(page).fill(`mine ${decide}`);
    await page.getByRole('button', { name: 'Save', exact: true }).click();
    const dialog = page.getByRole('dialog');
    await dialog.getByText('admin saved revision').waitFor();
    assert.equal(await page.getByText('These are your unsaved changes from before.').count(), 0);
    assert.deepEqual(await violations(page), []);
    const [theirs, mine] = [`theirs ${decide}`, `mine ${decide}`];
    for (const [view, gone, come] of [['What you changed', base, mine], ['Theirs against yours', theirs, mine], ['What they changed', base, theirs]]) {
      await dialog.getByLabel(view).check();
      const diff = dialog.getByRole('group', { name: view });
      await diff.waitFor();
      const texts = (kind) => diff.locator(`tr.${kind} .text`).allTextContents();
      assert.deepEqual([await texts('gone'), await texts('new')], [[`description: ${gone}`], [`description: ${come}`]], `${view}, then ${decide}`);
    }
    await shot(page, 'edit-conflict');
    await dialog.getByRole('button', { name: decide }).click();
    await dialog.waitFor({ state: 'detached' });
    if (decide === 'Go on editing') {
      assert.equal(await description(page).inputValue(), `mine ${decide}`);
      await page.getByRole('link', { name: 'Cancel' }).click();
      await page.getByRole('button', { name: 'Leave and forget the changes' }).click();
      await page.waitForURL(/contested$/);
    } else if (decide === 'Save mine over theirs') {
      await page.waitForURL(/contested$/);
      assert.equal((await belfry.api('GET', '/jobs/default/contested')).document.description, `mine ${decide}`);
    } else {
      assert.equal(await description(page).inputValue(), `theirs ${decide}`);
    }
    base = (await belfry.api('GET', '/jobs/default/contested')).document.description;
  }
  await other.context().close();
});

test('unsaved changes are asked about when one leaves, and are there again after a reload', async () => {
  await job('unsaved');
  await visit(page, belfry, '#/jobs/default/unsaved/edit');
  await page.locator('[data-field=description] input').fill('not yet saved');
  await page.evaluate(() => (location.hash = '#/runs'));
  const dialog = page.getByRole('dialog');
  await dialog.getByText('Leave without saving?').waitFor();
  await dialog.getByRole('button', { name: 'Cancel' }).click();
  assert.match(page.url(), /unsaved\/edit$/);
  await until('the draft is kept', () => page.evaluate(() => Object.keys(sessionStorage).some((key) => key.includes('unsaved'))));
  page.once('dialog', (asked) => asked.accept());
  await page.reload();
  await settled(page, '#/jobs/default/unsaved/edit');
  await page.getByText('These are your unsaved changes from before.').waitFor();
  assert.equal(await page.locator('[data-field=description] input').inputValue(), 'not yet saved');
  await page.getByRole('button', { name: 'Forget them' }).click();
  assert.equal(await page.locator('[data-field=description] input').inputValue(), '');
  await visit(page, belfry, '#/jobs');
  assert.match(page.url(), /#\/jobs$/);
  assert.deepEqual(page.errors, []);
});
