// What the front page tells of a cluster in trouble: a node that died with a run, fires that were missed while no server was there, runs that take too long.
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { after, before, test } from 'node:test';

import { ended, until } from './belfry.mjs';
import { openWindow, shot, signIn, startBoth, violations, visit } from './browser.mjs';

/** As crates/belfry-core/src/due.rs has it. */
const ON_TIME_MS = 5_000;
let belfry;
let browser;
let page;
let lost;

const job = (name, command, more) => belfry.api('POST', '/jobs', { name, action: { shell: { command } }, ...more });
const start = async (name) => (await belfry.api('POST', `/jobs/default/${name}/run`, {})).id;
const running = (id) => until(`${id} runs`, async () => (await belfry.api('GET', `/runs/${id}`)).state === 'running');
const section = (name) => page.locator('main section', { has: page.getByRole('heading', { name, exact: true }) });

before(async () => {
  [belfry, browser] = await startBoth({ kind: 'server' });
  const agents = {};
  for (const name of ['one', 'two']) {
    const { token } = await belfry.api('POST', '/nodes/join-tokens', {});
    agents[name] = belfry.run('agent', '--join', token, '--name', name, '--data', join(belfry.folder, name), '--allow-root');
  }
  await until('both take work', async () => (await belfry.api('GET', '/nodes')).items.filter((node) => node.healthy).length === 2);
  // What a node that died leaves behind ends with these tests.
  const while_ = `while [ -e '${belfry.folder}' ]; do sleep 0.2; done`;
  await job('usually', `[ -n "$QUICK" ] || ${while_}`, { select: { hosts: ['one'] } });
  for (let i = 0; i < 3; i++) await ended(belfry, (await belfry.api('POST', '/jobs/default/usually/run', { env: { QUICK: '1' } })).id);
  await job('doomed', while_, { select: { hosts: ['two'] } });
  lost = await start('doomed');
  await running(lost);
  await agents.two.stop('SIGKILL');
  await until('it is lost', async () => (await belfry.api('GET', `/runs/${lost}`)).state === 'lost');
  await job('slow', while_, { select: { hosts: ['one'] }, timeout: { after: '1s', action: 'report' } });
  await job('strict', 'true', { select: { hosts: ['one'] }, schedule: '@every 1s', misfire: { policy: 'skip' } });
  await until('it fires', async () => (await belfry.api('GET', '/runs?job=strict&state=succeeded')).items.length > 0);
  await belfry.halt();
  const halted = Date.now();
  await until('what fires now is no longer on time when it is back', () => Date.now() - halted > 2 * ON_TIME_MS);
  await belfry.restart();
  await until('fires were missed', async () => (await belfry.api('GET', '/runs?job=strict&state=skipped')).items.some(({ reason }) => reason.startsWith('missed by')));
  // Of one that is paused nothing is to be looked at.
  await belfry.api('PATCH', '/jobs/default/strict', { schedule: '0 4 1 1 *' });
  await until('the node is back', async () => (await belfry.api('GET', '/nodes')).items.find(({ name }) => name === 'one').healthy);
  page = await openWindow(browser);
  await signIn(page, belfry);
});
after(async () => {
  await browser?.close();
  await belfry?.stop();
});

test('what was lost, missed, overdue, and which node is down stands there, the most urgent first, and leads to it', async () => {
  await running(await start('slow'));
  await until('the server knows', async () => (await belfry.api('GET', '/overview')).attention.some(({ kind }) => kind === 'overdue'));
  await page.reload();
  const { attention } = await belfry.api('GET', '/overview');
  const items = section('Needs attention').locator('li');
  await until('all are there', async () => (await items.count()) === attention.length);
  const told = await items.evaluateAll((all) => all.map((one) => [...one.querySelectorAll('.kind, .name, .text')].map((part) => part.textContent.trim())));
  const names = { node_down: 'Node down', lost: 'Lost', failing: 'Failing', missed: 'Missed', overdue: 'Overdue' };
  // What runs for a while says for how long: the numbers go on.
  const still = (text) => text.replaceAll(/\d+/g, '#');
  assert.deepEqual(
    told.map((parts) => parts.map(still)),
    attention.map(({ kind, namespace, job: of, node, message }) => [names[kind], of ? `${namespace}/${of}` : node, message].map(still)),
  );
  for (const [kind, what] of [['Node down', 'two'], ['Lost', 'default/doomed'], ['Missed', 'default/strict'], ['Overdue', 'default/slow']]) assert.ok(told.some(([name, of]) => name === kind && of === what), `${kind} ${what}: ${JSON.stringify(told)}`);
  assert.equal(await items.filter({ hasText: 'Lost' }).first().locator('a.text').getAttribute('href'), `#/runs/${lost}`);
  assert.deepEqual(await violations(page), []);
  await shot(page, 'overview-trouble');
  await items.filter({ hasText: 'Node down' }).locator('a').click();
  await page.waitForURL(/#\/nodes$/);
});

test('how long a run goes on is told against what its job usually takes', async () => {
  const id = await start('usually');
  await running(id);
  await visit(page, belfry, '#/');
  const row = section('Running now').locator('li', { hasText: 'usually' });
  // Within it at first; what takes less than a second is beyond it after one.
  await row.locator('.elapsed.beyond').getByText('beyond the usual').waitFor();
  const { usual } = (await belfry.api('GET', '/overview')).running.find(({ run }) => run === id);
  assert.ok(usual.p95_ms < 60_000);
  assert.deepEqual(page.errors, []);
});

test('the time line is told by node too, and the heat map by fires', async () => {
  await job('hourly', 'true', { schedule: '7 * * * *' });
  await job('together', 'true', { schedule: '7 * * * *' });
  await visit(page, belfry, '#/');
  await page.reload();
  await section('Around now').getByRole('link', { name: 'By node' }).click();
  await page.waitForURL(/by=node/);
  await section('Around now').getByRole('img', { name: /^two: 1 Lost/ }).waitFor();
  await section('Around now').getByRole('img', { name: /^one: / }).waitFor();
  const map = section('Next 24 hours, by minute');
  await map.getByRole('link', { name: 'Fires' }).click();
  await page.waitForURL(/heat=fires/);
  const now = Date.now();
  const span = `from=${new Date(now).toISOString()}&to=${new Date(now + 24 * 3_600_000).toISOString()}`;
  const most = Math.max(...(await belfry.api('GET', `/forecast?${span}`)).fires);
  assert.ok(most >= 2);
  await map.getByRole('img', { name: `at most ${most} in one minute` }).waitFor();
  assert.equal(await map.locator('[aria-current=true]').textContent(), 'Fires');
});

test('the card of the cluster has its leader, the terms of its shards, its clocks, its store and its coordinator', async () => {
  const cluster = await until('all shards are owned', async () => {
    const known = await belfry.api('GET', '/cluster');
    return known.servers.flatMap((server) => server.shards).length === 16 && known.servers.some((server) => server.leader) && known;
  });
  await page.reload();
  const card = section('Cluster');
  const of = (term) => card.locator('dt', { hasText: new RegExp(`^${term}$`) }).evaluate((one) => one.nextElementSibling.textContent.trim());
  await card.getByText('16 of 16 owned').waitFor();
  const terms = cluster.servers.flatMap((server) => server.shards.map(({ term }) => term));
  const [low, high] = [Math.min(...terms), Math.max(...terms)];
  assert.ok(low > 1, 'the server came back');
  assert.deepEqual([await of('Store'), await of('Coordinator')], ['answers', 'answers']);
  assert.equal(await of('Shards'), `16 of 16 owned, ${low === high ? `term ${low}` : `terms ${low} to ${high}`}`);
  const leader = cluster.servers.find((server) => server.leader);
  const row = card.getByRole('row').filter({ hasText: leader.id.slice(0, 10) });
  await row.getByText('leader', { exact: true }).waitFor();
  await row.getByText('agrees', { exact: true }).waitFor();
  assert.deepEqual(page.errors, []);
});
