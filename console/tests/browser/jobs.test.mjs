// What people do with jobs and runs: find, choose many, run, follow, kill, change the state, restore, delete; and a session that ends on the way.
import assert from 'node:assert/strict';
import { after, afterEach, before, beforeEach, test } from 'node:test';

import { ended, until } from './belfry.mjs';
import { openWindow, settled, shot, signIn, startBoth, toasted, violations, visit } from './browser.mjs';

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

const button = (name, within = page) => within.getByRole('button', { name, exact: true });
const dialog = () => page.getByRole('dialog');
const confirm = (name) => button(name, dialog()).click();
const documentOf = async (path) => (await belfry.api('GET', `/jobs/${path}`)).document;
/** In a namespace of its own, so that each test counts its own rows. */
const job = (namespace, name, command = 'true', more = {}) => belfry.api('POST', '/jobs', { namespace, name, action: { shell: { command } }, ...more });

test('the palette opens with / and finds a job', async () => {
  await job('search', 'needle');
  await visit(page, belfry, '#/jobs');
  await page.keyboard.press('/');
  await page.getByRole('combobox', { name: 'Search' }).fill('needle');
  await page.getByRole('option', { name: /search\/needle/ }).waitFor();
  // What was found for another text is not offered for this one, not even until its answer is there.
  const left = await page.getByRole('combobox', { name: 'Search' }).evaluate(async (input) => {
    input.value = 'needles';
    input.dispatchEvent(new Event('input', { bubbles: true }));
    await new Promise((drawn) => setTimeout(drawn));
    return document.querySelectorAll('[role=option]').length;
  });
  assert.equal(left, 0);
  await page.getByRole('combobox', { name: 'Search' }).fill('needle');
  await page.getByRole('option', { name: /search\/needle/ }).waitFor();
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'needle' }).waitFor();
  // Also with the focus on what takes no text.
  await visit(page, belfry, '#/jobs?namespace=search');
  await page.getByLabel('Choose search/needle').focus();
  await page.keyboard.press('/');
  await page.getByRole('combobox', { name: 'Search' }).waitFor();
});

test('the palette acts, by keyboard alone', async () => {
  await job('default', 'handled', 'true', { schedule: '0 4 * * *' });
  await visit(page, belfry, '#/jobs/default/handled');
  await button('Pause').waitFor();
  // Under the pointer an offer would be chosen.
  await page.mouse.move(0, 0);
  const chosen = page.locator('[role=option][aria-selected=true]');
  const take = async (name, arrow) => {
    await page.keyboard.press('/');
    const search = page.getByRole('combobox');
    await search.waitFor();
    const offers = await page.locator('[role=option] .cut').allTextContents();
    assert.ok(offers.includes(name), `${name} is offered: ${offers}`);
    for (let pressed = 0; pressed < offers.length && (await chosen.locator('.cut').textContent()) !== name; pressed++) await page.keyboard.press(arrow);
    assert.equal(await chosen.locator('.cut').textContent(), name);
    assert.equal(await search.getAttribute('aria-activedescendant'), await chosen.getAttribute('id'));
    await page.keyboard.press('Enter');
    await search.waitFor({ state: 'detached' });
  };
  await take('Pause: default/handled', 'ArrowDown');
  await toasted(page, 'default/handled is paused');
  await button('Resume').waitFor();
  await take('Resume: default/handled', 'ArrowDown');
  await toasted(page, 'default/handled is resumed');
  await button('Pause').waitFor();
  assert.notEqual((await documentOf('default/handled')).enabled, false);
  const ground = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
  const light = await ground();
  await take('Switch between light and dark', 'ArrowDown');
  assert.notEqual(await ground(), light);
  await take('切换为中文', 'ArrowUp');
  await button('暂停').waitFor();
  await take('Switch to English', 'ArrowUp');
  await button('Pause').waitFor();
  await take('Sign out', 'ArrowUp');
  await page.waitForURL(/#\/login/);
  assert.equal(await page.evaluate(async () => (await fetch('api/v1/whoami')).status), 401);
});

test('a palette that is opened right after another was left stays', async () => {
  await visit(page, belfry, '#/jobs');
  await page.mouse.move(0, 0);
  // In one go, as no hand is fast enough to do it each time: the end of the first is told after the second is open.
  const open = await page.evaluate(async () => {
    const press = (key) => (document.activeElement ?? document.body).dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));
    const drawn = () => Promise.resolve().then(() => {});
    press('/');
    for (let i = 0; i < 20; i++) await drawn();
    const [first] = document.querySelectorAll('dialog');
    const told = new Promise((end) => first.addEventListener('close', end));
    press('Enter');
    for (let i = 0; i < 20; i++) await drawn();
    press('/');
    await told;
    for (let i = 0; i < 20; i++) await drawn();
    const [second] = document.querySelectorAll('dialog');
    return second !== undefined && second !== first && second.open;
  });
  assert.equal(open, true);
  await page.getByRole('combobox', { name: 'Search' }).waitFor();
  await page.keyboard.press('Escape');
  await page.getByRole('combobox', { name: 'Search' }).waitFor({ state: 'detached' });
});

test('typing in a filter keeps the focus and is in the address', async () => {
  for (const name of ['keeper', 'other']) await job('typing', name);
  await visit(page, belfry, '#/jobs?namespace=typing');
  await page.getByLabel('Choose typing/keeper').waitFor();
  await page.getByPlaceholder('Name, description or command').click();
  // Each letter when the last one has changed what is shown: the focus must survive every one of them.
  for (const [index, letter] of [...'keeper'].entries()) {
    await page.keyboard.type(letter);
    await page.waitForURL(new RegExp(`q=${'keeper'.slice(0, index + 1)}(&|$)`));
    await settled(page, '#/jobs');
  }
  await until('one row is left', async () => (await page.locator('tr[data-row]').count()) === 1);
  await page.getByLabel('Choose typing/keeper').waitFor();
});

test('a list whose rows differ in height is scrolled to its end', async () => {
  for (let i = 0; i < 320; i++) await job('tall', `${i < 120 ? 'low' : 'of-two-lines'}-${i}`);
  await visit(page, belfry, '#/jobs?namespace=tall');
  await page.getByLabel('Choose tall/low-0').waitFor();
  // As a text does that needs two lines.
  await page.evaluate(() => {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync('tr[data-row]:has(a[href*=of-two-lines]) { height: 61px }');
    document.adoptedStyleSheets.push(sheet);
  });
  await page.mouse.move(300, 500);
  const last = page.locator('tr[data-row][aria-rowindex="321"]');
  await until('the last one is drawn', async () => {
    await page.mouse.wheel(0, 250);
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(done)));
    return (await last.count()) === 1;
  });
  assert.deepEqual(page.errors, []);
  await page.reload();
});

test('who comes back to a long list is where one was', async () => {
  await belfry.api('POST', '/apply', { documents: Array.from({ length: 330 }, (_, n) => ({ namespace: 'far', name: `job-${1000 + n}`, action: { shell: { command: 'true' } } })) });
  await visit(page, belfry, '#/jobs?namespace=far');
  await page.getByLabel('Choose far/job-1000').waitFor();
  await page.mouse.move(300, 500);
  const name = (n) => page.locator('tr[data-row] a.name', { hasText: `job-${1000 + n}` });
  await until('the row is drawn', async () => {
    await page.mouse.wheel(0, 400);
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(done)));
    return (await name(270).count()) === 1;
  });
  const top = () => name(270).evaluate((link) => Math.round(link.getBoundingClientRect().top));
  await name(270).scrollIntoViewIfNeeded();
  const was = await top();
  await name(270).click();
  await page.getByRole('heading', { name: 'job-1270' }).waitFor();
  await page.goBack();
  await until('it stands where it stood', async () => (await name(270).count()) === 1 && Math.abs((await top()) - was) <= 40);
  // Who comes by the menu begins at the top.
  await page.getByRole('navigation', { name: 'Pages' }).getByRole('link', { name: 'Runs' }).click();
  await settled(page, '#/runs');
  await page.getByRole('navigation', { name: 'Pages' }).getByRole('link', { name: 'Jobs' }).click();
  await settled(page, '#/jobs');
  await page.locator('tr[data-row]').first().waitFor();
  assert.equal(await page.evaluate(() => scrollY), 0);
});

test('jobs are found by a label that is typed', async () => {
  for (const [name, labels] of [['web', { tier: 'front', eu: '1' }], ['db', { tier: 'back' }], ['bare', {}]]) await job('labelled', name, 'true', { labels });
  await visit(page, belfry, '#/jobs?namespace=labelled');
  const shown = (...names) => until(`only ${names} are shown`, async () => (await page.locator('tr[data-row] a.name').allTextContents()).map((text) => text.replace('labelled/', '')).sort().join() === names.join());
  await shown('bare', 'db', 'web');
  await page.getByLabel('Label, as team=db').click();
  await page.keyboard.type('tier=front');
  await page.waitForURL(/label=tier(=|%3D)front/);
  await shown('web');
  await page.getByLabel('Label, as team=db').fill('tier=back');
  await page.waitForURL(/label=tier(=|%3D)back/);
  await shown('db');
  await button('Clear').click();
  await page.waitForURL(/#\/jobs$/);
});

test('a space after a word stays while one thinks about the next', async () => {
  await job('typing', 'spaced', 'echo foo bar');
  await visit(page, belfry, '#/jobs?namespace=typing');
  const search = page.getByPlaceholder('Name, description or command');
  await search.click();
  await page.keyboard.type('foo ');
  await page.waitForURL(/q=foo(&|$)/);
  await settled(page, '#/jobs');
  await page.keyboard.type('bar');
  await page.waitForURL(/q=foo(\+|%20)bar/);
  assert.equal(await search.inputValue(), 'foo bar');
  await page.getByLabel('Choose typing/spaced').waitFor();
});

test('keys that write Chinese choose nothing in the palette', async () => {
  await visit(page, belfry, '#/jobs');
  await page.keyboard.press('/');
  const search = page.getByRole('combobox', { name: 'Search' });
  const chosen = () => page.locator('[role=option][aria-selected=true]').textContent();
  const press = (key, isComposing, keyCode = 0) => search.evaluate((input, init) => input.dispatchEvent(new KeyboardEvent('keydown', { bubbles: true, cancelable: true, ...init })), { key, isComposing, keyCode });
  await page.mouse.move(0, 0);
  const first = await chosen();
  await press('ArrowDown', true);
  await press('Enter', true);
  // The one that takes a word, as Safari tells it.
  await press('Enter', false, 229);
  assert.equal(await chosen(), first);
  await press('ArrowDown', false);
  assert.notEqual(await chosen(), first);
  await press('Enter', false);
  await search.waitFor({ state: 'detached' });
});

test('the filter names every namespace, and how many jobs there are is said before they are read', async () => {
  // More than a page of them before the last namespace, which is then on no page that was read.
  await belfry.api('POST', '/apply', { documents: Array.from({ length: 150 }, (_, n) => ({ namespace: 'full', name: `job-${n}`, action: { shell: { command: 'true' } } })) });
  await job('zz-last', 'alone');
  await visit(page, belfry, '#/jobs?namespace=full');
  await page.locator('main h1').locator('..').getByText('150', { exact: true }).waitFor();
  await page.getByLabel('Namespace').selectOption('zz-last');
  await page.getByLabel('Choose zz-last/alone').waitFor();
});

test('many are paused, resumed and labelled at once', async () => {
  for (const name of ['one', 'two']) await job('bulk', name, 'true', { schedule: '0 4 * * *' });
  await visit(page, belfry, '#/jobs?namespace=bulk');
  for (const name of ['one', 'two']) await page.getByLabel(`Choose bulk/${name}`).check();
  await button('Pause (2)').click();
  await confirm('Pause');
  await toasted(page, 'Pause: done for 2 jobs');
  await until('two rows are paused', async () => (await page.getByText('paused', { exact: true }).count()) === 2);
  await page.getByLabel('Choose all').check();
  await button('Resume (2)').click();
  await confirm('Resume');
  await toasted(page, 'Resume: done for 2 jobs');
  await page.getByLabel('Choose bulk/one').check();
  await button('Label… (1)').click();
  await dialog().getByRole('textbox').fill('team=bulk');
  await confirm('Save');
  await toasted(page, 'Label: done for 1 job');
  const document = await documentOf('bulk/one');
  assert.equal(document.labels.team, 'bulk');
  assert.notEqual(document.enabled, false);
});

test('what was refused for one of many stays chosen', async () => {
  for (const name of ['one', 'two', 'three']) await job('partly', name, 'true', { schedule: '0 4 * * *' });
  await visit(page, belfry, '#/jobs?namespace=partly');
  await page.getByLabel('Choose partly/one').waitFor();
  await page.getByLabel('Choose all').check();
  await button('Pause (3)').click();
  await belfry.api('DELETE', '/jobs/partly/two');
  await confirm('Pause');
  await toasted(page, 'Pause: done for 2 jobs');
  await toasted(page, 'Refused for 1 job; partly/two');
  const bar = page.getByRole('group', { name: 'What to do with the chosen jobs' });
  await bar.getByText('1 job chosen').waitFor();
  await until('the two are paused', async () => (await page.getByText('paused', { exact: true }).count()) === 2);
  assert.deepEqual(await page.locator('tr[data-row] input:checked').count(), 0);
  await button('Clear', bar).click();
});

test('after something was done to jobs of several pages each of them shows it', async () => {
  const documents = Array.from({ length: 150 }, (_, n) => ({ namespace: 'pages', name: `job-${1000 + n}`, action: { shell: { command: 'true' } } }));
  await belfry.api('POST', '/apply', { documents });
  await visit(page, belfry, '#/jobs?namespace=pages');
  await page.getByLabel('Choose pages/job-1000').waitFor();
  await page.evaluate(() => scrollTo(0, document.body.scrollHeight));
  await until('both pages are read', async () => {
    await page.evaluate(() => scrollTo(0, document.body.scrollHeight));
    return (await page.getByLabel('Choose pages/job-1149').count()) === 1;
  });
  await page.getByLabel('Choose all').check();
  await button('Pause (150)').click();
  await confirm('Pause');
  await toasted(page, 'Pause: done for 150 jobs');
  const row = (name) => page.locator('tr[data-row]', { hasText: name });
  await row('job-1149').getByText('paused', { exact: true }).waitFor();
  await page.evaluate(() => scrollTo(0, 0));
  await row('job-1000').getByText('paused', { exact: true }).waitFor();
});

test('what was chosen is let go at once', async () => {
  for (const name of ['one', 'two']) await job('chosen', name);
  await visit(page, belfry, '#/jobs?namespace=chosen');
  for (const name of ['one', 'two']) await page.getByLabel(`Choose chosen/${name}`).check();
  const bar = page.getByRole('group', { name: 'What to do with the chosen jobs' });
  await bar.getByText('2 jobs chosen').waitFor();
  await button('Clear', bar).click();
  await bar.waitFor({ state: 'detached' });
  assert.equal(await page.locator('main input[type=checkbox]:checked').count(), 0);
  // It is not the filter's: that stays.
  assert.match(page.url(), /namespace=chosen/);
});

test('a row tells the last results, when the job fires next, and how often it ran', async () => {
  const at = new Date(Date.now() + 50 * 60_000).toISOString().replace(/\.\d+/, '');
  await job('rows', 'told', 'exit $E', { schedule: `@at ${at}` });
  for (const E of ['0', '3', '0']) await ended(belfry, (await belfry.api('POST', '/jobs/rows/told/run', { env: { E } })).id);
  // The record of a run follows its end.
  await until('three runs are recorded', async () => (await belfry.api('GET', '/jobs/rows/told')).runs === 3);
  await visit(page, belfry, '#/jobs?namespace=rows');
  const row = page.locator('tr[data-row]', { hasText: 'told' });
  await row.getByRole('img', { name: 'Last 3 runs: 2 Succeeded, 1 Failed', exact: true }).waitFor();
  assert.equal(await row.locator('td').last().textContent(), '3');
  // Where there is room: as it is written, and where it ran last.
  await row.getByText(`@at ${at}`, { exact: true }).waitFor();
  await row.getByText('alpha', { exact: true }).waitFor();
  await shot(page, 'jobs-row');
  const next = row.locator('td').nth(-2).locator('time');
  assert.equal(Date.parse(await next.getAttribute('datetime')), Date.parse(at));
  const first = await next.textContent();
  assert.match(first, /^in \d+m \d\ds$/);
  await until('it counts down', async () => (await next.textContent()) !== first);
  assert.match(await next.textContent(), /^in \d+m \d\ds$/);
});

test('the next 20 fires stand there on both clocks, with what clock changes do to them', async () => {
  await job('default', 'clocks', 'true', { schedule: '30 2 * 3,10 0L', timezone: 'Europe/Berlin', dst: { overlap: 'last' } });
  const { items: fires } = await belfry.api('GET', '/jobs/default/clocks/fires?limit=20');
  await visit(page, belfry, '#/jobs/default/clocks');
  const table = page.locator('section', { has: page.getByRole('heading', { name: 'Next fires' }) }).locator('table');
  assert.deepEqual(await table.locator('th').allTextContents(), ['In', 'In Europe/Berlin', 'Yours (Asia/Shanghai)']);
  const rows = await table.locator('tr:has(time)').evaluateAll((all) => all.map((row) => [row.querySelector('time').dateTime, ...[...row.querySelectorAll('td.tabular')].map((cell) => cell.textContent)]));
  const onClock = (text) => text.slice(0, 19).replace('T', ' ');
  assert.equal(rows.length, 20);
  assert.deepEqual(rows, fires.map(({ at, local }) => [at, onClock(local), onClock(new Date(Date.parse(at) + 8 * 3_600_000).toISOString())]));
  // From each to the next the clock was changed once, and each stands in the hour of a change; to the first it may have been.
  const changes = await table.locator('tr.warn:not(.note)').allTextContents();
  const offsets = fires.map(({ local }) => local.slice(19));
  const now = new Intl.DateTimeFormat('en', { timeZone: 'Europe/Berlin', timeZoneName: 'longOffset' }).format().slice(-6);
  const before = [now, ...offsets];
  const told = offsets.flatMap((to, index) => (to === before[index] ? [] : [`The clock of this zone changes here: ${before[index]} becomes ${to}`]));
  assert.deepEqual(changes.map((text) => text.trim()), told);
  assert.deepEqual(new Set(offsets), new Set(['+01:00', '+02:00']));
  const notes = (text) => table.locator('tr.note', { hasText: text }).count();
  assert.deepEqual([await notes('This time of day does not exist on that day'), await notes('comes twice on that day: this is the second.')], [10, 10]);
});

test('many are run at once, and lose a label at once', async () => {
  for (const name of ['one', 'two']) await job('crowd', name, 'true', { labels: { team: 'db', keep: 'this' } });
  await visit(page, belfry, '#/jobs?namespace=crowd&label=team%3Ddb');
  await page.getByLabel('Choose crowd/two').waitFor();
  await page.getByLabel('Choose all').check();
  await button('Run now (2)').click();
  await confirm('Run now');
  await toasted(page, 'Run now: done for 2 jobs');
  for (const name of ['one', 'two']) await until(`${name} has run`, async () => (await belfry.api('GET', `/runs?job=crowd/${name}`)).items[0]?.state === 'succeeded');
  // Nobody asked for the list again: the stream tells how they ended.
  await until('both rows say so', async () => (await page.locator('tr[data-row]').getByText('Succeeded').count()) === 2);
  await page.getByLabel('Choose all').check();
  await button('Label… (2)').click();
  await dialog().getByRole('textbox').fill('team');
  await confirm('Save');
  await toasted(page, 'Label: done for 2 jobs');
  for (const name of ['one', 'two']) assert.deepEqual((await documentOf(`crowd/${name}`)).labels, { keep: 'this' });
});

test('jobs are filtered by state and by node, as the address says', async () => {
  for (const [name, command, more] of [['good', 'true'], ['bad', 'exit 1'], ['going', 'sleep infinity'], ['idle', 'true'], ['halted', 'true', { enabled: false }]]) await job('sieve', name, command, more);
  for (const name of ['good', 'bad']) await ended(belfry, (await belfry.api('POST', `/jobs/sieve/${name}/run`, {})).id);
  const { id } = await belfry.api('POST', '/jobs/sieve/going/run', {});
  await until('it runs', async () => (await belfry.api('GET', `/runs/${id}`)).state === 'running');
  await visit(page, belfry, '#/jobs?namespace=sieve');
  const shown = (...names) =>
    until(`only ${names} are shown`, async () => {
      const links = await page.locator('tr[data-row] a.name').allTextContents();
      return links.map((text) => text.replace('sieve/', '')).sort().join() === names.sort().join();
    });
  await shown('good', 'bad', 'going', 'idle', 'halted');
  for (const [state, names] of Object.entries({ failing: ['bad'], running: ['going'], paused: ['halted'], enabled: ['good', 'bad', 'going', 'idle'] })) {
    await page.getByLabel('State').selectOption(state);
    await page.waitForURL(new RegExp(`state=${state}`));
    await shown(...names);
  }
  // What comes to be so while one looks, and what ceases to be.
  await page.getByLabel('State').selectOption('running');
  await shown('going');
  const other = await job('sieve', 'coming', 'sleep infinity').then(() => belfry.api('POST', '/jobs/sieve/coming/run', {}));
  await shown('going', 'coming');
  await page.getByLabel('State').selectOption('failing');
  await shown('bad');
  await belfry.api('POST', `/runs/${other.id}/kill`);
  await ended(belfry, other.id);
  await belfry.api('DELETE', '/jobs/sieve/coming');
  await belfry.api('PATCH', '/jobs/sieve/idle', { action: { shell: { command: 'exit 1' } } });
  await ended(belfry, (await belfry.api('POST', '/jobs/sieve/idle/run', {})).id);
  await shown('bad', 'idle');
  await belfry.api('DELETE', '/jobs/sieve/idle');
  await page.getByLabel('State').selectOption('');
  await page.getByLabel('Node').fill('alpha');
  await page.waitForURL(/node=alpha/);
  // Where a run of it has ended.
  await shown('good', 'bad');
  await page.getByLabel('Node').fill('moon');
  await page.getByText('No job is like that').waitFor();
  await button('Clear').click();
  await page.waitForURL(/#\/jobs$/);
  await belfry.api('POST', '/jobs/sieve/going/kill', {});
});

test('one job is paused and resumed, and all its runs are killed', async () => {
  await job('default', 'single', 'sleep infinity', { schedule: '0 4 * * *', overlap: 'allow' });
  const runs = [];
  for (let i = 0; i < 2; i++) runs.push((await belfry.api('POST', '/jobs/default/single/run', {})).id);
  for (const id of runs) await until('it runs', async () => (await belfry.api('GET', `/runs/${id}`)).state === 'running');
  await visit(page, belfry, '#/jobs/default/single');
  await button('Pause').click();
  await toasted(page, 'default/single is paused');
  await page.locator('main header').getByText('Paused', { exact: true }).waitFor();
  assert.equal((await documentOf('default/single')).enabled, false);
  await button('Resume').click();
  await toasted(page, 'default/single is resumed');
  await button('Pause').waitFor();
  assert.notEqual((await documentOf('default/single')).enabled, false);
  await page.locator('main header').getByText('2 running').waitFor();
  await button('Kill all runs').click();
  await confirm('Kill all runs');
  await toasted(page, '2 runs told to end');
  for (const id of runs) assert.equal((await ended(belfry, id)).state, 'killed');
  await page.locator('main header').getByText('running').waitFor({ state: 'detached' });
  await until('the table says so', async () => (await page.locator('tbody').getByText('Killed', { exact: true }).count()) === 2);
});

test('why a job did not run is asked where there is no run', async () => {
  await job('default', 'asked', 'true', { schedule: '0 4 * * *', timezone: 'UTC' });
  await visit(page, belfry, '#/jobs/default/asked');
  const section = page.locator('section', { has: page.getByRole('heading', { name: 'Why at…' }) });
  // Before the job was: on the clock of the viewer, which is eight hours ahead.
  await section.locator('input').fill('2026-01-02T12:00:00');
  await page.waitForURL(/why=2026-01-02T04/);
  const told = async () => (await belfry.api('GET', '/explain?job=default/asked&at=2026-01-02T04:00:00Z')).sentences;
  await section.locator('li').first().waitFor();
  assert.deepEqual(await section.locator('li').allTextContents(), await told());
  assert.deepEqual(await violations(page), []);
  await shot(page, 'job-why');
  // While another instant is asked the answer for this one is not shown, and what comes is told to who hears.
  const [was] = await section.locator('li').elementHandles();
  const live = await section.locator('ul').evaluate((list) => list.closest('[aria-live=polite]') !== null);
  await section.locator('input').fill('2026-01-03T12:00:00');
  await page.waitForURL(/why=2026-01-03T04/);
  await section.locator('li').first().waitFor();
  assert.deepEqual([live, await was.evaluate((item) => item.isConnected)], [true, false]);
  await section.locator('input').fill('2026-01-02T12:00:00');
  await page.waitForURL(/why=2026-01-02T04/);
  await section.locator('li').first().waitFor();
  // It is in the address.
  await page.reload();
  await section.locator('li').first().waitFor();
  assert.match(await section.locator('input').inputValue(), /^2026-01-02T12:00(:00)?$/);
  await section.locator('input').fill('');
  await section.locator('li').first().waitFor({ state: 'detached' });
});

test('the chart of durations has a point for each run, which leads there', async () => {
  await job('default', 'charted', 'sleep $N');
  const runs = [];
  for (const N of ['0', '2', '1']) runs.push(await ended(belfry, (await belfry.api('POST', '/jobs/default/charted/run', { env: { N } })).id));
  await visit(page, belfry, '#/jobs/default/charted');
  const chart = page.getByRole('group', { name: /^Durations of the last 3 runs: half under .+, 95 % under / });
  await chart.waitFor();
  const points = chart.locator('a');
  assert.equal(await points.count(), 3);
  // Oldest first; what took longer stands higher, however long it took on this machine.
  const tops = await points.evaluateAll((all) => all.map((one) => one.getBoundingClientRect().top));
  const told = await points.evaluateAll((all) => all.map((one) => one.getAttribute('href')));
  assert.deepEqual(told, runs.map((run) => `#/runs/${run.id}`));
  const byDuration = runs.map((run, index) => ({ ms: run.duration_ms, top: tops[index] })).toSorted((a, b) => a.ms - b.ms);
  assert.ok(byDuration.every(({ top }, index) => index === 0 || top < byDuration[index - 1].top), JSON.stringify(byDuration));
  await page.getByText(/^p50 .+ p95 /).waitFor();
  await points.nth(1).click();
  await page.waitForURL(new RegExp(runs[1].id));
});

test('a job is run with an environment, and what it printed is shown', async () => {
  await job('default', 'echoing', 'echo "A is $A"');
  await visit(page, belfry, '#/jobs/default/echoing');
  await button('Run now').click();
  await page.getByLabel('Environment for this run').fill('no equals sign');
  await confirm('Run now');
  await page.getByText('This line is not KEY=VALUE').waitFor();
  await page.getByLabel('Environment for this run').fill('A=1');
  await confirm('Run now');
  await page.getByRole('log').getByText('A is 1').waitFor();
});

test('a run that is going keeps another one out, unless that one is forced', async () => {
  await job('default', 'alone', 'sleep infinity');
  const { id } = await belfry.api('POST', '/jobs/default/alone/run', {});
  await until('it runs', async () => (await belfry.api('GET', `/runs/${id}`)).state === 'running');
  for (const [force, state] of [[false, 'Skipped'], [true, 'Running']]) {
    await visit(page, belfry, '#/jobs/default/alone');
    await button('Run now').click();
    await dialog().getByLabel('Also when a run is going that it should not overlap').setChecked(force);
    await confirm('Run now');
    await page.waitForURL((url) => url.hash.startsWith('#/runs/'));
    await page.locator('main header').getByText(state, { exact: true }).waitFor();
    assert.notEqual(page.url().split('/').at(-1), id);
  }
  await belfry.api('POST', '/jobs/default/alone/kill', {});
});

test('output follows, is searched, and the run is killed and run again', async () => {
  await job('default', 'talker', 'while :; do echo "said $((i += 1))."; sleep 0.25; done');
  const { id } = await belfry.api('POST', '/jobs/default/talker/run', {});
  await visit(page, belfry, `#/runs/${id}`);
  // What is printed after the page was opened is shown too; the log itself holds the last lines only.
  const lines = async () => Number.parseInt(await page.getByText(/^\d+ lines?$/).textContent(), 10);
  const atFirst = await lines();
  await until('more lines came', async () => (await lines()) >= atFirst + 12);
  await page.getByLabel('Search in the output').fill('said 3.');
  await page.getByText('1 / 1').waitFor();
  await shot(page, 'run-search');
  await button('Kill').click();
  await confirm('Kill');
  await page.locator('header').getByText('Killed').waitFor();
  assert.equal((await ended(belfry, id)).state, 'killed');
  await button('Run again').click();
  await page.waitForURL((url) => !url.hash.includes(id));
  await page.getByText('runs this one again').waitFor();
  await belfry.api('POST', '/jobs/default/talker/kill', {});
});

test('saved state is read and changed', async () => {
  await job('default', 'keeper', 'echo N=41 > $BELFRY_STATE');
  await ended(belfry, (await belfry.api('POST', '/jobs/default/keeper/run', {})).id);
  await visit(page, belfry, '#/jobs/default/keeper?tab=state');
  await page.getByText('41', { exact: true }).waitFor();
  await button('Edit').click();
  await page.getByLabel('Value').fill('43');
  await button('Save').click();
  await toasted(page, 'The state is saved');
  assert.equal((await belfry.api('GET', '/jobs/default/keeper/state')).values.N, '43');
  // What a run keeps meanwhile is shown, and not written over by whoever began before it.
  await button('Edit').click();
  await page.getByLabel('Value').fill('44');
  await ended(belfry, (await belfry.api('POST', '/jobs/default/keeper/run', {})).id);
  await page.getByText(`version ${(await belfry.api('GET', '/jobs/default/keeper/state')).version}`).waitFor();
  await button('Save').click();
  await page.getByRole('alert').waitFor();
  assert.equal((await belfry.api('GET', '/jobs/default/keeper/state')).values.N, '41');
  await page.locator('td').getByText('41', { exact: true }).waitFor();
  assert.deepEqual(await violations(page), []);
  await shot(page, 'job-state-refused');
  await button('Cancel').click();
  await page.getByText('41', { exact: true }).waitFor();
  // Who has seen what was kept meanwhile may have it otherwise all the same.
  await button('Edit').click();
  await page.getByLabel('Value').fill('45');
  await belfry.api('PUT', '/jobs/default/keeper/state', { values: { N: '46' } });
  await button('Save').click();
  await page.locator('td').getByText('46', { exact: true }).waitFor();
  assert.equal(await page.getByLabel('Value').inputValue(), '45');
  await button('Save').click();
  await page.locator('td').getByText('45', { exact: true }).waitFor();
  assert.equal((await belfry.api('GET', '/jobs/default/keeper/state')).values.N, '45');
  await ended(belfry, (await belfry.api('POST', '/jobs/default/keeper/run', {})).id);
  await page.getByText('41', { exact: true }).waitFor();
  // Keys are added and taken away.
  const kept = async () => (await belfry.api('GET', '/jobs/default/keeper/state')).values;
  await button('Edit').click();
  await button('Add').click();
  await page.getByLabel('Key').nth(1).fill('MORE');
  await page.getByLabel('Value').nth(1).fill('than one');
  await button('Save').click();
  await page.locator('td').getByText('than one', { exact: true }).waitFor();
  assert.deepEqual(await kept(), { MORE: 'than one', N: '41' });
  await button('Edit').click();
  await button('Remove N').click();
  await button('Save').click();
  await page.locator('td').getByText('MORE', { exact: true }).waitFor();
  assert.deepEqual(await page.locator('main td code').allTextContents(), ['MORE']);
  assert.deepEqual(await kept(), { MORE: 'than one' });
});

test('of more revisions than a page an old one is found, and only the first has nothing before it', async () => {
  await job('default', 'often');
  for (let i = 2; i <= 52; i++) await belfry.api('PATCH', '/jobs/default/often', { description: `change ${i}` });
  await visit(page, belfry, '#/jobs/default/often?tab=revisions&revision=3');
  await page.getByRole('heading', { name: 'revision 3', exact: true }).waitFor();
  await page.getByRole('group', { name: 'Compared with the revision before' }).getByText('description: change 2').waitFor();
  await page.getByRole('link', { name: /^1 / }).first().click();
  await page.getByText('The first revision').waitFor();
  await visit(page, belfry, '#/jobs/default/often?tab=revisions&revision=99');
  await page.getByText('It may have been removed').waitFor();
});

test('the document of a job is copied', async () => {
  await job('default', 'copied');
  await visit(page, belfry, '#/jobs/default/copied?tab=document');
  await button('Copy').click();
  await button('Copied').waitFor();
  assert.match(await page.evaluate(() => navigator.clipboard.readText()), /^name: copied$/m);
});

test('revisions show what changed and are restored', async () => {
  await job('default', 'revised');
  for (const description of ['changed', 'changed again']) await belfry.api('PATCH', '/jobs/default/revised', { description });
  await visit(page, belfry, '#/jobs/default/revised?tab=revisions');
  const differs = async (name, gone, come) => {
    const diff = page.getByRole('group', { name, exact: true });
    await diff.locator('tr.new', { hasText: come }).waitFor();
    const texts = (kind) => diff.locator(`tr.${kind} .text`).allTextContents();
    assert.deepEqual([await texts('gone'), await texts('new')], [gone, [come]]);
  };
  await differs('Compared with the revision before', ['description: changed'], 'description: changed again');
  assert.equal(await page.getByRole('link', { name: 'Compared with the current one' }).count(), 0);
  await page.getByRole('link', { name: /^2 / }).first().click();
  await differs('Compared with the revision before', [], 'description: changed');
  await page.getByRole('link', { name: 'Compared with the current one' }).click();
  await page.waitForURL(/revision=2&against=current/);
  await differs('Compared with the current one', ['description: changed'], 'description: changed again');
  await page.getByRole('link', { name: /^1 / }).first().click();
  await button('Restore').click();
  await confirm('Restore');
  await toasted(page, 'Revision 1 is restored');
  assert.equal((await documentOf('default/revised')).description ?? '', '');
  // A job that is paused stays so, whatever it was then.
  await belfry.api('POST', '/jobs/default/revised/pause');
  await page.locator('main header').getByText('Paused', { exact: true }).waitFor();
  await page.getByRole('link', { name: /^2 / }).first().click();
  await button('Restore').click();
  await confirm('Restore');
  await toasted(page, 'Revision 2 is restored');
  const { description, enabled } = await documentOf('default/revised');
  assert.deepEqual({ description, enabled }, { description: 'changed', enabled: false });
});

test('what others change in a job is shown, on its page and in the list', async () => {
  await job('others', 'watched', 'true', { schedule: '0 4 * * *' });
  const list = await openWindow(browser);
  await signIn(list, belfry, 'admin', belfry.password, '#/jobs?namespace=others');
  await list.getByLabel('Choose others/watched').waitFor();
  await visit(page, belfry, '#/jobs/others/watched');
  await button('Pause').waitFor();
  await belfry.api('POST', '/jobs/others/watched/pause');
  await page.locator('main header').getByText('Paused', { exact: true }).waitFor();
  await button('Resume').waitFor();
  await list.locator('tr[data-row]', { hasText: 'watched' }).getByText('paused', { exact: true }).waitFor();
  assert.deepEqual(list.errors, []);
  await list.context().close();
});

test('what was refused because somebody else had saved can be done once that is read', async () => {
  await job('default', 'raced');
  await belfry.api('PATCH', '/jobs/default/raced', { description: 'theirs' });
  await visit(page, belfry, '#/jobs/default/raced?tab=revisions&revision=1');
  const told = () => page.evaluate(() => globalThis.toasts);
  /** Until it is taken; at first somebody saves while one is asked whether it is meant. */
  const insist = async (name, ask, taken) => {
    for (let tries = 0; !(await told()).some((toast) => toast.includes(taken)); tries++) {
      assert.ok(tries < 20, `${name} is refused for ever`);
      const { length } = await told();
      await button(name).click();
      await ask();
      if (tries === 0) await belfry.api('PATCH', '/jobs/default/raced', { description: `before ${name}` });
      await confirm(name);
      await page.waitForFunction((many) => globalThis.toasts.length > many, length);
    }
  };
  await insist('Restore', () => dialog().waitFor(), 'Revision 1 is restored');
  assert.equal((await documentOf('default/raced')).description ?? '', '');
  await insist('Delete', () => dialog().getByRole('textbox').fill('raced'), 'default/raced is deleted');
  assert.equal((await belfry.api('GET', '/jobs/default/raced', undefined, { status: true })).status, 404);
});

test('deleting needs the name, and what is not there is said as the API says it', async () => {
  await job('default', 'doomed');
  await visit(page, belfry, '#/jobs/default/doomed');
  await button('Delete').click();
  assert.equal(await button('Delete', dialog()).isDisabled(), true);
  await dialog().getByRole('textbox').fill('doomed');
  await confirm('Delete');
  await toasted(page, 'default/doomed is deleted');
  assert.equal((await belfry.api('GET', '/jobs/default/doomed', undefined, { status: true })).status, 404);
  await visit(page, belfry, '#/jobs/default/doomed');
  await page.getByRole('alert').filter({ hasText: 'there is no job' }).waitFor();
  assert.deepEqual(await violations(page), []);
});

test('a session that ended leads to signing in and back', async () => {
  await job('default', 'left');
  await visit(page, belfry, '#/jobs/default/left?tab=document');
  await page.getByRole('heading', { name: 'Document' }).waitFor();
  await page.context().clearCookies();
  await page.getByRole('link', { name: 'Revisions' }).click();
  await page.getByText('Your session has ended').waitFor();
  await page.locator('input[autocomplete=username]').fill('admin');
  await page.locator('input[type=password]').fill(belfry.password);
  await page.locator('form button.primary').click();
  await page.getByRole('heading', { name: 'left' }).waitFor();
  assert.match(page.url(), /tab=revisions/);
});
