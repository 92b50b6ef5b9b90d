// What the tests look at: real jobs, runs, scripts, users and tokens, some of them with names that would be markup.
import { ended, until } from './belfry.mjs';

export const MARKUP = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>';
export const VIEWER = { name: 'vera', password: 'look-but-not-touch' };
export const TEAM = { name: 'tom', password: 'edits-in-one-team' };

/** What users write themselves, as it stands on pages: it is nobody's to translate. */
export const WRITTEN = [`nightly ${MARKUP}`, MARKUP, MARKUP.slice(0, 40), MARKUP.slice(0, 30), 'echo start; echo bad >&2; echo done', 'echo going; sleep infinity', 'echo up; sleep infinity', 'sleep infinity', 'echo boom'];

export async function makeData(belfry) {
  const job = (document) => belfry.api('POST', '/jobs', document);
  await belfry.api('PUT', '/scripts/default/rotate', { body: '#!/bin/bash\necho one\n' });
  await belfry.api('PUT', '/scripts/default/rotate', { body: '#!/bin/bash\necho one\necho two\n' });
  await job({ name: 'backup', description: `nightly ${MARKUP}`, labels: { team: 'db', note: MARKUP.slice(0, 40) }, schedule: '0 4 * * *', action: { shell: { command: 'echo start; echo bad >&2; echo done' } } });
  await job({ name: 'report', schedule: ['30 2 * * *', '@hourly'], action: { shell: { command: `echo '${MARKUP.replaceAll("'", '')}'; exit 3` } } });
  await job({ name: 'rotate-logs', schedule: '@every 1h', action: { script: { name: 'rotate' } } });
  await job({ name: 'long', action: { shell: { command: 'echo going; sleep infinity' } } });
  await job({ name: 'web', action: { service: { command: 'echo up; sleep infinity' } } });
  await job({ name: 'paused', enabled: false, schedule: '0 5 * * 1-5', action: { exec: { argv: ['/bin/true'] } } });
  await job({ name: 'build', namespace: 'team', action: { shell: { command: 'true' } } });
  // One line of ten thousand characters.
  await job({ name: 'wide', action: { shell: { command: 'seq -s, 2100' } } });
  await belfry.api('POST', '/users', { name: VIEWER.name, password: VIEWER.password, grants: { '*': 'viewer' } });
  await belfry.api('POST', '/users', { name: TEAM.name, password: TEAM.password, grants: { team: 'editor' } });
  await belfry.api('POST', '/tokens', { label: `ci ${MARKUP.slice(0, 30)}`, expires_in: '30d' });
  const runs = {};
  for (const name of ['backup', 'report', 'rotate-logs', 'wide']) runs[name] = (await ended(belfry, (await belfry.api('POST', `/jobs/default/${name}/run`, {})).id)).id;
  runs.long = (await belfry.api('POST', '/jobs/default/long/run', {})).id;
  await belfry.api('PATCH', '/jobs/default/backup', { schedule: '0 3 * * *' });
  const [node] = (await belfry.api('GET', '/nodes')).items;
  await belfry.api('PATCH', `/nodes/${node.id}`, { labels: { zone: 'a' } });
  return { runs, node };
}

/** A run for every end and every reason to wait, by what it shows. Before anything else that runs: it has the server die once. */
export async function makeEnds(belfry) {
  const shell = (command) => ({ action: { shell: { command } } });
  const jobs = {
    failed: shell('exit 4'),
    timedOut: { ...shell('sleep infinity'), timeout: { after: '1s', grace: '1s' } },
    killed: shell('echo going; sleep infinity'),
    lost: shell('sleep infinity'),
    skipped: shell('sleep infinity'),
    queued: { ...shell('sleep infinity'), overlap: 'queue' },
    retried: { ...shell('exit 5'), retry: { attempts: 2, delay: '1s' } },
    waiting: { ...shell('exit 6'), retry: { attempts: 2, delay: '1h', max_delay: '1h' } },
    excluded: { ...shell('true'), select: { exclude: ['alpha'] } },
    nowhere: { ...shell('true'), select: { hosts: ['moon', 'sun'] } },
    cancelled: { ...shell('true'), select: { hosts: ['moon'] } },
    needy: { ...shell('true'), needs: { memory: '9000GiB' } },
    noCommand: shell('no-such-command'),
    noProgram: { action: { exec: { argv: ['/no/such/program'] } } },
    noDirectory: { ...shell('true'), as: { directory: '/no/such/folder' } },
    noUser: { ...shell('true'), as: { user: 'nosuchuser' } },
    signature: { action: { exec: { argv: ['/bin/true'] } }, signature: { file: '/bin/true', sha256: '0'.repeat(64) } },
    told: { ...shell('true'), webhook: { url: 'http://127.0.0.1:9/told' } },
    word: { ...shell('echo boom'), output: { fail_on: 'boom' } },
    signal: shell('kill -SEGV $$'),
    limited: { ...shell('true'), limits: { open_files: 64, memory: '64MiB' } },
  };
  /** Not run: what they are defined as, and services that do not run. */
  const others = {
    rich: {
      ...shell('true'),
      schedule: ['30 2 * * *', '@every 90s'],
      window: { from: '2026-01-01T00:00:00Z', until: '2099-01-01T00:00:00Z' },
      dst: { gap: 'skip', overlap: 'both' },
      jitter: '5m',
      misfire: { policy: 'all', limit: 3, within: '2h' },
      placement: { sticky: '10m' },
      select: { hosts: ['alpha', 'beta'], labels: { zone: 'a' }, exclude: ['gamma'] },
      needs: { memory: '1GiB', cpus: 0.5, disk: '1GiB' },
      as: { user: 'nobody', directory: '/tmp', umask: '027', env: { A: 'b' } },
      limits: { open_files: 64, cpu_time: '1m', file_size: '1MiB', processes: 10, memory: '64MiB' },
      timeout: { after: '1h', action: 'report' },
      retry: { attempts: 3, on: ['failed', 'exit:3', 'lost'], where: 'other' },
      overlap: 'replace',
      output: { keep: '64KiB', fail_on: 'boom|bang' },
      retention: { age: '7d', runs: 10 },
      webhook: { url: 'https://hooks.example/belfry', on: ['failed', 'timed_out'] },
    },
    flapping: { action: { service: { command: 'exit 3' } } },
    stranded: { action: { service: { command: 'sleep infinity' } }, select: { hosts: ['moon'] } },
    each: { ...shell('true'), run_on: 'each', schedule: '@hourly' },
    home: { ...shell('true'), run_on: 'home', schedule: '@hourly' },
  };
  const name = (key) => `ends-${key.toLowerCase()}`;
  for (const [key, document] of Object.entries({ ...jobs, ...others })) await belfry.api('POST', '/jobs', { name: name(key), ...document });
  const start = async (key) => (await belfry.api('POST', `/jobs/default/${name(key)}/run`, {})).id;
  const state = (id, ...wanted) =>
    until(`run ${id} is ${wanted}`, async () => {
      const run = await belfry.api('GET', `/runs/${id}`);
      return wanted.includes(run.state) && run;
    });
  const runs = { lost: await start('lost') };
  await state(runs.lost, 'running');
  await belfry.halt();
  await belfry.restart();
  await state(runs.lost, 'lost');
  for (const key of Object.keys(jobs)) if (key !== 'lost') runs[key] = await start(key);
  for (const key of ['skipped', 'queued']) {
    await state(runs[key], 'running');
    runs[key] = await start(key);
  }
  await state(runs.killed, 'running');
  await belfry.api('POST', `/runs/${runs.killed}/kill`);
  await belfry.api('POST', `/runs/${runs.cancelled}/kill`);
  for (const key of ['failed', 'timedOut', 'killed', 'skipped', 'retried', 'noCommand', 'noProgram', 'noDirectory', 'noUser', 'signature', 'told', 'word', 'signal', 'limited', 'cancelled']) await ended(belfry, runs[key]);
  await state(runs.waiting, 'waiting');
  await until('the webhook was tried', async () => (await belfry.api('GET', `/runs/${runs.told}/deliveries`)).items.some((one) => one.last_error));
  return runs;
}
