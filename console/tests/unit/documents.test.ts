// Job documents as text and in words.
import { describe, expect, it } from 'vitest';

import type { Job } from '../../src/api/views';
import { en } from '../../src/i18n/en';
import { zh } from '../../src/i18n/zh';
import { definition } from '../../src/jobs/definition';
import { readEnvironment } from '../../src/jobs/environment';
import { yaml } from '../../src/jobs/yaml';
import { fireRows, offsetAt } from '../../src/schedule/fires';

describe('a document as YAML', () => {
  it('quotes only what YAML would read otherwise', () => {
    const document = { name: 'a', schedule: '0 4 * * *', enabled: true, labels: { team: 'db', on: 'yes', n: '12' }, list: ['x', '- y'], none: {}, text: 'a: b' };
    expect(yaml(document)).toBe(
      ['name: a', 'schedule: 0 4 * * *', 'enabled: true', 'labels:', '  team: db', '  "on": "yes"', '  n: "12"', 'list:', '  - x', '  - "- y"', 'none: {}', 'text: "a: b"'].join('\n'),
    );
  });
  it('keeps the lines of a script', () => {
    expect(yaml({ body: '#!/bin/sh\n\necho hi\n' })).toBe('body: |\n  #!/bin/sh\n\n  echo hi');
  });
});

describe('a definition in words', () => {
  const job = {
    command: 'backup --all',
    timeout: { after: '30m', action: 'kill', grace: '10s', from: 'job' },
    document: { name: 'b', action: { shell: { command: 'backup --all' } }, schedule: '0 4 * * *', timezone: 'Asia/Shanghai', retry: { attempts: 3, on: ['lost'], where: 'other' }, needs: { memory: '1GiB' } },
  } as unknown as Job;
  const rows = (messages: typeof en) => Object.fromEntries(definition(job, messages).map((row) => [row.term, row.text]));
  it('answers what one would ask', () => {
    expect(rows(en)).toMatchObject({
      When: '04:00 every day · on the clock of Asia/Shanghai',
      Where: 'on one node: in turn, by weight · needs 1GiB memory free',
      'After a bad end': 'up to 3 attempts in all, after lost · 10s apart, doubling up to 5m · on another node',
      'Node cut off': 'a run is ended before it could start elsewhere',
      'Longest time': '30m, then it is killed (10s from TERM to KILL)',
    });
  });
  it('has as many rows in Chinese', () => {
    expect(definition(job, zh)).toHaveLength(definition(job, en).length);
  });
});

it('lines of KEY=VALUE are read, and the one that is not is named', () => {
  expect(readEnvironment('A=1\n\n B=x=y ')).toEqual({ values: { A: '1', B: 'x=y' } });
  expect(readEnvironment('A=1\n=2')).toEqual({ wrong: '=2' });
});

it('fires show where the clock changes', () => {
  const at = (local: string) => ({ at: local, local, note: null });
  const change = { from: '+02:00', to: '+01:00' };
  const changes = (now: string | null, ...local: string[]) => fireRows(local.map(at), now).map((row) => row.change);
  expect(changes('+02:00', '2026-10-24T02:30:00+02:00', '2026-10-25T02:30:00+01:00')).toEqual([null, change]);
  // Also when it is changed before the next one.
  expect(changes('+02:00', '2026-11-01T02:30:00+01:00', '2026-12-01T02:30:00+01:00')).toEqual([change, null]);
  expect(changes(null, '2026-11-01T02:30:00+01:00')).toEqual([null]);
});
it('the offset of a zone is as the API writes it', () => {
  const [summer, winter] = [Date.parse('2026-07-01T00:00:00Z'), Date.parse('2026-12-01T00:00:00Z')];
  expect([offsetAt(summer, 'Europe/Berlin'), offsetAt(winter, 'Europe/Berlin')]).toEqual(['+02:00', '+01:00']);
  expect(['UTC', 'Europe/London', 'Asia/Kolkata', 'America/St_Johns', 'Not/Known'].map((zone) => offsetAt(winter, zone))).toEqual(['+00:00', '+00:00', '+05:30', '-03:30', null]);
});
