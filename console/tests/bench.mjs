// How fast the console is with 10,000 jobs and 1,000,000 runs in the store of a real server: prints a line of JSON a figure, as
// `cargo xtask bench console` reads them. Beside each, the same on a small store, in turns with it: the ratio says what the data costs.
// usage: BELFRY_BIN=… BELFRY_FILL=…/console_data node tests/bench.mjs [jobs] [runs]
import { execFileSync } from 'node:child_process';
import { loadavg } from 'node:os';
import { setTimeout as wait } from 'node:timers/promises';

import { startBelfry, until } from './browser/belfry.mjs';
import { openWindow, startBrowser } from './browser/browser.mjs';

const [jobs = 10_000, runs = 1_000_000] = process.argv.slice(2).map(Number);
const BIG = { jobs, runs };
const SMALL = { jobs: 100, runs: 2_000 };
const ROUNDS = 7;
const PAINT_MS_MAX = 1_000;
const INTERACTION_MS_MAX = 100;
const LINE_MS_MAX = 500;
const OVERVIEW_REQUESTS_MAX = 6;
const LINES = 30;
/** What is typed into the filter of jobs, letter by letter. */
const WORDS = ['invoices', 'sync-m', '4711', '0815', '2963'];

/** Runs in the page, before anything of it. */
function instrument() {
  /** When the frame is on the screen that shows the document as it is now. */
  const painted = () =>
    new Promise((done) => {
      requestAnimationFrame(() => {
        const { port1, port2 } = new MessageChannel();
        port1.onmessage = () => done(performance.now());
        port2.postMessage(null);
      });
    });
  const once = (isReady) =>
    new Promise((done, fail) => {
      const tired = setTimeout(() => fail(new Error(`never shown: ${isReady}`)), 20_000);
      const look = () => {
        if (!isReady()) return;
        clearTimeout(tired);
        observer.disconnect();
        done(painted());
      };
      const observer = new MutationObserver(look);
      observer.observe(document, { subtree: true, childList: true, characterData: true, attributes: true });
      look();
    });
  const all = (css) => document.querySelectorAll(css);
  globalThis.bench = {
    painted,
    // Of everything: as the page holds it, whichever language it is in.
    shows: {
      overview: () => all('.tiles strong').length > 0 && all('.two section').length >= 3 && all('.two dl dd').length > 0,
      overviewAll: () => bench.shows.overview() && all('.two section').length >= 4 && all('.lanes svg').length > 1,
      jobs: () => all('tr[data-row]').length > 0,
      runs: () => all('tr[data-row]').length > 0,
    },
    when: (what) => once(bench.shows[what]),
    /** From the next event of this type to the frame that shows what is waited for. */
    after(type, isReady) {
      const began = new Promise((done) => addEventListener(type, (event) => done(event.timeStamp), { capture: true, once: true }));
      bench.took = began.then(async (from) => (await once(isReady)) - from);
    },
  };
}

const sorted = (list) => list.toSorted((a, b) => a - b);
const median = (list) => sorted(list)[Math.floor((list.length - 1) / 2)];
const worst = (list) => Math.max(...list);
const rounded = (value) => Math.round(value * 10) / 10;

/** Signed in, with nothing of the console in its cache. */
async function freshWindow(browser, belfry) {
  const page = await openWindow(browser);
  await page.addInitScript(instrument);
  const answer = await page.context().request.post(`${belfry.url}/api/v1/login`, { data: { user: 'admin', password: belfry.password } });
  if (!answer.ok()) throw new Error(`login: ${answer.status()} ${await answer.text()}`);
  return page;
}

/** From the start of the navigation to the frame with the data, in milliseconds. */
async function paint(page, belfry, place, what) {
  await page.goto('about:blank');
  await page.goto(`${belfry.url}/${place}`, { waitUntil: 'commit' });
  return page.evaluate((wanted) => bench.when(wanted), what);
}

async function go(page, place, what) {
  await page.evaluate((hash) => (location.hash = hash), place);
  await page.evaluate((wanted) => bench.when(wanted), what);
}

async function paints(browser, belfry, into) {
  for (const [name, place, what] of [['Overview', '#/', 'overview'], ['Jobs', '#/jobs', 'jobs']]) {
    const page = await freshWindow(browser, belfry);
    const asked = [];
    page.on('request', (request) => request.url().includes('/api/') && asked.push(new URL(request.url()).pathname));
    into(`${name} painted, cold`, await paint(page, belfry, place, what));
    if (name === 'Overview') into('Overview with timeline and heat map, cold', await page.evaluate(() => bench.when('overviewAll')));
    into(`${name}: requests to the API`, asked.length);
    for (const [path, ms] of await answers(page)) into(`answer ${name} ${path}`, ms);
    into(`${name} painted, warm`, await paint(page, belfry, place, what));
    if (page.errors.length > 0) throw new Error(page.errors.join('\n'));
    await page.context().close();
  }
}

/** How long the server took for each request, to say where the time goes. */
function answers(page) {
  return page.evaluate(() =>
    performance
      .getEntriesByType('resource')
      .filter((entry) => entry.name.includes('/api/') && entry.responseEnd > 0)
      .map((entry) => [new URL(entry.name).pathname, entry.responseEnd - entry.requestStart]),
  );
}

async function interactions(browser, belfry, into) {
  const page = await freshWindow(browser, belfry);
  await paint(page, belfry, '#/jobs', 'jobs');
  await typing(page, belfry, (ms) => into('typing in the filter of jobs', ms));
  await opening(page, into);
  await go(page, '#/runs', 'runs');
  for (let next = 0; next < 8; next++) {
    await page.evaluate(() => {
      const count = () => document.querySelector('h1 ~ .tabular')?.textContent;
      const before = count();
      bench.after('keydown', () => count() !== before);
    });
    await page.keyboard.press('End');
    into('the next page of runs', await page.evaluate(() => bench.took));
    await wait(100);
  }
  if (page.errors.length > 0) throw new Error(page.errors.join('\n'));
  await page.context().close();
}

/** Of letters that change the first row: others cannot be seen to be answered. */
async function typing(page, belfry, into) {
  const field = page.locator('form[role=search] input[type=search]').first();
  const firstOf = async (q) => (await belfry.api('GET', `/jobs?limit=1&q=${encodeURIComponent(q)}`)).items[0]?.name;
  for (const word of WORDS) {
    await field.fill('');
    let before = await firstOf('');
    await page.waitForFunction((name) => document.querySelector('tr[data-row] .name')?.textContent.endsWith(`/${name}`), before);
    for (let length = 1; length <= word.length; length++) {
      const q = word.slice(0, length);
      const first = await firstOf(q);
      if (!first) break;
      const changes = first !== before;
      before = first;
      if (changes) await page.evaluate((name) => bench.after('keydown', () => document.querySelector('tr[data-row] .name')?.textContent.endsWith(`/${name}`)), first);
      await page.keyboard.type(q.at(-1));
      if (changes) into(await page.evaluate(() => bench.took));
      await wait(250);
    }
  }
  await field.fill('');
  await page.waitForFunction(() => !location.hash.includes('q='));
  await wait(500);
}

async function opening(page, into) {
  for (let row = 0; row < 6; row++) {
    const name = page.locator('tr[data-row] a.name').nth(row * 3);
    await page.evaluate((wanted) => {
      bench.after('mousedown', () => {
        const title = document.querySelector('h1')?.textContent;
        return wanted.endsWith(`/${title}`) && document.querySelector('main table tbody tr') && !document.querySelector('main .loading');
      });
    }, await name.textContent());
    await name.click();
    into('opening a job', await page.evaluate(() => bench.took));
    for (const tab of [1, 2, 3, 0]) {
      await page.evaluate((index) => {
        const link = document.querySelectorAll('main nav:has(> [aria-current=page]) a')[index];
        bench.after('mousedown', () => link.ariaCurrent === 'page' && !document.querySelector('main .loading'));
      }, tab);
      await page.locator('main nav:has(> [aria-current=page]) a').nth(tab).click();
      into('switching tabs of a job', await page.evaluate(() => bench.took));
    }
    await go(page, '#/jobs', 'jobs');
    await wait(300);
  }
}

/** Through all jobs, a screen and more at a time, and a row chosen now and then. */
async function scrolling(browser, belfry, into) {
  const page = await freshWindow(browser, belfry);
  await paint(page, belfry, '#/jobs', 'jobs');
  await page.mouse.move(600, 600);
  await page.evaluate(() => {
    bench.tasks = [0];
    new PerformanceObserver((list) => bench.tasks.push(...list.getEntries().map((entry) => entry.duration))).observe({ type: 'longtask' });
  });
  let last = 0;
  for (let step = 0; last < BIG.jobs; step++) {
    await page.waitForFunction(() => !document.querySelector('.more button')?.disabled);
    await page.evaluate(() => {
      const before = scrollY;
      const isRow = (y) => document.elementFromPoint(600, y)?.closest('tr[data-row]');
      const isEnd = () => scrollY + innerHeight >= document.documentElement.scrollHeight - 1;
      // Above the bar that comes with a choice.
      bench.after('wheel', () => scrollY !== before && isRow(innerHeight / 2) && (isRow(innerHeight - 150) || isEnd()));
      // A row that is drawn already changes nothing that an observer sees.
      addEventListener('scroll', () => document.documentElement.toggleAttribute('data-scrolled'), { once: true });
    });
    await page.mouse.wheel(0, 1_800);
    into('scrolling through all jobs', await page.evaluate(() => bench.took));
    if (step % 10 === 9) {
      // This very one: the rows that are drawn may change before the click.
      const box = await page.locator('tr[data-row] input[type=checkbox]').nth(20).elementHandle();
      await box.evaluate((input) => {
        const chosen = input.checked;
        bench.after('mousedown', () => input.isConnected && input.checked !== chosen && input.closest('tr').classList.contains('chosen') !== chosen);
      });
      await box.click();
      into('choosing a row', await page.evaluate(() => bench.took));
    }
    last = await page.evaluate(() => Math.max(...[...document.querySelectorAll('tr[data-row]')].map((row) => row.ariaRowIndex ?? row.getAttribute('aria-rowindex')))) - 1;
  }
  for (const ms of await page.evaluate(() => bench.tasks)) into('longest task while scrolling', ms);
  if (page.errors.length > 0) throw new Error(page.errors.join('\n'));
  await page.context().close();
}

/** From the moment that a program prints a line to the frame that shows it. */
async function lines(browser, belfry, into) {
  const page = await freshWindow(browser, belfry);
  const command = `sleep 4; for i in $(seq ${LINES}); do echo "line $i at $(date +%s%3N)."; sleep 0.23; done`;
  const name = `print-lines-${Date.now()}`;
  await belfry.api('POST', '/jobs', { name, action: { shell: { command } } });
  const run = await belfry.api('POST', `/jobs/default/${name}/run`, {});
  await page.goto(`${belfry.url}/#/runs/${run.id}`);
  await page.locator('[role=log]').waitFor();
  await page.evaluate(() => {
    bench.lines = new Map();
    const look = () => {
      for (const [, number, at] of document.querySelector('[role=log]')?.textContent.matchAll(/line (\d+) at (\d+)\./g) ?? []) {
        if (bench.lines.has(number)) continue;
        bench.lines.set(number, null);
        void bench.painted().then(() => bench.lines.set(number, Date.now() - Number(at)));
      }
    };
    new MutationObserver(look).observe(document.body, { subtree: true, childList: true, characterData: true });
  });
  const seen = () => page.evaluate(() => [...bench.lines.values()]);
  await until('all lines are shown', async () => (await seen()).filter((ms) => ms !== null).length === LINES);
  for (const ms of await seen()) into('a printed line is seen', ms);
  await page.context().close();
}

const fills = process.env.BELFRY_FILL;
if (!fills) throw new Error('BELFRY_FILL must name the program that fills a store: target/release/examples/console_data');
const filled = ({ jobs, runs }) => startBelfry({ prepare: (data) => console.log(String(execFileSync(fills, [data, jobs, runs])).trim()) });

const got = { big: new Map(), small: new Map() };
const into = (which) => (name, value) => got[which].set(name, [...(got[which].get(name) ?? []), value]);
const belfry = { big: await filled(BIG), small: await filled(SMALL) };
const load = () => loadavg()[0].toFixed(1);
const loadBefore = load();
const browser = await startBrowser(['--disable-smooth-scrolling']);
try {
  // What a server does after its start is not what is measured.
  await wait(10_000);
  for (let round = 0; round < ROUNDS; round++) for (const which of ['big', 'small']) await paints(browser, belfry[which], into(which));
  for (let round = 0; round < 3; round++) for (const which of ['big', 'small']) await interactions(browser, belfry[which], into(which));
  await scrolling(browser, belfry.big, into('big'));
  for (const which of ['big', 'small']) await lines(browser, belfry[which], into(which));
} finally {
  await browser.close();
  for (const one of Object.values(belfry)) await one.stop();
}

function figure(name, { most, of = median, called = 'median', judged = true, unit = 'ms', label = name } = {}) {
  const value = of(got.big.get(name));
  const small = got.small.get(name);
  const aim = judged && most ? { at_most: most } : {};
  console.log(JSON.stringify({ figure: called ? `${label}, ${called}` : label, value: rounded(value), unit, ...(small && unit ? { baseline: rounded(of(small)) } : {}), ...aim }));
}
const andWorst = (name, most) => {
  figure(name, { most });
  figure(name, { of: worst, called: `longest of ${got.big.get(name).length}` });
};
for (const name of ['Overview', 'Jobs']) for (const kind of ['cold', 'warm']) andWorst(`${name} painted, ${kind}`, PAINT_MS_MAX);
figure('Overview with timeline and heat map, cold');
figure('Overview: requests to the API', { most: OVERVIEW_REQUESTS_MAX, of: worst, called: '', unit: '' });
figure('Jobs: requests to the API', { of: worst, called: '', unit: '' });
for (const name of ['typing in the filter of jobs', 'scrolling through all jobs', 'choosing a row', 'opening a job', 'switching tabs of a job', 'the next page of runs']) {
  andWorst(name, INTERACTION_MS_MAX);
}
figure('longest task while scrolling', { of: worst, called: '', most: INTERACTION_MS_MAX });
figure('a printed line is seen', { most: LINE_MS_MAX });
figure('a printed line is seen', { most: LINE_MS_MAX, of: worst, called: `longest of ${LINES}` });
for (const [name, all] of got.big) if (name.startsWith('answer ')) console.log(`${name}: ${median(all).toFixed(0)} ms, on the small store ${median(got.small.get(name) ?? [Number.NaN]).toFixed(0)}`);
console.log(`load of the machine before ${loadBefore}, after ${load()}`);
