// Lists of runs, their time range, and the steps of one.
import { describe, expect, it } from 'vitest';

import type { Run } from '../../src/api/runs';
import { matches, remains, withRuns } from '../../src/runs/live';
import { rangeOf } from '../../src/runs/range';
import { steps } from '../../src/runs/steps';
import { barAt, stripPaths } from '../../src/runs/strip';

const run = (id: string, more: Partial<Run> = {}) =>
  ({ id, state: 'running', namespace: 'shop', job_name: 'nightly', planned: '2026-11-18T04:00:00Z', node_name: 'n1', command: 'x', ...more }) as Run;

describe('a list of runs', () => {
  it('takes in what changed and what is new', () => {
    const list = withRuns([run('02'), run('01')], [run('01', { state: 'failed', command: null }), run('03')]);
    expect(list.map(({ id, state, command }) => [id, state, command])).toEqual([
      ['03', 'running', 'x'],
      ['02', 'running', 'x'],
      ['01', 'failed', 'x'],
    ]);
  });
  it('shows only what its filter means', () => {
    expect(matches(run('1'), { job: 'shop/nightly', state: 'running,claimed', node: 'n1' })).toBe(true);
    expect(matches(run('1'), { state: 'failed' })).toBe(false);
    expect(matches(run('1'), { to: '2026-11-18T04:00:00Z' })).toBe(false);
  });
  it('keeps what the server gave for a name that the run did not have, until its state or node is another one', () => {
    const moved = run('1', { node: 'N1', node_name: 'was-n1', job_name: 'was-nightly' });
    expect([remains(moved, undefined, undefined), remains(moved, ',running', 'N1')]).toEqual([true, true]);
    expect([remains(moved, 'failed', undefined), remains(moved, 'running', 'N2')]).toEqual([false, false]);
  });
  it('lets go what has left its span of time', () => {
    const at = (text: string) => remains(run('1'), undefined, undefined, rangeOf({ last: 'h1' }, Date.parse(text)).from);
    expect([at('2026-11-18T05:00:59Z'), at('2026-11-18T05:01:00Z')]).toEqual([true, false]);
  });
  it('takes a name alone for one of the namespace default, and empty words for nothing, as the server does', () => {
    expect(matches(run('1'), { job: 'nightly' })).toBe(false);
    expect(matches(run('1', { namespace: 'default' }), { job: 'nightly', state: ',running' })).toBe(true);
    expect(matches(run('1'), { state: ',' })).toBe(true);
  });
});

it('a range is a span before now or two instants', () => {
  const now = Date.parse('2026-11-18T12:34:56Z');
  expect(rangeOf({ last: 'h1' }, now)).toEqual({ from: '2026-11-18T11:34:00.000Z' });
  expect(rangeOf({ from: '2026-11-18T00:00:00Z', to: 'nonsense' }, now)).toEqual({ from: '2026-11-18T00:00:00.000Z' });
});

it('steps tell the delay of each, a start from its instant, a claim also ahead of it', () => {
  const told = steps({ planned: '2026-11-18T04:00:00.000Z', claimed_at: '2026-11-18T03:59:59.200Z', dispatched_at: null, started_at: '2026-11-18T04:00:00.005Z', ended_at: null });
  expect(told.map((step) => step.afterMs)).toEqual([null, -800, null, 5, null]);
});

it('a strip has one path for each tone, and finds the run under the pointer', () => {
  expect(stripPaths(['succeeded', 'failed', 'succeeded', 'lost']).map(([tone]) => tone)).toEqual(['ok', 'bad']);
  expect([barAt(0, 3), barAt(14, 3), barAt(15, 3), barAt(-1, 3)]).toEqual([0, 2, null, null]);
});
