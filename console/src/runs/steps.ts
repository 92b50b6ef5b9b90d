// The steps of a run, planned to ended, with the time between them. Pure.
import type { Run } from '../api/runs';

export interface Step {
  key: 'planned' | 'claimed' | 'dispatched' | 'started' | 'ended';
  at: string | null;
  /** Since the step before; negative for a claim ahead of its instant. A start is counted from its instant, which it waits for. */
  afterMs: number | null;
}

type Facts = Pick<Run, 'planned' | 'claimed_at' | 'dispatched_at' | 'started_at' | 'ended_at'>;

export function steps(run: Facts): Step[] {
  const times: [Step['key'], string | null | undefined][] = [
    ['planned', run.planned],
    ['claimed', run.claimed_at],
    ['dispatched', run.dispatched_at],
    ['started', run.started_at],
    ['ended', run.ended_at],
  ];
  const planned = Date.parse(run.planned);
  let before: number | null = null;
  return times.map(([key, at]) => {
    const now = at ? Date.parse(at) : null;
    const since = before !== null && key === 'started' ? Math.max(before, planned) : before;
    const afterMs = now !== null && since !== null ? now - since : null;
    before = now ?? before;
    return { key, at: at ?? null, afterMs };
  });
}
