// The Chinese of what the API says is held against the sources of the server: a text that is changed there is noticed here.
import { readFileSync } from 'node:fs';

import { describe, expect, it, vi } from 'vitest';

import { translator, type Templates } from '../../src/i18n/templates';
import { rustTexts, textsOf } from './rust';

const file = JSON.parse(readFileSync(new URL('../../src/i18n/said.zh.json', import.meta.url), 'utf8')) as { ours: Templates; others: Templates };
const all = { ...file.ours, ...file.others };
const say = translator(all);

/** `{n}`, `{~why}`, `{}` and `{DURATION_DAYS_MAX}` are the same: something stands there. */
const shapeOf = (text: string) => text.replaceAll('{{', '{').replaceAll('}}', '}').replaceAll(/\{[^{}]*\}/g, '{}');
const sources = rustTexts('belfry-core/src', 'belfry-api/src', 'belfry-control/src', 'belfry-agent/src', 'belfry-exec/src', 'belfry-store/src', 'belfry-sql/src', 'belfry-coord/src', 'belfry/src/serve', 'belfry/src/up.rs');
const shapes = new Set(sources.map(shapeOf));
/** What stands between the places of a text. */
const pieces = new Set(sources.flatMap((text) => shapeOf(text).split('{}')).map(trimmed));
function trimmed(piece: string): string {
  return piece.replaceAll(/^[\s,.;:()`"{}]+|[\s,.;:()`"{}]+$/g, '');
}
/** A text of the sources, or several one after the other. */
function isMade(part: string): boolean {
  const text = trimmed(part);
  if (text === '' || pieces.has(text)) return true;
  return [...text.matchAll(/[ ,;:]+/g)].some(({ index }) => pieces.has(trimmed(text.slice(0, index))) && isMade(text.slice(index)));
}

describe('templates of what the API says', () => {
  it('reads the texts of Rust sources', () => {
    const source = 'let a = "one \\"two\\""; // "no"\nlet b = \'"\'; warn!(%x, "log"); f("long \\\n        text {x}"); r#"raw "q""# \n#[cfg(test)]\nmod tests { "not this" }';
    expect(textsOf(source)).toEqual(['one "two"', 'long text {x}', 'raw "q"']);
  });

  it('are English as the server writes it', () => {
    const unknown = Object.keys(file.ours).filter((template) => {
      if (shapes.has(shapeOf(template))) return false;
      // Made of several texts: each of them is there.
      return !shapeOf(template).split('{}').every(isMade);
    });
    expect(unknown).toEqual([]);
  });

  it('have the same places on both sides', () => {
    const places = (text: string) => [...new Set([...text.matchAll(/\{[~-]?(\w+)\}/g)].map(([, name]) => name))].filter((name) => name !== '_').sort();
    for (const [english, chinese] of Object.entries(all)) expect(places(chinese), english).toEqual(places(english));
  });

  it('leave no English sentence in Chinese, but what a command or a field is called', () => {
    const words = (text: string) => text.replaceAll(/\{[~-]?\w+\}/g, ' ').replaceAll(/belfry [a-z]+( [a-z]+)?|etcdctl [a-z]+( [a-z]+)?|os error/g, '');
    for (const chinese of Object.values(all)) expect(words(chinese)).not.toMatch(/[a-z]{2,} [a-z]{2,} [a-z]{2,}/);
  });

  it('say job as the Chinese README does', () => {
    const files = ['form.zh.json', 'said.zh.json'].map((name) => readFileSync(new URL(`../../src/i18n/${name}`, import.meta.url), 'utf8'));
    for (const text of files) expect(text).not.toMatch(/作业|服务器|协调器|您/);
  });
});

describe('every text of these sources', () => {
  /** Names of tasks, headers, texts that are looked for in others, and what only the local API of a node says. */
  const NOT_SHOWN = [
    'unknown field `',
    'missing field `',
    'unknown variant `',
    'nobody has this password',
    'text/plain; charset=utf-8',
    'text/plain; version=0.0.4; charset=utf-8',
    'the revision that the edit is meant for',
    'the revision that the removal is meant for',
    'the version that the change is meant for',
    'the version that the change is meant for; 0: only if there is none',
    'inline; filename="{}.{}.txt"',
    '… {} bytes left out …',
    '{}={}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}{}',
    'the state was changed in the meantime and is at version {}; read it again and repeat the change',
    'look behind the cursor',
    'look into the store',
    'ask the store for lost runs',
    'last look for ends',
    'deliveries to a webhook',
    '{}/{} is at revision {}',
    '{}/{} is new',
    'a full sync found differences',
    'the centre told a change',
  ];
  const SHOWN = [
    'belfry-core/src/attention.rs',
    'belfry-core/src/due.rs',
    'belfry-core/src/job',
    'belfry-core/src/overlap.rs',
    'belfry-core/src/place',
    'belfry-core/src/policy.rs',
    'belfry-core/src/room.rs',
    'belfry-core/src/schedule',
    'belfry-core/src/state.rs',
    'belfry-core/src/units.rs',
    'belfry-api/src/access.rs',
    'belfry-api/src/auth',
    'belfry-api/src/errors.rs',
    'belfry-api/src/forward.rs',
    'belfry-api/src/input.rs',
    'belfry-api/src/page.rs',
    'belfry-api/src/routes',
    '!belfry-api/src/routes/console.rs',
    '!belfry-api/src/routes/wrapped.rs',
    'belfry-control/src/error.rs',
    'belfry-control/src/shard',
    'belfry-control/src/webhooks.rs',
    'belfry-agent/src/desk',
    '!belfry-agent/src/desk/asked.rs',
    'belfry-agent/src/execution.rs',
    'belfry-agent/src/limits.rs',
    'belfry-agent/src/local/mod.rs',
    'belfry-agent/src/policy.rs',
    'belfry-agent/src/prepare.rs',
    'belfry-agent/src/script.rs',
    'belfry-agent/src/settle.rs',
    'belfry-agent/src/signature.rs',
    'belfry-exec/src/environment.rs',
    'belfry-exec/src/error.rs',
    'belfry-exec/src/sealed.rs',
  ];

  it('has its template', () => {
    const known = new Set([...Object.keys(file.ours).flatMap((template) => [shapeOf(template), ...shapeOf(template).split('{}')]).map(trimmed), ...NOT_SHOWN.map((text) => trimmed(shapeOf(text)))]);
    const isSentence = (text: string) => /[A-Za-z]{2,}[^A-Za-z]* [^A-Za-z]*[A-Za-z]/.test(text.replaceAll(/\{[^{}]*\}/g, ' x '));
    const long = [...known].filter((text) => text.includes(' '));
    const missing = [...new Set(rustTexts(...SHOWN).filter(isSentence).map(shapeOf))].filter((text) => {
      const whole = trimmed(text);
      return !known.has(whole) && !whole.split('{}').map(trimmed).filter((part) => part.includes(' ')).every((part) => known.has(part) || long.some((one) => one.includes(part)));
    });
    expect(missing).toEqual([]);
  });
});

describe('what the API says, in Chinese', () => {
  const cases: [string, string][] = [
    ['there is no job `default/nope`, or you may not see it', '没有任务“default/nope”，或者你无权查看'],
    ['user or password is wrong', '用户或密码错误'],
    ['this needs admin everywhere; ask an admin for it', '需要所有命名空间的 admin 角色，请向管理员申请'],
    ['schedule "61 * * * *": minute "61" is out of range; use 0-59', '时间表“61 * * * *”：分钟“61”超出范围；可用 0-59'],
    ['@every: "5x": unit "x" is not known; use w, d, h, m, s or ms', '@every：“5x”：不认识单位“x”；可用 w、d、h、m、s 或 ms'],
    ['invalid type: integer `5`, expected a string', '类型不对（整数 5），应为：文本'],
    ['no node can take it (alpha: excluded)', '没有节点可以承接（alpha：已排除）'],
    [
      "no node can take it (a, b and 3 more: draining; c (needs 2GiB memory, has 1GiB free): too little is free for the job's needs; x: in select.hosts, and no node of that name has joined); it waited for 1h after its instant (misfire.within)",
      '没有节点可以承接（a, b 等另外 3 个：排空中；c（需要 memory 2GiB，空闲 1GiB）：空闲资源不足以满足任务的 needs；x：写在 select.hosts 中，但没有这个名字的节点加入）；在计划时刻之后等待了 1h（misfire.within）',
    ],
    [
      'exit code 3; attempt 2 could not be made: retry.where is same, and no node can take it (alpha: draining); it waited for 5m after its instant (misfire.within)',
      '退出码 3；第 2 次尝试未能进行：retry.where 为 same，而没有节点可以承接（alpha：排空中）；在计划时刻之后等待了 5m（misfire.within）',
    ],
    ['exit code 127: a command was not found; PATH was /usr/bin:/bin', '退出码 127：找不到命令；PATH 为 /usr/bin:/bin'],
    ['policy: jobs may not run as root here; a, b are allowed; not saved: `x`: it is not UTF-8', '策略：此机器不允许以 root 运行任务；允许 a, b；未保存：“x”：不是 UTF-8'],
    ['Run 01ABC, started by hand by admin is killed: killed by tom.', '运行 01ABC（由 admin 手动启动）的状态：已终止，被 tom 终止。'],
    ['Claimed 3ms after its instant, dispatched 12ms later, started 20ms after its instant, ended 1s5ms after its start.', '在计划时刻之后 3ms 认领，12ms 后派发，计划时刻之后 20ms 启动，启动 1s5ms 后结束。'],
    ['It went to alpha: weighted round robin: it was its turn; beta, gamma and 3 more could take it too.', '分配到 alpha：按权重轮流，轮到它；beta, gamma 和另外 3 个也可以承接。'],
    [
      "alpha fired it by itself, from its own copy of the job, without contact to the servers; the job's home had moved by then, so its new home may have run the same fire.",
      'alpha 用自己的任务副本自行触发，当时与服务端失去联系；任务的 home 节点已变更，新的 home 节点可能运行了同一次触发。',
    ],
    ['3 runs in a row did not succeed; the last: timed out on alpha', '连续 3 次运行没有成功，最近一次：超时，在 alpha 上'],
    ['/no/such: No such file or directory (os error 2); it must exist on this node', '/no/such：没有这个文件或目录（os error 2）；它须存在于该节点'],
    ['database is away: no answer within 5 s', '数据库没有应答：5 秒内没有应答'],
  ];
  it.each(cases)('%s', (english, chinese) => expect(say(english)).toBe(chinese));

  it('keeps names as they are, even those that look like texts', () => {
    expect(say('killed by excluded')).toBe('被 excluded 终止');
    expect(say('there is no node `$& (random)`, or you may not see it')).toBe('没有节点“$& (random)”，或者你无权查看');
  });

  it('shows as it is what no template fits', () => {
    for (const text of ['', 'something that nobody has translated', 'one thing; another thing']) expect(say(text)).toBe(text);
  });

  // Counted, not timed: how many characters are walked in search of what stands between the places.
  it.each(['exit code 1; attempt 2 could not be made: ', 'a (needs b c, has d free), ', 'a; ', '"a": ', 'x is not a ', '`a` and '])('is not kept busy by what somebody may have written to do that: %s', (text) => {
    const walked = (chars: number) => {
      let sum = 0;
      const find = String.prototype.indexOf;
      const spy = vi.spyOn(String.prototype, 'indexOf').mockImplementation(function (this: string, sought: string, from = 0) {
        const at = find.call(this, sought, from);
        sum += (at < 0 ? this.length : at) - from + 1;
        return at;
      });
      try {
        translator(all)(text.repeat(chars / text.length));
      } finally {
        spy.mockRestore();
      }
      return sum;
    };
    const few = walked(200);
    expect(few).toBeGreaterThan(0);
    expect(walked(800)).toBeLessThan(20 * few);
    expect(walked(1_000_000)).toBe(0);
  });
});
