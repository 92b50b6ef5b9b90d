// How the console is built, tried against a server (BELFRY_URL), and unit-tested.
import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vitest/config';

const server = process.env.BELFRY_URL ?? 'http://127.0.0.1:8787';
const proxy = { '/api': server, '/healthz': server, '/readyz': server };

const SELDOM = /src\/(jobs\/edit|nodes|services|scripts|people|audit)\/|src\/i18n\/form|src\/pages\/(EditJob|Nodes?|Services|Scripts?|Users|Tokens|Audit)\.svelte/;

export default defineConfig({
  // Relative, so that the console works under any sub-path of a proxy.
  base: './',
  plugins: [svelte()],
  build: {
    // `light-dark()` and nested CSS as they are written; older browsers are not aimed at.
    target: ['chrome123', 'firefox121', 'safari17.5'],
    // The CSP allows no data: scripts or styles, and images are few.
    assetsInlineLimit: 0,
    modulePreload: false,
    // One file of little more than a kilobyte more at first, instead of code that loads a second one.
    cssCodeSplit: false,
    rolldownOptions: {
      output: {
        // Few chunks: each one costs names and a dictionary of its own. What everybody opens, and what is opened seldom: the editor and the keeping of the cluster.
        codeSplitting: {
          groups: [
            { name: 'console', test: (id) => !SELDOM.test(id), priority: 2 },
            { name: 'seldom', test: SELDOM },
          ],
        },
      },
    },
  },
  server: { proxy },
  preview: { proxy },
  test: {
    projects: [
      { extends: true, test: { name: 'logic', include: ['tests/unit/**/*.test.ts'], exclude: ['**/*.svelte.test.ts'], environment: 'node' } },
      // Effects run only in Svelte as browsers get it.
      { extends: true, resolve: { conditions: ['browser'] }, test: { name: 'effects', include: ['tests/unit/**/*.svelte.test.ts'], environment: './tests/unit/client.env.ts', server: { deps: { inline: [/svelte/] } } } },
    ],
  },
});
