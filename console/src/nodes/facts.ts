// What a node's facts mean: its states, most telling first, and how full its machine is. Pure.
import type { Schemas } from '../api/client';
import type { Tone } from '../runs/states';

export type Node = Schemas['NodeAnswer'];
export type NodeState = 'away' | 'excluded' | 'draining' | 'spool_full' | 'disk_low' | 'clock_off' | 'ready';

const TONES: Record<NodeState, Tone> = {
  away: 'bad',
  excluded: 'idle',
  draining: 'warn',
  spool_full: 'bad',
  disk_low: 'bad',
  clock_off: 'bad',
  ready: 'ok',
};

export function toneOfNode(state: NodeState): Tone {
  return TONES[state];
}

export function statesOf(node: Node): NodeState[] {
  const states: NodeState[] = [];
  if (!node.connected) states.push('away');
  if (node.excluded) states.push('excluded');
  if (node.draining) states.push('draining');
  if (node.spool_full) states.push('spool_full');
  if (node.disk_low) states.push('disk_low');
  if (node.clock_off) states.push('clock_off');
  return states.length ? states : ['ready'];
}

/** From 0 to 1; null where nothing was measured. */
export function used(total: number, free: number): number | null {
  return total > 0 ? Math.min(1, Math.max(0, 1 - free / total)) : null;
}
