// Chromium for the browser tests: windows that are signed in, what axe finds, and texts that stand in the wrong language.
import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';

import { chromium } from 'playwright-core';

import { startBelfry, until } from './belfry.mjs';

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const shots = process.env.SCREENSHOTS;
/** For a machine that is busy with other tests: it ends what never comes, and judges no speed. */
const NEVER_MS = 60_000;

export async function startBrowser(flags = []) {
  return chromium.launch({
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    timeout: NEVER_MS,
    args: ['--no-sandbox', '--disable-gpu', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--no-first-run', ...flags],
  });
}

/** A server and a browser, or neither: what is left of a start that failed would keep the tests from ever ending. */
export async function startBoth(how) {
  const [belfry, browser] = await Promise.allSettled([startBelfry(how), startBrowser()]);
  if (belfry.value && browser.value) return [belfry.value, browser.value];
  await browser.value?.close();
  await belfry.value?.stop();
  throw belfry.reason ?? browser.reason;
}

/** A window of its own: other cookies, other storage. Errors of this page, and of others that are opened beside it, are kept in `errors`. */
export async function openWindow(browser, { language = 'en', scheme = 'light', width = 1360, height = 900 } = {}) {
  const context = await browser.newContext({
    locale: language === 'zh' ? 'zh-CN' : 'en-GB',
    timezoneId: 'Asia/Shanghai',
    colorScheme: scheme,
    viewport: { width, height },
    permissions: ['clipboard-read', 'clipboard-write'],
  });
  context.setDefaultTimeout(NEVER_MS);
  await context.addInitScript(keepToasts);
  const page = await context.newPage();
  page.errors = [];
  context.on('weberror', (thrown) => page.errors.push(String(thrown.error().stack ?? thrown.error())));
  context.on('console', (message) => {
    // A refusal that the page shows is an answer, not an error of the page.
    if (message.type() === 'error' && !/status of (4\d\d|50[234])|ERR_CONNECTION|ERR_INCOMPLETE|ERR_EMPTY/.test(message.text())) page.errors.push(message.text());
  });
  return page;
}

/** Runs in the page, before anything of it. */
function keepToasts() {
  globalThis.toasts = [];
  new MutationObserver((changes) => {
    for (const added of changes.flatMap((change) => [...change.addedNodes])) if (added.matches?.('.toast')) globalThis.toasts.push(added.textContent);
  }).observe(document, { subtree: true, childList: true });
}

/** What was answered in passing: it goes away by itself, which a busy machine may sleep through. */
export async function toasted(page, text) {
  await page.waitForFunction((wanted) => globalThis.toasts.some((toast) => toast.includes(wanted)), text);
}

const SIGN_IN_TRIES = 4;

export async function signIn(page, belfry, user = 'admin', password = belfry.password, place = '#/') {
  await page.goto(`${belfry.url}/${place}`);
  const secret = page.locator('input[type=password]');
  for (let tries = 1; ; tries++) {
    await page.locator('input[autocomplete=username]').fill(user);
    await secret.fill(password);
    const answered = page.waitForResponse((answer) => answer.url().endsWith('/api/v1/login'));
    await page.locator('form button.primary').click();
    // "Try again": on a busy machine the store may be too slow for it.
    if ((await answered).status() !== 503 || tries === SIGN_IN_TRIES) break;
    await until('the page asks for the password again', async () => (await secret.inputValue()) === '');
  }
  await page.locator('header.bar nav').waitFor().catch(async (late) => {
    throw new Error(`${user} was not let in: ${await page.locator('body').innerText()}\n${page.errors.join('\n')}\n${belfry.log()}`, { cause: late });
  });
  await settled(page, place);
}

/** Goes to a place of the console and waits until what it reads is there. */
export async function visit(page, belfry, place) {
  const moves = await page.evaluate(
    (hash) =>
      new Promise((read) => {
        const [from, before] = [location.hash.split('?')[0], location.href];
        // So that the focus which the page takes can be told from the one that was.
        document.activeElement?.blur();
        const went = () => read(location.hash.split('?')[0] !== from);
        // The router listens since before.
        addEventListener('hashchange', went, { once: true });
        location.hash = hash;
        if (location.href === before) went();
      }),
    place,
  );
  await settled(page, place);
  // Whatever one types before that goes elsewhere.
  if (moves) await page.waitForFunction(() => ['H1', 'MAIN'].includes(document.activeElement?.tagName));
}

/** The page of this place is shown, and not the one before it; what it reads is there. */
export async function settled(page, place) {
  const path = place.slice(1).split('?')[0];
  await page.locator(`main[data-path=${JSON.stringify(path)}] h1`).first().waitFor();
  await page.waitForFunction(() => document.querySelector('.loading') === null);
}

export async function violations(page) {
  // Through the debugger: the page's own policy forbids foreign scripts, and shall.
  await page.evaluate(axe);
  const { violations: found } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
  return found.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html.slice(0, 200)} ${node.any[0]?.message ?? node.all[0]?.message ?? ''}`));
}

export async function shot(page, name) {
  if (!shots) return;
  mkdirSync(shots, { recursive: true });
  await page.screenshot({ path: join(shots, `${name}.png`) });
}

/** All visible text, piece by piece, with labels, titles and placeholders. */
export function visibleTexts(page) {
  return page.evaluate(() => {
    const texts = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT | NodeFilter.SHOW_ELEMENT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      if (node.nodeType === Node.TEXT_NODE) {
        if (node.textContent.trim() && !node.parentElement.closest('textarea, code, pre, script, style')) texts.push(node.textContent.trim());
      } else {
        for (const name of ['aria-label', 'title', 'placeholder']) if (node.getAttribute(name)) texts.push(node.getAttribute(name));
      }
    }
    return texts;
  });
}
