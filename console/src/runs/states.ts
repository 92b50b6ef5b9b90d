// The states of a run and how each is drawn: a tone for its colour, an icon and a shape so that colour is never alone.

export const RUN_STATES = [
  'claimed',
  'dispatched',
  'running',
  'waiting',
  'succeeded',
  'failed',
  'timed_out',
  'killed',
  'lost',
  'skipped',
  'cancelled',
] as const;
export type RunState = (typeof RUN_STATES)[number];
export type Tone = 'ok' | 'bad' | 'warn' | 'run' | 'idle';

const TONES: Record<RunState, Tone> = {
  claimed: 'idle',
  dispatched: 'run',
  running: 'run',
  waiting: 'warn',
  succeeded: 'ok',
  failed: 'bad',
  timed_out: 'bad',
  killed: 'warn',
  lost: 'bad',
  skipped: 'idle',
  cancelled: 'idle',
};

export const OPEN_STATES: readonly string[] = ['claimed', 'dispatched', 'running', 'waiting'];
/** Ends that somebody should look at. */
export const BAD_STATES: readonly string[] = ['failed', 'timed_out', 'lost'];

export function isRunState(state: string): state is RunState {
  return (RUN_STATES as readonly string[]).includes(state);
}

export function toneOf(state: string): Tone {
  return isRunState(state) ? TONES[state] : 'idle';
}

export function isOpen(state: string): boolean {
  return OPEN_STATES.includes(state);
}
