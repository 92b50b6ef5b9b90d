// Every page of the console, one line each.
import type { Component } from 'svelte';

import type { Messages } from './i18n/messages.svelte';
import { fillPath, formatPlace, matchPath } from './place';
import type { Role } from './roles';

export type PageModule = { default: Component<{ params: Record<string, string> }> };

export interface Route {
  path: string;
  load: () => Promise<unknown>;
  /** In the menu under this name, for those who hold the role somewhere (or everywhere). */
  menu?: { label: keyof Messages['menu']; needs: Role; everywhere?: boolean };
  /** Shown without a session. */
  open?: boolean;
}

export const routes = {
  overview: { path: '/', load: () => import('./pages/Overview.svelte'), menu: { label: 'overview', needs: 'viewer' } },
  jobs: { path: '/jobs', load: () => import('./pages/Jobs.svelte'), menu: { label: 'jobs', needs: 'viewer' } },
  newJob: { path: '/new/job', load: () => import('./pages/EditJob.svelte') },
  editJob: { path: '/jobs/:ns/:name/edit', load: () => import('./pages/EditJob.svelte') },
  job: { path: '/jobs/:ns/:name', load: () => import('./pages/Job.svelte') },
  runs: { path: '/runs', load: () => import('./pages/Runs.svelte'), menu: { label: 'runs', needs: 'viewer' } },
  run: { path: '/runs/:id', load: () => import('./pages/Run.svelte') },
  nodes: { path: '/nodes', load: () => import('./pages/Nodes.svelte'), menu: { label: 'nodes', needs: 'viewer', everywhere: true } },
  node: { path: '/nodes/:id', load: () => import('./pages/Node.svelte') },
  services: { path: '/services', load: () => import('./pages/Services.svelte'), menu: { label: 'services', needs: 'viewer' } },
  scripts: { path: '/scripts', load: () => import('./pages/Scripts.svelte'), menu: { label: 'scripts', needs: 'viewer' } },
  newScript: { path: '/new/script', load: () => import('./pages/Script.svelte') },
  script: { path: '/scripts/:ns/:name', load: () => import('./pages/Script.svelte') },
  users: { path: '/users', load: () => import('./pages/Users.svelte'), menu: { label: 'users', needs: 'admin', everywhere: true } },
  tokens: { path: '/tokens', load: () => import('./pages/Tokens.svelte'), menu: { label: 'tokens', needs: 'viewer' } },
  audit: { path: '/audit', load: () => import('./pages/Audit.svelte'), menu: { label: 'audit', needs: 'admin' } },
  password: { path: '/password', load: () => import('./pages/Password.svelte') },
  login: { path: '/login', load: () => import('./pages/Login.svelte'), open: true },
} satisfies Record<string, Route>;

export type RouteName = keyof typeof routes;
export const routeNames = Object.keys(routes) as RouteName[];

export function routeOf(name: RouteName): Route {
  return routes[name];
}

/** The address of a page: `href('job', { ns: 'shop', name: 'nightly' }, { tab: 'revisions' })`. */
export function href(
  name: RouteName,
  params: Readonly<Record<string, string>> = {},
  query: Readonly<Record<string, string | undefined>> = {},
): string {
  return formatPlace(fillPath(routes[name].path, params), query);
}

export function findRoute(path: string): { name: RouteName; params: Record<string, string> } | null {
  for (const name of routeNames) {
    const params = matchPath(routes[name].path, path);
    if (params) return { name, params };
  }
  return null;
}
