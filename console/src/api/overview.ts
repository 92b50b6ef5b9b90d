// The requests of the front page.
import type { Forecast, Overview, Timeline } from './views';
import { client, take } from './client';

const DAYS = 7;

export function readOverview(signal: AbortSignal): Promise<Overview> {
  return take(client.GET('/api/v1/overview', { params: { query: { days: DAYS } }, signal }));
}

export function readForecast(from: number, to: number, signal: AbortSignal): Promise<Forecast> {
  return take(client.GET('/api/v1/forecast', { params: { query: span(from, to) }, signal }));
}

export function readTimeline(from: number, to: number, by: 'job' | 'node', signal: AbortSignal): Promise<Timeline> {
  return take(client.GET('/api/v1/timeline', { params: { query: { ...span(from, to), by } }, signal }));
}

export function readCluster(signal: AbortSignal) {
  return take(client.GET('/api/v1/cluster', { signal }));
}

function span(from: number, to: number): { from: string; to: string } {
  return { from: new Date(from).toISOString(), to: new Date(to).toISOString() };
}
