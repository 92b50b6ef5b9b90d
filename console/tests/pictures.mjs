// Makes the pictures that the READMEs show, of a small cluster that has really run what they show.
// usage: BELFRY_BIN=… node tests/pictures.mjs FOLDER
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';

import { ended, startBelfry, until } from './browser/belfry.mjs';
import { openWindow, settled, signIn, startBrowser, visit } from './browser/browser.mjs';

const [folder] = process.argv.slice(2);
const RUNS = 60;
const AT_ONCE = 8;
/** Name, team, schedule, what it does (its number is in `N`), and how many of the runs it has. */
const JOBS = [
  ['db-backup', 'db', '0 4 * * *', 'sleep 0.$((RANDOM % 4 + 2)); echo "dumped $((N * 37 + 900)) tables"', RUNS],
  ['db-vacuum', 'db', '30 3 * * 0', 'sleep 0.1; [ $((N % 23)) -ne 7 ] || { echo "lock not available" >&2; exit 1; }', RUNS],
  ['orders-settle', 'shop', '*/15 * * * *', 'sleep 0.0$((RANDOM % 9 + 1)); echo "settled $N"', RUNS],
  ['orders-export', 'shop', '10 * * * *', 'echo "orders of the last hour: 412"; echo "connecting to sftp.partner.example:22"; sleep 0.2; [ $N -lt 57 ] || { echo "sftp: connection refused" >&2; exit 75; }; echo "sent orders-$N.csv"', RUNS],
  ['invoices-mail', 'shop', '0 7 * * 1-5', 'sleep 0.05; echo sent', 42],
  ['certs-renew', 'web', 'H H * * *', 'echo "nothing to renew"', 30],
  ['sitemap', 'web', '0 */6 * * *', 'sleep 0.1; [ $((N % 11)) -ne 4 ] || exit 3', RUNS],
  ['logs-rotate', 'ops', '5 0 * * *', 'echo rotated', 24],
  ['metrics-rollup', 'ops', '*/5 * * * *', 'sleep 0.0$((RANDOM % 5 + 1))', RUNS],
  ['report-weekly', 'bi', '0 6 * * 1', 'sleep 0.3; echo done', 12],
  ['warehouse-load', 'bi', '0 2 * * *', 'echo "loading partition 2026-11-18"; sleep 900', 1],
];

const belfry = await startBelfry({ kind: 'server' });
const browser = await startBrowser();
try {
  for (const name of ['ber-1', 'ber-2', 'sha-1']) {
    const { token } = await belfry.api('POST', '/nodes/join-tokens', {});
    belfry.run('agent', '--join', token, '--name', name, '--data', join(belfry.folder, name), '--allow-root');
  }
  const nodes = await until('three nodes take work', async () => {
    const { items } = await belfry.api('GET', '/nodes');
    return items.filter((node) => node.healthy).length === 3 && items;
  });
  for (const node of nodes) await belfry.api('PATCH', `/nodes/${node.id}`, { labels: { zone: node.name.slice(0, 3) } });
  await belfry.api('POST', '/jobs', { name: 'gateway', namespace: 'web', labels: { team: 'web' }, action: { service: { command: 'sleep 3600' } } });
  for (const [name, team, schedule, command] of JOBS) await belfry.api('POST', '/jobs', { name, namespace: team, labels: { team }, schedule, timezone: 'Europe/Berlin', overlap: 'allow', action: { shell: { command } } });
  let failed;
  for (let n = 0; n < RUNS; n += AT_ONCE) {
    const started = JOBS.flatMap(([name, team, , , count]) =>
      Array.from({ length: AT_ONCE }, (_, i) => n + i).filter((number) => number < count).map(async (number) => (await belfry.api('POST', `/jobs/${team}/${name}/run`, { env: { N: String(number) } })).id),
    );
    for (const id of await Promise.all(started)) {
      await until(`run ${id} goes on or ends`, async () => {
        const run = await belfry.api('GET', `/runs/${id}`);
        return (run.ended_at || (run.job_name === 'warehouse-load' && run.started_at)) && run;
      });
    }
  }
  // The last ones of a job that fails are started one by one, so that the last of all is bad.
  for (let n = 0; n < 2; n++) failed = await ended(belfry, (await belfry.api('POST', '/jobs/shop/orders-export/run', { env: { N: String(RUNS + n) } })).id);
  mkdirSync(folder, { recursive: true });
  const page = await openWindow(browser, { width: 1360, height: 850 });
  await signIn(page, belfry);
  const pictures = [
    ['overview', '#/?hours=1', 'agrees'],
    ['jobs', '#/jobs', 'web/sitemap'],
    ['run', `#/runs/${failed.id}`, 'sftp: connection refused'],
  ];
  for (const [name, place, shown] of pictures) {
    await visit(page, belfry, place);
    await page.getByText(shown).first().waitFor();
    await settled(page, place);
    // Nothing under the pointer.
    await page.mouse.move(0, 0);
    await page.screenshot({ path: join(folder, `console-${name}.png`) });
  }
} finally {
  await browser.close();
  await belfry.stop();
}
