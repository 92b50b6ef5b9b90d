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
/** In the browser: the texts below whose contrast is less than WCAG asks for, as axe would find it, but for thousands of them. */
const illegible = (root) => {
  const pixel = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
  const over = (colours) => {
    for (const colour of colours) {
      pixel.fillStyle = colour;
      pixel.fillRect(0, 0, 1, 1);
    }
    return [...pixel.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (rgb) => rgb.slice(0, 3).reduce((sum, part, i) => sum + [0.2126, 0.7152, 0.0722][i] * (part <= 10 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4), 0);
  const grounds = (node) => (node ? [...grounds(node.parentElement), getComputedStyle(node).backgroundColor] : ['#fff']);
  return [...root.querySelectorAll('.text span')].flatMap((one) => {
    const below = grounds(one);
    const [text, ground] = [luminance(over([...below, getComputedStyle(one).color])), luminance(over(below))];
    const contrast = (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05);
    return contrast < 4.5 ? [`${one.className} ${one.getAttribute('style')} "${one.textContent}": ${contrast.toFixed(2)}`] : [];
  });
};

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
  // Who looks at one and comes back is there again.
  await rows().filter({ hasText: 'Running' }).locator('a').first().click();
  await page.waitForURL(new RegExp(`#/runs/${first}`));
  await page.getByRole('heading', { name: 'many', exact: true }).waitFor();
  await page.goBack();
  await rows().filter({ hasText: 'Running' }).waitFor();
  await until('it is in view', () => page.evaluate(() => scrollY > 0 && scrollY + innerHeight >= document.body.scrollHeight - 40));
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

test('what is no longer as the filter says leaves the list', async () => {
  await job('leaving', 'sleep infinity', { overlap: 'allow' });
  const ids = [await start('leaving'), await start('leaving')];
  await Promise.all(ids.map(running));
  await visit(page, belfry, '#/runs?state=running&job=leaving&node=alpha');
  await until('both are there', async () => (await rows().count()) === 2);
  await belfry.api('POST', `/runs/${ids[0]}/kill`);
  await until('one is left', async () => (await rows().count()) === 1);
  await page.locator('main header').getByText('1', { exact: true }).waitFor();
  await belfry.api('POST', `/runs/${ids[1]}/kill`);
  await page.getByText('No run is like that').waitFor();
  // A name alone is of the namespace `default`: one of the same name elsewhere is not let in by its events.
  await belfry.api('POST', '/jobs', { name: 'leaving', namespace: 'elsewhere', action: { shell: { command: 'true' } } });
  await visit(page, belfry, '#/runs?job=leaving');
  await until('both are there', async () => (await rows().count()) === 2);
  await ended(belfry, (await belfry.api('POST', '/jobs/elsewhere/leaving/run', {})).id);
  const last = await start('leaving');
  await until('the last one is there', async () => (await rows().first().locator('a').first().getAttribute('href'))?.includes(last));
  assert.equal(await rows().count(), 3);
  await belfry.api('POST', `/runs/${last}/kill`);
});

test('a job that was renamed has the runs from before, and reads on only as far as one looks', async () => {
  await job('before', 'true');
  const old = await start('before');
  await ended(belfry, old);
  await belfry.api('PATCH', '/jobs/default/before', { name: 'after' });
  const asked = [];
  page.on('request', (request) => asked.push(...(new URL(request.url()).pathname.endsWith('/runs') ? [request.url()] : [])));
  await visit(page, belfry, '#/runs?job=default/after');
  await page.locator(`tr[data-row] a[href*="${old}"]`).first().waitFor();
  const fresh = await start('after');
  await page.locator(`tr[data-row] a[href*="${fresh}"]`).first().waitFor();
  assert.equal(await rows().count(), 2);
  assert.equal(asked.length, 1, `${asked}`);
});

test('a run of a wrapped command leads to no job, and asks why of none', async () => {
  const folder = (name) => join(belfry.folder, name);
  const wrapper = belfry.run('wrap', 'DCRON_NAME=nightly.%F_%H%M', `DCRON_COORD=sqlite:${folder('server/coordinator.db')}`, `DCRON_LIBDIR=${folder('lib')}`, `DCRON_LOGDIR=${folder('log')}`, 'DCRON_ID=db1', '--', 'true');
  await wrapper.ended;
  // A server that has its database to itself looks for what others write there once a minute.
  const { id } = await until('its record is copied', async () => (await belfry.api('GET', '/runs?job=dcron/nightly')).items[0], 180_000);
  const asked = [];
  page.on('request', (request) => asked.push(new URL(request.url()).pathname));
  await visit(page, belfry, '#/runs?job=dcron/nightly');
  assert.match(await rows().first().getByRole('link', { name: 'dcron/nightly' }).getAttribute('href'), /^#\/runs\?job=dcron/);
  await visit(page, belfry, `#/runs/${id}`);
  await page.getByText('cron of its host, through dcron').waitFor();
  await page.getByRole('heading', { name: 'Time line' }).waitFor();
  assert.deepEqual(await page.locator('main [role=alert]').allTextContents(), []);
  // Its host is no node either.
  assert.equal(await page.locator('a[href^="#/jobs/dcron"], a[href*="node=db1"]').count(), 0);
  assert.deepEqual(asked.filter((path) => path.endsWith('/explain')), []);
  assert.deepEqual(await violations(page), []);
  await shot(page, 'run-wrapped');
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

test('colours are those that the program chose, stderr is marked, and all of it can be read in light and dark', async () => {
  const colour = 'for c in $(seq 30 37) $(seq 90 97) $(seq 40 47); do printf "\\033[%smcode %s\\033[0m\\n" $c $c; done';
  await job('painted', `${colour}; printf '\\033[38;5;202mcube 202\\033[0m\\n'; echo plain; echo complaint >&2`);
  const id = await start('painted');
  await ended(belfry, id);
  await visit(page, belfry, `#/runs/${id}`);
  await page.getByText('27 lines', { exact: true }).waitFor();
  const named = (first, name) => Array.from({ length: 8 }, (_, n) => [`code ${first + n}`, name(n)]);
  const painted = await log().locator('.text span').evaluateAll((all) => all.map((one) => [one.textContent, [...one.classList].filter((name) => /^([fb]g\d+|own)$/.test(name)).join(' ')]));
  assert.deepEqual(Object.fromEntries(painted), Object.fromEntries([...named(30, (n) => `fg${n}`), ...named(90, (n) => `fg${n + 8}`), ...named(40, (n) => `bg${n}`), ['cube 202', 'own']]));
  assert.equal(await log().getByText('cube 202').evaluate((one) => one.style.getPropertyValue('--own')), 'rgb(255 95 0)');
  // Each is a colour of its own: a class without a rule would look like text. Black may, where text is black, and white where it is white.
  const drawn = (codes, property) => Promise.all(codes.map((code) => log().getByText(`code ${code}`, { exact: true }).evaluate((one, name) => getComputedStyle(one)[name], property)));
  const letters = await log().locator('.line.err').evaluateAll((all) => all.map((one) => [one.querySelector('.s').textContent, one.querySelector('.s').title, one.querySelector('.text').textContent]));
  assert.deepEqual(letters, [['E', 'stderr', 'complaint']]);
  assert.equal(await log().locator('.s', { hasText: 'E' }).count(), 1);
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme });
    const colours = await drawn([30, 31, 32, 33, 34, 35, 36, 37, 90, 91, 92, 93, 94, 95, 96], 'color');
    assert.equal(new Set(colours).size, 15, `${colorScheme}: ${colours}`);
    const plain = await log().getByText('plain', { exact: true }).evaluate((one) => [getComputedStyle(one).color, getComputedStyle(one).backgroundColor]);
    assert.equal(colours.indexOf(plain[0], 1), -1, `${colorScheme}: ${plain}`);
    const grounds = await drawn([40, 41, 42, 43, 44, 45, 46], 'backgroundColor');
    assert.equal(new Set([...grounds, plain[1]]).size, 8, `${colorScheme}: ${grounds}`);
    assert.deepEqual(await violations(page), [], colorScheme);
    await shot(page, `run-colours-${colorScheme}`);
  }
});

test('whatever colours a program chooses can be read', async () => {
  const cube = 'for c in $(seq 16 255); do printf "\\033[38;5;%smtext\\033[0m \\033[48;5;%smground\\033[0m \\033[7;38;5;%sminverse\\033[0m\\n" $c $c $c; done';
  const pairs = 'for f in $(seq 30 37) $(seq 90 97); do for b in $(seq 40 47) $(seq 100 107); do printf "\\033[%s;%smpair\\033[7m inverse\\033[0m " $f $b; done; echo; done';
  const alone = 'for c in $(seq 30 37) $(seq 90 97) $(seq 40 47); do printf "\\033[7;%smturned\\033[0m\\n" $c; done';
  await job('motley', `${pairs}; ${alone}; ${cube}`);
  const id = await start('motley');
  await ended(belfry, id);
  await visit(page, belfry, `#/runs/${id}`);
  await page.getByText('280 lines', { exact: true }).waitFor();
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme });
    const seen = new Set();
    // Only what is near is drawn.
    for (let line = 1; line <= 280; line += 30) {
      await visit(page, belfry, `#/runs/${id}?line=${line}`);
      await page.locator('.line.chosen .n').getByText(line, { exact: true }).waitFor();
      (await log().locator('.n').allTextContents()).forEach((number) => seen.add(Number(number)));
      assert.deepEqual(await log().evaluate(illegible), [], `${colorScheme}, around line ${line}`);
    }
    assert.deepEqual([seen.size, Math.max(...seen)], [280, 280], 'each line was looked at');
  }
});

test('the time line tells every step, and how long after the one before it came', async () => {
  await job('stepped', 'sleep 1.2');
  const id = await start('stepped');
  const run = await ended(belfry, id);
  await visit(page, belfry, `#/runs/${id}`);
  const steps = page.locator('section', { has: page.getByRole('heading', { name: 'Time line' }) }).locator('li');
  assert.deepEqual(await steps.locator('strong').allTextContents(), ['Planned', 'Claimed', 'Dispatched', 'Started', 'Ended']);
  const instants = [run.planned, run.claimed_at, run.dispatched_at, run.started_at, run.ended_at];
  assert.deepEqual(await steps.locator('time').evaluateAll((all) => all.map((one) => one.dateTime)), instants);
  const delays = await steps.locator('.muted').allTextContents();
  assert.equal(delays[0], '');
  for (let index = 1; index < instants.length; index++) {
    const ms = Date.parse(instants[index]) - Date.parse(instants[index - 1]);
    // Less than a tenth of it, and less than a second, is left out of what is longer than a second.
    if (Math.abs(ms) < 1_000) assert.equal(delays[index], ms < 0 ? `−${-ms}ms` : `+${ms}ms`);
    else if (ms < 10_000) assert.equal(delays[index], `+${(Math.floor(ms / 100) / 10).toFixed(1)}s`);
    else assert.match(delays[index], /^\+(\d+m )?\d+s$/);
  }
});

test('what a run was limited to, what it used, its fence, and why it went where it went are as the server knows them', async () => {
  await job('limited', 'i=0; while [ $i -lt 30000 ]; do i=$((i + 1)); done; echo done', { limits: { open_files: 64, cpu_time: '1m' } });
  const id = await start('limited');
  await ended(belfry, id);
  const run = await until('what it used is recorded', async () => {
    const known = await belfry.api('GET', `/runs/${id}`);
    return known.cpu_ms > 0 && known.max_rss_bytes > 0 && known.limits_held.length > 0 && known;
  });
  await visit(page, belfry, `#/runs/${id}`);
  const about = page.locator('section', { has: page.locator('dl', { hasText: 'Fence' }) });
  const fact = async (term) => about.locator('dt', { hasText: new RegExp(`^${term}$`) }).evaluate((one) => one.nextElementSibling.textContent);
  await about.waitFor();
  assert.ok(run.fence > 0);
  assert.deepEqual([await fact('Fence'), await fact('Limits held')], [String(run.fence), run.limits_held.join(', ')]);
  assert.match(await fact('CPU time'), run.cpu_ms < 1_000 ? new RegExp(`^${run.cpu_ms}\\s?ms$`) : /^\d/);
  assert.match(await fact('Most memory'), /^\d+(\.\d+)? [KM]iB$/);
  const why = page.locator('section', { has: page.getByRole('heading', { name: 'Why there and then' }) }).locator('li');
  await why.first().waitFor();
  const { sentences } = await belfry.api('GET', `/explain?run=${id}`);
  assert.ok(sentences.length > 1);
  assert.deepEqual(await why.allTextContents(), sentences);
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
