// The requests about jobs that pages share.
import { client, take } from './client';
import type { Job } from './views';
import { asOneWish } from './key';
import type { Page } from './pager.svelte';

export interface JobFilter {
  q?: string | undefined;
  namespace?: string | undefined;
  label?: string | undefined;
  state?: string | undefined;
  node?: string | undefined;
}

export const JOBS_PAGE = 100;
const RESULTS_SHOWN = 60;

export function listJobs(filter: JobFilter, cursor: string | undefined, signal: AbortSignal): Promise<Page<Job>> {
  return take(client.GET('/api/v1/jobs', { params: { query: { ...filter, cursor, limit: JOBS_PAGE, recent: RESULTS_SHOWN } as object }, signal }));
}

/** How many jobs there are in each. */
export async function readNamespaces(): Promise<Record<string, number>> {
  const { items } = await take(client.GET('/api/v1/namespaces'));
  return Object.fromEntries(items.map((namespace) => [namespace.name, namespace.jobs]));
}

export function readJob(ns: string, name: string, signal: AbortSignal): Promise<Job> {
  return take(client.GET('/api/v1/jobs/{ns}/{name}', { params: { path: { ns, name }, query: { recent: RESULTS_SHOWN } }, signal }));
}

export function pauseJob(ns: string, name: string): Promise<unknown> {
  return take(client.POST('/api/v1/jobs/{ns}/{name}/pause', { params: { path: { ns, name } } }));
}

export function resumeJob(ns: string, name: string): Promise<unknown> {
  return take(client.POST('/api/v1/jobs/{ns}/{name}/resume', { params: { path: { ns, name } } }));
}

export interface RunParameters {
  env?: Record<string, string>;
  node?: string;
  force?: boolean;
}

export function runJob(ns: string, name: string, given: RunParameters = {}) {
  return asOneWish([ns, name, given], (key) => take(client.POST('/api/v1/jobs/{ns}/{name}/run', { params: { path: { ns, name } }, body: { ...given, idempotency_key: key } })));
}

/** A null takes the label away. */
export function labelJob(ns: string, name: string, labels: Record<string, string | null>): Promise<unknown> {
  const body = { labels } as never;
  return take(client.PATCH('/api/v1/jobs/{ns}/{name}', { params: { path: { ns, name }, header: {} }, body }));
}
