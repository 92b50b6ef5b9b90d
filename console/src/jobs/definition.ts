// What a job document says, in words: one row for each thing that one would ask. Pure.
import type { Job } from '../api/views';
import type { Messages } from '../i18n/messages.svelte';
import { scheduleWords } from '../schedule/words';

export interface DefinitionRow {
  term: string;
  text: string;
  /** Shown as it stands, in the type of code. */
  code?: string;
}

type Document = Job['document'];
type Words = Messages['definition'];

export function definition(job: Job, t: Messages): DefinitionRow[] {
  const d = t.definition;
  const document = job.document;
  const rows: (DefinitionRow | null)[] = [
    { term: d.what, text: kind(document, d), code: job.command },
    { term: d.when, text: when(document, t), code: expressions(document) },
    identity(document, d),
    { term: d.where, text: where(document, d) },
    service(document) ? null : { term: d.going, text: d.overlap[document.overlap ?? 'forbid'] },
    service(document) || !document.schedule ? null : { term: d.missed, text: missed(document, d) },
    { term: d.timeout, text: job.timeout ? d.timeoutIs(job.timeout.after, d.timeoutAction[job.timeout.action as 'kill'] ?? job.timeout.action, job.timeout.grace, job.timeout.from === 'cluster') : d.noTimeout },
    service(document) ? null : { term: d.retry, text: retry(document, d) },
    { term: d.cutOff, text: d.whenCutOff[service(document) || document.retry?.on?.includes('lost') ? 'stop' : (document.when_cut_off ?? 'finish')] },
    limits(document, d),
    document.signature ? { term: d.signature, text: document.signature.file, code: document.signature.sha256 ?? document.signature.md5 ?? '' } : null,
    output(document, d),
    { term: d.kept, text: d.retention(document.retention?.age ?? d.defaultAge, document.retention?.runs) },
    document.webhook ? { term: d.webhook, text: d.webhookOn((document.webhook.on ?? d.webhookDefault).join(', ')), code: document.webhook.url } : null,
    document.expect ? { term: d.expect, text: d.expects(document.expect.start_within, document.expect.max_duration) } : null,
    told(document, d),
  ];
  return rows.filter((row) => row !== null);
}

function service(document: Document): boolean {
  return 'service' in document.action;
}

function kind(document: Document, d: Words): string {
  const [name = ''] = Object.keys(document.action);
  return (d.kinds as Record<string, string>)[name] ?? name;
}

function expressions(document: Document): string {
  return typeof document.schedule === 'string' ? document.schedule : (document.schedule ?? []).join('  ·  ');
}

function when(document: Document, t: Messages): string {
  const d = t.definition;
  if (service(document)) return d.always;
  const parts = [scheduleWords(document.schedule, t.schedule)];
  if (document.schedule && document.timezone) parts.push(d.zone(document.timezone));
  if (document.jitter) parts.push(d.jitter(document.jitter));
  if (document.window?.from) parts.push(d.from(document.window.from));
  if (document.window?.until) parts.push(d.until(document.window.until));
  if (document.dst?.gap === 'skip') parts.push(d.gapSkip);
  if (document.dst?.overlap && document.dst.overlap !== 'first') parts.push(d.overlapHour[document.dst.overlap]);
  return parts.join(d.joint);
}

function identity(document: Document, d: Words): DefinitionRow | null {
  const as = document.as;
  if (!as) return null;
  const parts = [as.user && d.user(as.group ? `${as.user}:${as.group}` : as.user), as.directory && d.directory(as.directory), as.umask && `umask ${as.umask}`];
  const env = Object.entries(as.env ?? {}).map(([key, value]) => `${key}=${value}`);
  return { term: d.identity, text: parts.filter(Boolean).join(d.joint) || d.environment, ...(env.length ? { code: env.join('  ') } : {}) };
}

function where(document: Document, d: Words): string {
  const placement = typeof document.placement === 'object' ? d.stickyFor(document.placement.sticky) : d.placement[document.placement ?? 'weighted'];
  const runOn = document.run_on ?? 'one';
  const parts = [runOn === 'one' || service(document) ? d.onOne(placement) : d.runOn[runOn]];
  const select = document.select;
  if (select?.hosts?.length) parts.push(d.hosts(select.hosts.join(', ')));
  const labels = Object.entries(select?.labels ?? {}).map(([key, value]) => `${key}=${value}`);
  if (labels.length) parts.push(d.labelled(labels.join(', ')));
  if (select?.exclude?.length) parts.push(d.without(select.exclude.join(', ')));
  const needs = Object.entries(document.needs ?? {}).map(([key, value]) => `${value} ${key}`);
  if (needs.length) parts.push(d.needs(needs.join(', ')));
  return parts.join(d.joint);
}

function missed(document: Document, d: Words): string {
  const { policy = 'latest', within = '1h', limit = 10 } = document.misfire ?? {};
  return policy === 'skip' ? d.misfireSkip : policy === 'all' ? d.misfireAll(limit, within) : d.misfireLatest(within);
}

function retry(document: Document, d: Words): string {
  const rule = document.retry;
  if (!rule || rule.attempts <= 1) return d.once;
  const on = (rule.on ?? ['failed', 'timed_out']).join(', ');
  const wait = rule.backoff === 'fixed' ? d.fixed(rule.delay ?? '10s') : d.doubling(rule.delay ?? '10s', rule.max_delay ?? '5m');
  return [d.attempts(rule.attempts, on), wait, d.retryWhere[rule.where ?? 'any']].join(d.joint);
}

function limits(document: Document, d: Words): DefinitionRow | null {
  const entries = Object.entries(document.limits ?? {});
  return entries.length ? { term: d.limits, text: entries.map(([key, value]) => `${key} ${value}`).join(d.joint) } : null;
}

function output(document: Document, d: Words): DefinitionRow | null {
  const { keep, fail_on } = document.output ?? {};
  if (!keep && !fail_on) return null;
  return { term: d.output, text: [keep && d.keep(keep), fail_on && d.failOn].filter(Boolean).join(d.joint), ...(fail_on ? { code: fail_on } : {}) };
}

function told(document: Document, d: Words): DefinitionRow | null {
  const names = [...(document.owners ?? []), ...(document.notify ?? [])];
  return names.length ? { term: d.told, text: names.join(', ') } : null;
}
