// What is known of a run beside its steps, as rows of term and text. Pure.
import type { Run } from '../api/runs';
import type { Messages } from '../i18n/messages.svelte';
import { bytes, duration } from '../time';

export interface Fact {
  term: string;
  text: string;
}

/** `said`: what the API says, in the language of the page. */
export function facts(run: Run, t: Messages, said: (text: string) => string): Fact[] {
  const f = t.run.facts;
  const by = run.triggered_by ? ` · ${run.triggered_by}` : '';
  const rows: (Fact | false)[] = [
    { term: t.runs.trigger, text: (t.trigger[run.trigger] ?? run.trigger) + by },
    run.exit_code != null && { term: f.exit, text: String(run.exit_code) },
    run.signal != null && { term: f.signal, text: String(run.signal) },
    run.fence > 0 && { term: f.fence, text: String(run.fence) },
    run.lag_ms != null && { term: f.lag, text: duration(run.lag_ms) },
    // Measured at the end: until then zero means nothing.
    run.cpu_ms > 0 && { term: f.cpu, text: duration(run.cpu_ms) },
    run.max_rss_bytes > 0 && { term: f.memory, text: bytes(run.max_rss_bytes) },
    run.output_bytes > 0 && { term: f.output, text: bytes(run.output_bytes) + (run.output_dropped_bytes > 0 ? f.dropped(bytes(run.output_dropped_bytes)) : '') },
    run.limits_held.length > 0 && { term: f.limits, text: run.limits_held.map(said).join(', ') },
    run.left_behind > 0 && { term: f.leftBehind, text: String(run.left_behind) },
    Boolean(run.script) && { term: f.script, text: said(run.script ?? '') },
    run.late && { term: f.late, text: f.lateText },
    ...run.marks.map((mark) => ({ term: f.mark, text: f.marks[mark] ?? mark })),
  ];
  return rows.filter((row) => row !== false);
}
