// Every page, in English and Chinese, light and dark, as admin and as viewer: nothing that axe finds, no English sentence on a Chinese page (also none of
// the server's), no markup that comes alive, no action that the viewer may not do.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { until } from './belfry.mjs';
import { openWindow, settled, shot, signIn, startBoth, violations, visit } from './browser.mjs';
import { makeData, makeEnds, TEAM, VIEWER, WRITTEN } from './data.mjs';
import { CSP } from './serve.mjs';
import { englishOn, isEnglish } from './texts.mjs';

let belfry;
let browser;
let data;
let places;
let ends;

before(async () => {
  [belfry, browser] = await startBoth();
  ends = await makeEnds(belfry);
  data = await makeData(belfry);
  places = {
    overview: '#/',
    jobs: '#/jobs',
    job: '#/jobs/default/backup',
    'job-revisions': '#/jobs/default/backup?tab=revisions',
    'job-state': '#/jobs/default/backup?tab=state',
    'job-document': '#/jobs/default/backup?tab=document',
    runs: '#/runs',
    run: `#/runs/${data.runs.report}`,
    'run-unwrapped': `#/runs/${data.runs.wide}?wrap=0`,
    nodes: '#/nodes',
    node: `#/nodes/${data.node.id}`,
    services: '#/services',
    scripts: '#/scripts',
    script: '#/scripts/default/rotate?version=2',
    tokens: '#/tokens',
    password: '#/password',
  };
});
after(async () => {
  await browser?.close();
  await belfry?.stop();
});

const OF_ADMINS = { 'new-job': '#/new/job', edit: '#/jobs/default/backup/edit', 'new-script': '#/new/script', users: '#/users', audit: '#/audit' };

/** A text that stands there only when what the page is about was read; in English and in Chinese where it is ours. */
const EXPECTED = {
  overview: 'Europe/Berlin',
  jobs: 'backup',
  job: 'echo start; echo bad >&2; echo done',
  'job-revisions': 'schedule: 0 3 * * *',
  'job-state': { en: 'The job keeps nothing.', zh: '此任务没有保留任何内容。' },
  'job-document': 'name: backup',
  // A service that ends again and again is above what ran once.
  runs: 'default/ends-',
  run: 'exit 3',
  'run-unwrapped': ',2099,2100',
  nodes: 'zone=a',
  node: 'zone=a',
  services: 'web',
  scripts: 'rotate',
  script: 'echo two',
  tokens: 'ci <img',
  password: { en: 'New password again', zh: '再次输入新密码' },
  'new-job': { en: 'New job', zh: '新建任务' },
  edit: 'echo start; echo bad >&2; echo done',
  'new-script': { en: 'New script', zh: '新建脚本' },
  users: 'vera',
  audit: 'job.update',
};
/** What needs attention, what runs, around now, the heat map, the cluster. */
const OVERVIEW_SECTIONS = 5;

async function arrived(page, name, language, expected = EXPECTED[name]) {
  const wanted = expected[language] ?? expected;
  await until(`${name} shows “${wanted}”`, () =>
    page.evaluate((text) => [document.querySelector('main').innerText, ...[...document.querySelectorAll('main :is(input, textarea)')].map((one) => one.value)].some((shown) => shown.includes(text)), wanted),
  );
  if (name === 'overview') await until('every section is there', async () => (await page.locator('main section').count()) === OVERVIEW_SECTIONS);
  assert.deepEqual(await page.locator('main [role=alert]').allTextContents(), [], 'no refusal');
}

for (const language of ['en', 'zh']) {
  test(`every page, ${language}, light and dark, as admin`, async (t) => {
    const page = await openWindow(browser, { language });
    await signIn(page, belfry);
    for (const [name, place] of Object.entries({ ...places, ...OF_ADMINS })) {
      await t.test(name, async () => {
        await visit(page, belfry, place);
        await arrived(page, name, language);
        for (const colorScheme of ['light', 'dark']) {
          await page.emulateMedia({ colorScheme });
          assert.deepEqual(await violations(page), [], colorScheme);
          await shot(page, `${name}-${language}-${colorScheme}`);
        }
        if (language === 'zh') assert.deepEqual(await englishOn(page, WRITTEN), [], 'English on a Chinese page');
        assert.equal(await page.evaluate(() => window.pwned), undefined);
        assert.equal(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), true, 'not wider than the window');
      });
    }
    assert.deepEqual(page.errors, []);
    await page.context().close();
  });
}

test('what stands above a page, and a page that does not exist, light and dark', async (t) => {
  for (const language of ['en', 'zh']) {
    await belfry.api('POST', '/jobs', { name: 'above', action: { shell: { command: 'true' } } });
    const page = await openWindow(browser, { language });
    await signIn(page, belfry);
    const words = language === 'en' ? { run: 'Run now', remove: 'Delete', label: 'Label…', pause: 'Pause' } : { run: '立即运行', remove: '删除', label: '标签…', pause: '暂停' };
    const button = (name, within = page) => within.getByRole('button', { name });
    const fine = (name, shown) =>
      t.test(`${name}, ${language}`, async () => {
        for (const colorScheme of ['light', 'dark']) {
          await page.emulateMedia({ colorScheme });
          await shown.waitFor();
          assert.deepEqual(await violations(page), [], colorScheme);
          assert.equal(await shown.count(), 1, 'it was there all the time');
          await shot(page, `above-${name}-${language}-${colorScheme}`);
        }
        if (language === 'zh') assert.deepEqual(await englishOn(page, WRITTEN), [], 'English on a Chinese page');
      });
    const closed = async () => {
      await page.keyboard.press('Escape');
      await page.getByRole('dialog').waitFor({ state: 'detached' });
    };
    await visit(page, belfry, '#/jobs/default/above');
    await page.keyboard.press('/');
    await fine('palette', page.getByRole('combobox'));
    await closed();
    await button(words.run).click();
    await fine('run-dialog', page.getByRole('dialog'));
    await closed();
    await button(words.remove).click();
    await fine('confirm', page.getByRole('dialog'));
    await closed();
    await visit(page, belfry, '#/jobs?q=above');
    const row = page.locator('tr[data-row]', { hasText: 'default/above' });
    await row.getByRole('checkbox').check();
    const bar = page.locator('.bulk');
    await fine('bulk-bar', bar);
    await button(words.label, bar).click();
    await fine('label-dialog', page.getByRole('dialog'));
    await closed();
    await visit(page, belfry, '#/jobs/default/above');
    // What was done goes away by itself: not while it is looked at.
    await page.evaluate((after) => {
      const { setTimeout } = globalThis;
      globalThis.setTimeout = (act, ms, ...more) => setTimeout(act, ms === 6_000 ? after : ms, ...more);
    }, 600_000);
    await button(words.pause).click();
    await fine('toast-done', page.locator('.toast'));
    await belfry.api('POST', '/jobs/default/above/resume');
    await page.reload();
    await button(words.pause).waitFor();
    await belfry.api('DELETE', '/jobs/default/above');
    await button(words.pause).click();
    await fine('toast-failed', page.locator('.toast.failed'));
    await page.goto(`${belfry.url}/#/no/such/page`);
    await fine('missing', page.getByRole('heading', { name: language === 'en' ? 'There is no such page' : '没有这个页面' }));
    assert.deepEqual(page.errors, []);
    await page.context().close();
  }
});

test('what counts as English is told from names, fields, commands and Chinese', () => {
  const english = ['Save as a new version', 'no node can take it', '没有节点可以承接（alpha: not connected）', 'Not found', 'exit code 3', 'it is alpha'];
  const other = ['保存', 'default/backup', 'run_on: each', 'alpha · beta', 'moon, sun', 'Belfry 0.1.0', 'Europe/Berlin', 'select.hosts 中没有 alpha', '没有任务“default/x”', 'POST /api/v1/jobs', '2026-11-18 07:00:00', '01M7PNTZT10NTW29GXBZW13CN2', 'viewer（查看）'];
  assert.deepEqual(english.filter((text) => !isEnglish(text)), []);
  assert.deepEqual(other.filter((text) => isEnglish(text)), []);
});

/** In Chinese, a page that was waited for: nothing English on it, and what the server said is not marked as English. */
async function allChinese(page, what) {
  assert.deepEqual(await englishOn(page, WRITTEN), [], what);
  assert.deepEqual(await page.locator('main [lang=en]').evaluateAll((marked) => marked.map((one) => one.textContent).filter((text) => /[a-z]{2,} [a-z]{2,}/i.test(text))), [], `${what}: marked as English`);
}

test('in Chinese every end of a run, what it waits for and why it went where it went is told in Chinese', async (t) => {
  const page = await openWindow(browser, { language: 'zh' });
  await signIn(page, belfry);
  for (const [name, id] of Object.entries(ends)) {
    await t.test(name, async () => {
      await visit(page, belfry, `#/runs/${id}`);
      const { reason } = await belfry.api('GET', `/runs/${id}`);
      if (reason) await page.locator('p.reason').first().waitFor();
      await page.locator('section', { has: page.getByRole('heading', { name: '为何在此时此地' }) }).locator('li').nth(2).waitFor();
      await shot(page, `run-${name}-zh`);
      await allChinese(page, name);
    });
  }
  const jobs = ['rich', 'flapping', 'stranded', 'each', 'home', 'retried', 'told'].map((name) => [`#/jobs/default/ends-${name}`, 'job', '定义']);
  const others = [
    ['#/', 'overview'],
    ['#/runs', 'runs'],
    ['#/runs?state=failed,timed_out,lost', 'runs'],
    ['#/services', 'services', 'ends-flapping'],
    ['#/jobs?q=ends', 'jobs', 'ends-cancelled'],
    ['#/jobs/default/ends-rich/edit', 'edit', 'https://hooks.example/belfry'],
  ];
  for (const [place, name, expected] of [...others, ...jobs]) {
    await visit(page, belfry, place);
    await arrived(page, name, 'zh', expected);
    await allChinese(page, place);
  }
  // Also where there is no run to ask.
  for (const name of ['rich', 'each', 'home', 'failed']) {
    await visit(page, belfry, `#/jobs/default/ends-${name}?why=2026-01-02T04:00:00.000Z`);
    await page.locator('section', { has: page.getByRole('heading', { name: '某一时刻为何如此' }) }).locator('li').first().waitFor();
    await allChinese(page, `why of ${name}`);
  }
  assert.match(await page.evaluate(() => document.documentElement.lang), /^zh/);
  assert.deepEqual(page.errors, []);
  await page.context().close();
});

test('in Chinese every refusal is told in Chinese', async (t) => {
  const page = await openWindow(browser, { language: 'zh' });
  const refusedAt = async (selector, what) => {
    await page.locator(selector).first().waitFor();
    await shot(page, `refused-${what}-zh`);
    await allChinese(page, what);
  };
  await t.test('a wrong password', async () => {
    await page.goto(`${belfry.url}/#/jobs`);
    await page.locator('input[autocomplete=username]').fill('admin');
    await page.locator('input[type=password]').fill('wrong');
    await page.locator('form button.primary').click();
    await refusedAt('[role=alert]', 'password');
    assert.match(await page.locator('[role=alert]').textContent(), /用户或密码错误/);
  });
  await signIn(page, belfry);
  const missing = {
    '#/jobs/default/nope': /没有任务“default\/nope”/,
    '#/runs/01ARZ3NDEKTSV4RRFFQ69G5FAV': /没有运行“01ARZ3NDEKTSV4RRFFQ69G5FAV”/,
    '#/runs/nope': /“nope”不是编号/,
    '#/scripts/default/nope': /没有脚本“default\/nope”/,
    '#/nodes/nope': /没有节点“nope”/,
    '#/jobs?label=nothing': /“nothing”不是标签/,
    '#/runs?state=bad': /“bad”不是状态/,
  };
  for (const [place, told] of Object.entries(missing)) {
    await t.test(`what does not exist: ${place}`, async () => {
      await visit(page, belfry, place);
      await page.locator('main [role=alert]', { hasText: told }).waitFor();
      await allChinese(page, place);
    });
  }
  await t.test('fields of the editor', async () => {
    const wrong = {
      name: 'Not+A+Name',
      timezone: 'Mars/Olympus',
      schedule: '61 25 * * *',
      jitter: '2d',
      'retry.attempts': 'many',
      'timeout.after': '5parsecs',
      'window.from': 'tomorrow',
      'output.keep': 'much',
      'as.umask': '999',
      'webhook.url': 'ftp://nowhere',
    };
    const page = await openWindow(browser, { language: 'zh' });
    await signIn(page, belfry);
    await visit(page, belfry, '#/new/job');
    await page.locator('[data-field=name] input').fill('fine');
    await page.locator('[data-field="action.shell.command"] textarea').fill('true');
    await page.locator('main details').evaluateAll((all) => all.forEach((one) => (one.open = true)));
    for (const [field, value] of Object.entries(wrong)) {
      const input = page.locator(`[data-field="${field}"] input`).first();
      await input.fill(value);
      const refused = page.locator(`[data-field="${field}"] .refused`).first();
      await refused.waitFor();
      await shot(page, `refused-${field}-zh`);
      assert.match(await refused.textContent(), /[\u4e00-\u9fff]/, field);
      await allChinese(page, field);
      await input.fill(field === 'name' ? 'fine' : '');
      await refused.waitFor({ state: 'detached' });
    }
    await page.getByRole('textbox', { name: 'YAML' }).fill('name: 5\naction:\n  shell: {command: [a]}\nretry: {tries: 3}\n');
    await page.locator('main .refused').first().waitFor();
    await allChinese(page, 'yaml');
    assert.deepEqual(page.errors, []);
    await page.context().close();
  });
  await t.test('the last admin', async () => {
    await visit(page, belfry, '#/users');
    await page.locator('tr', { hasText: 'admin' }).first().getByRole('button', { name: '停用' }).click();
    await page.getByRole('dialog').getByRole('button', { name: '停用' }).click();
    await refusedAt('.toast.failed', 'last-admin');
    assert.match(await page.locator('.toast.failed').textContent(), /至少要有一个启用的用户/);
    await page.locator('.toast.failed button').click();
  });
  await t.test('one\'s own password', async () => {
    await visit(page, belfry, '#/password');
    for (const [index, value] of ['not this one', 'short', 'short'].entries()) await page.locator('main input[type=password]').nth(index).fill(value);
    await page.locator('main button.primary').click();
    await refusedAt('main .refused', 'own-password');
  });
  await t.test('a node for a server without agents', async () => {
    await visit(page, belfry, '#/nodes');
    await page.getByRole('button', { name: '加入节点' }).click();
    await page.getByRole('dialog').getByRole('button', { name: '生成令牌' }).click();
    await refusedAt('dialog [role=alert]', 'join');
  });
  assert.deepEqual(page.errors, []);
  await page.context().close();
});

test('in Chinese a viewer is refused in Chinese', async () => {
  const page = await openWindow(browser, { language: 'zh' });
  await signIn(page, belfry, VIEWER.name, VIEWER.password);
  for (const place of ['#/users', '#/audit', '#/new/job']) {
    await visit(page, belfry, place);
    await page.locator('main [role=alert], main .empty, main h1').last().waitFor();
    await allChinese(page, place);
  }
  await visit(page, belfry, '#/users');
  assert.match(await page.locator('main [role=alert]').textContent(), /需要所有命名空间的 admin 角色/);
  assert.deepEqual(page.errors, []);
  await page.context().close();
});

test('on a phone no page is wider than the window', async () => {
  const page = await openWindow(browser, { width: 390, height: 844 });
  await signIn(page, belfry);
  const wide = [];
  for (const [name, place] of Object.entries({ ...places, ...OF_ADMINS })) {
    await visit(page, belfry, place);
    await arrived(page, name, 'en');
    await shot(page, `${name}-phone`);
    if (await page.evaluate(() => document.documentElement.scrollWidth > innerWidth)) wide.push(name);
  }
  assert.deepEqual(wide, []);
  await page.context().close();
});

test('a viewer is offered nothing that changes anything', async () => {
  const page = await openWindow(browser);
  await signIn(page, belfry, VIEWER.name, VIEWER.password);
  /** All that a viewer may press: their own things, and what only changes what is shown. Anything else is one too many. */
  const harmless = /^(Clear|Copy|Download|Compare with the last good run|Show all \d+|New token|Revoke|Change)$/;
  for (const [name, place] of Object.entries(places)) {
    await visit(page, belfry, place);
    // Tokens of others are none of theirs.
    await arrived(page, name, 'en', name === 'tokens' ? 'There are no tokens yet' : EXPECTED[name]);
    assert.deepEqual(await violations(page), [], name);
    const offered = await page.evaluate(() =>
      [...document.querySelectorAll('main :is(button, a.button, summary, [role=button], [type=submit])')].map((one) => (one.getAttribute('aria-label') ?? one.textContent).trim()),
    );
    assert.deepEqual(offered.filter((text) => !harmless.test(text)), [], `${name} offers`);
    assert.equal(await page.locator('main tr[data-row] input, main a[href$="/edit"], main a[href^="#/new/"]').count(), 0, `${name} offers to choose, to edit or to make`);
  }
  await visit(page, belfry, `#/runs/${data.runs.long}`);
  await page.getByRole('log').getByText('going').waitFor();
  await page.locator('main header').getByText('Running').waitFor();
  assert.deepEqual(await page.locator('main header button').allTextContents(), [], 'a run that is going');
  const menu = await page.locator('header.bar nav a').allTextContents();
  assert.deepEqual(menu.filter((text) => ['Users', 'Audit'].includes(text)), []);
  for (const place of ['#/new/job', '#/jobs/default/backup/edit', '#/new/script']) {
    await visit(page, belfry, place);
    assert.equal(await page.locator('main form').count(), 0, place);
  }
  await visit(page, belfry, '#/users');
  await page.locator('main [role=alert]').waitFor();
  assert.deepEqual(page.errors, []);
  await page.context().close();
});

test('who edits in one namespace only is offered that one, and nothing of the cluster', async () => {
  const page = await openWindow(browser);
  await signIn(page, belfry, TEAM.name, TEAM.password);
  const menu = await page.locator('header.bar nav a').allTextContents();
  assert.deepEqual(menu, ['Overview', 'Jobs', 'Runs', 'Services', 'Scripts', 'Tokens']);
  for (const place of ['#/', '#/jobs', '#/jobs/team/build', '#/runs', '#/services', '#/scripts', '#/tokens']) {
    await visit(page, belfry, place);
    assert.equal(await page.locator('main [role=alert]').count(), 0, place);
  }
  await visit(page, belfry, '#/new/job');
  assert.equal(await page.locator('[data-field=namespace] input').inputValue(), 'team');
  await page.locator('[data-field=name] input').fill('of-tom');
  await page.locator('[data-field="action.shell.command"] textarea').fill('true');
  await page.getByText('The server would take it.').waitFor();
  await page.getByRole('button', { name: 'Save', exact: true }).click();
  await page.waitForURL(/#\/jobs\/team\/of-tom$/);
  assert.deepEqual(page.errors, []);
  await page.context().close();
});

test('the server refuses each of these to a viewer too', async () => {
  const { secret: token } = await (async () => {
    const login = await fetch(`${belfry.base}/api/v1/login`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-belfry': '1' },
      body: JSON.stringify({ user: VIEWER.name, password: VIEWER.password }),
    });
    const cookie = login.headers.get('set-cookie').split(';')[0];
    const made = await fetch(`${belfry.base}/api/v1/tokens`, { method: 'POST', headers: { 'content-type': 'application/json', 'x-belfry': '1', cookie }, body: JSON.stringify({ label: 'test' }) });
    return made.json();
  })();
  const document = { name: 'x', action: { shell: { command: 'true' } } };
  const asked = [
    ['POST', '/jobs', document],
    ['POST', '/apply', { documents: [document], dry_run: true }],
    ['PUT', '/jobs/default/backup', document],
    ['PATCH', '/jobs/default/backup', { enabled: false }],
    ['DELETE', '/jobs/default/backup'],
    ['PUT', '/jobs/default/backup/state', { values: {} }],
    ['POST', '/jobs/default/backup/run', {}],
    ['POST', '/jobs/default/backup/pause'],
    ['POST', '/jobs/default/backup/resume'],
    ['POST', '/jobs/default/backup/kill'],
    ['POST', '/jobs/default/web/move', {}],
    ['POST', `/runs/${data.runs.long}/kill`],
    ['POST', `/runs/${data.runs.report}/rerun`, {}],
    ['PUT', '/scripts/default/rotate', { body: 'x' }],
    ['DELETE', '/scripts/default/rotate'],
    ['PATCH', `/nodes/${data.node.id}`, { weight: 2 }],
    ['DELETE', `/nodes/${data.node.id}`],
    ['POST', '/nodes/join-tokens', {}],
    ['POST', '/users', { name: 'x', password: 'xxxxxxxxxxxx', grants: {} }],
    ['PATCH', '/users/admin', { disabled: true }],
    ['DELETE', '/users/admin'],
    ['GET', '/audit'],
  ];
  for (const [method, path, body] of asked) {
    const { status } = await belfry.api(method, path, body, { token, status: true });
    assert.equal(status, 403, `${method} ${path}`);
  }
  // Tokens of others are none of theirs.
  const [others] = (await belfry.api('GET', '/tokens')).items;
  assert.equal((await belfry.api('DELETE', `/tokens/${others.id}`, undefined, { token, status: true })).status, 404);
  assert.ok((await belfry.api('GET', '/tokens')).items.some(({ id }) => id === others.id));
});

test('signing in and out; a wrong password is said; one comes back to where one was', async () => {
  const page = await openWindow(browser);
  await page.goto(`${belfry.url}/#/nodes`);
  await page.locator('input[autocomplete=username]').fill('admin');
  await page.locator('input[type=password]').fill('wrong');
  await page.locator('form button.primary').click();
  await page.locator('[role=alert]').waitFor();
  assert.deepEqual(await violations(page), []);
  await page.locator('input[type=password]').fill(belfry.password);
  await page.locator('form button.primary').click();
  await page.waitForURL(/#\/nodes$/);
  await settled(page, '#/nodes');
  await page.locator('header summary').click();
  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.waitForURL(/#\/login/);
  await page.goto(`${belfry.url}/#/jobs`);
  await page.locator('input[type=password]').waitFor();
  await page.context().close();
});

test('the console is served with a policy that allows no foreign and no inline script', async (t) => {
  // What the server itself sends; without a console in it only what these tests send in its place.
  if (!belfry.holds) t.diagnostic('the binary holds no console');
  const answer = await fetch(`${belfry.holds ? belfry.base : belfry.url}/`);
  const policy = answer.headers.get('content-security-policy');
  assert.match(policy, /default-src 'none'/);
  assert.match(policy, /script-src 'self'(;|$)/);
  assert.doesNotMatch(policy, /unsafe/);
  assert.equal(policy, CSP);
  assert.doesNotMatch(await answer.text(), /<script(?![^>]*src=)|style="/);
});
