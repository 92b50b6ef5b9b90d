// Reads YAML as people write job documents: blocks, flow collections, quoted, plain, literal and folded texts, of YAML 1.2. Anchors, tags
// and several documents are refused. Small, because whole YAML is most of a console; the tests hold it against a whole one.

export type Wrong = 'tab' | 'indent' | 'field' | 'twice' | 'open' | 'reference' | 'escape' | 'documents' | 'rest';

export class YamlError extends Error {
  constructor(
    readonly wrong: Wrong,
    readonly offset: number,
  ) {
    super(wrong);
  }
}

export class YamlReader {
  /** The offset at which each path (`retry.on[0]`) starts. */
  readonly starts = new Map<string, number>();
  private at = 0;

  constructor(private text: string) {
    this.text = text.replace(/^\ufeff/, '').replaceAll('\r\n', '\n');
  }

  read(): unknown {
    const start = /^(?:[ \t]*(?:#.*)?\n)*---(?=[ \t\n]|$)/.exec(this.text);
    if (start) this.at = start[0].length;
    const more = /\n(?:---|\.\.\.)(?=[ \t\n]|$)/.exec(this.text.slice(this.at));
    if (more) {
      const rest = this.text.slice(this.at + more.index + 4);
      if (/^\s*[^\s#]/m.test(rest)) this.fail('documents', this.at + more.index + 1);
      this.text = this.text.slice(0, this.at + more.index + 1);
    }
    const value = this.block(-1, '');
    if (this.next() !== null) this.fail('rest', this.at);
    return value;
  }

  private fail(wrong: Wrong, offset: number): never {
    throw new YamlError(wrong, offset);
  }

  private lineEnd(from = this.at): number {
    const end = this.text.indexOf('\n', from);
    return end < 0 ? this.text.length : end;
  }

  private column(offset: number): number {
    return offset - (this.text.lastIndexOf('\n', offset - 1) + 1);
  }

  /** Moves to the next thing that is neither space nor comment; its column, or null at the end. */
  private next(): number | null {
    while (this.at < this.text.length) {
      const char = this.text[this.at];
      if (char === '\t' && /^[ \t]*$/.test(this.text.slice(this.text.lastIndexOf('\n', this.at - 1) + 1, this.at)) && /\S/.test(this.text.slice(this.at, this.lineEnd()))) this.fail('tab', this.at);
      if (char === ' ' || char === '\t' || char === '\n') this.at++;
      else if (char === '#' && (this.at === 0 || /\s/.test(this.text[this.at - 1] ?? ''))) this.at = this.lineEnd();
      else return this.column(this.at);
    }
    return null;
  }

  /** What stands deeper than `outer`. */
  private block(outer: number, path: string, listToo = false): unknown {
    const indent = this.next();
    const dash = this.dash();
    if (indent === null || (indent <= outer && !(listToo && dash && indent === outer))) return null;
    if (dash) return this.list(indent, path);
    if (this.key() !== null) return this.map(indent, path);
    return this.value(outer, path);
  }

  private dash(): boolean {
    return /^-(?=[ \t\n]|$)/.test(this.text.slice(this.at, this.at + 2));
  }

  private list(indent: number, path: string): unknown[] {
    const items: unknown[] = [];
    while (this.next() === indent && this.dash()) {
      const inner = `${path}[${items.length}]`;
      // The dash becomes a space: what follows it is a block of its own, one column deeper.
      this.text = `${this.text.slice(0, this.at)} ${this.text.slice(this.at + 1)}`;
      const from = this.at;
      const deeper = this.next();
      this.starts.set(inner, deeper === null || deeper <= indent ? from : this.at);
      items.push(this.block(indent, inner));
    }
    if ((this.next() ?? -1) > indent) this.fail('indent', this.at);
    return items;
  }

  private map(indent: number, path: string): Record<string, unknown> {
    const fields: Record<string, unknown> = {};
    for (let column = this.next(); column !== null && column >= indent; column = this.next()) {
      if (column > indent) this.fail('indent', this.at);
      if (this.dash()) break;
      const start = this.at;
      const key = this.key();
      if (key === null) this.fail('field', start);
      if (Object.hasOwn(fields, key.text)) this.fail('twice', start);
      const inner = path ? `${path}.${key.text}` : key.text;
      this.starts.set(inner, start);
      this.at = key.end;
      const value = this.sameLine() ? this.value(indent, inner) : this.block(indent, inner, true);
      Object.defineProperty(fields, key.text, { value, enumerable: true, configurable: true, writable: true });
    }
    return fields;
  }

  /** Whether a value stands on the rest of this line; moves to it. */
  private sameLine(): boolean {
    while (this.text[this.at] === ' ' || this.text[this.at] === '\t') this.at++;
    const char = this.text[this.at];
    return char !== undefined && char !== '\n' && char !== '#';
  }

  /** The key that starts here and where its colon ends; null when there is none on this line. Does not move. */
  private key(): { text: string; end: number } | null {
    const line = this.text.slice(this.at, this.lineEnd());
    const quoted = /^("(?:[^"\\]|\\.)*"|'(?:[^']|'')*')[ \t]*:(?=[ \t]|$)/.exec(line);
    if (quoted?.[1]) return { text: this.quoted(quoted[1], this.at), end: this.at + quoted[0].length };
    if (/^["'[{|>#%@`]/.test(line)) return null;
    if (/^[&*!]/.test(line)) this.fail('reference', this.at);
    const plain = /^((?:[^:#]|:(?=\S)|(?<=\S)#)+?)[ \t]*:(?=[ \t]|$)/.exec(line);
    return plain?.[1] ? { text: plain[1], end: this.at + plain[0].length } : null;
  }

  /** A value that starts here. `outer` is the column of what it stands in. */
  private value(outer: number, path: string): unknown {
    const char = this.text[this.at] ?? '';
    if ('&*!'.includes(char)) this.fail('reference', this.at);
    if (char === '|' || char === '>') return this.long(outer, char === '>');
    if (char === '"' || char === "'" || char === '[' || char === '{') {
      const value = char === '[' || char === '{' ? this.flow(path) : this.takeQuoted();
      if (this.sameLine()) this.fail('rest', this.at);
      return value;
    }
    return this.plain(outer);
  }

  private plain(outer: number): unknown {
    const start = this.at;
    if (/^(?:[,\]}%@`]|[-?:](?=\s|$))/.test(this.text.slice(start, start + 2))) this.fail('field', start);
    let text = this.plainLine();
    // Lines that are deeper go on with the text.
    for (;;) {
      const [before, breaks] = [this.at, /^[ \t]*\n((?:[ \t]*\n)*)/.exec(this.text.slice(this.at))];
      if (!breaks) break;
      this.at += breaks[0].length;
      const indent = /^ */.exec(this.text.slice(this.at))?.[0].length ?? 0;
      const first = this.text[this.at + indent];
      if (indent <= outer || first === undefined || first === '\n' || first === '#') {
        this.at = before;
        break;
      }
      if (first === '\t') this.fail('tab', this.at + indent);
      this.at += indent;
      if (this.key() !== null) this.fail('indent', this.at);
      const blank = (breaks[1]?.match(/\n/g) ?? []).length;
      text += (blank > 0 ? '\n'.repeat(blank) : ' ') + this.plainLine();
    }
    if (/: |:$/.test(text)) this.fail('field', start);
    return scalar(text);
  }

  private plainLine(): string {
    const line = this.text.slice(this.at, this.lineEnd());
    const comment = /[ \t]#/.exec(line);
    const text = (comment ? line.slice(0, comment.index) : line).trimEnd();
    this.at += text.length;
    return text;
  }

  /** `|` and `>`. */
  private long(outer: number, fold: boolean): string {
    const head = /^[|>]([1-9]?)([+-]?)([1-9]?)[ \t]*(?:[ \t]#.*)?$/.exec(this.text.slice(this.at, this.lineEnd()));
    if (!head) this.fail('rest', this.at);
    this.at = Math.min(this.lineEnd() + 1, this.text.length);
    const given = Number(head[1] || head[3] || 0);
    const lines: string[] = [];
    let indent = given ? Math.max(outer, 0) + given : 0;
    while (this.at < this.text.length) {
      const line = this.text.slice(this.at, this.lineEnd());
      const own = /^ */.exec(line)?.[0].length ?? 0;
      const blank = own === line.length;
      if (!blank && indent === 0 && own > outer) indent = own;
      if (!blank && (indent === 0 || own < indent)) break;
      lines.push(blank && own < indent ? '' : line.slice(indent));
      this.at = Math.min(this.lineEnd() + 1, this.text.length);
    }
    let kept = lines.length;
    while (kept > 0 && lines[kept - 1] === '') kept--;
    const body = fold ? folded(lines.slice(0, kept)) : lines.slice(0, kept).join('\n');
    if (head[2] === '-') return body;
    if (head[2] === '+') return body + '\n'.repeat(lines.length - kept + (kept > 0 ? 1 : 0));
    return kept > 0 ? `${body}\n` : '';
  }

  private takeQuoted(): string {
    const start = this.at;
    const found = /^(?:"(?:[^"\\]|\\[^])*"|'(?:[^']|'')*')/.exec(this.text.slice(start));
    if (!found) this.fail('open', start);
    this.at += found[0].length;
    return this.quoted(found[0], start);
  }

  private quoted(raw: string, start: number): string {
    const inner = raw.slice(1, -1);
    if (raw.startsWith("'")) return lineFolded(inner).replaceAll("''", "'");
    return lineFolded(inner.replace(/\\\n[ \t]*/g, '\\&')).replace(/\\(x[\da-f]{2}|u[\da-f]{4}|U[\da-f]{8}|[^])/gi, (_, code: string) => {
      if (/^[xuU][\da-f]{2,}$/i.test(code)) return String.fromCodePoint(parseInt(code.slice(1), 16));
      const char = ESCAPES[code];
      if (char === undefined) this.fail('escape', start);
      return char;
    });
  }

  private flow(path: string): unknown {
    const open = this.at;
    const list = this.text[this.at] === '[';
    const items: unknown[] = [];
    const fields: Record<string, unknown> = {};
    this.at++;
    for (;;) {
      if (this.next() === null) this.fail('open', open);
      if (this.text[this.at] === (list ? ']' : '}')) break;
      const start = this.at;
      const first = this.flowValue(list ? `${path}[${items.length}]` : '');
      this.next();
      const pair = this.text[this.at] === ':';
      if (list && pair) this.fail('field', start);
      if (list) {
        this.starts.set(`${path}[${items.length}]`, start);
        items.push(first);
      } else {
        const key = String(first);
        const inner = path ? `${path}.${key}` : key;
        if (Object.hasOwn(fields, key)) this.fail('twice', start);
        this.starts.set(inner, start);
        if (pair) this.at++;
        this.next();
        const none = !pair || this.text[this.at] === ',' || this.text[this.at] === '}';
        Object.defineProperty(fields, key, { value: none ? null : this.flowValue(inner), enumerable: true, configurable: true, writable: true });
      }
      if (this.next() === null) this.fail('open', open);
      if (this.text[this.at] === ',') this.at++;
      else if (this.text[this.at] !== (list ? ']' : '}')) this.fail('open', open);
    }
    this.at++;
    return list ? items : fields;
  }

  private flowValue(path: string): unknown {
    const char = this.text[this.at] ?? '';
    if ('&*!'.includes(char)) this.fail('reference', this.at);
    if (char === '[' || char === '{') return this.flow(path);
    if (char === '"' || char === "'") return this.takeQuoted();
    const found = /^(?:[^,[\]{}:#\n]|:(?=[^\s,[\]{}])|(?<=\S)#)+/.exec(this.text.slice(this.at));
    if (!found) this.fail('field', this.at);
    this.at += found[0].length;
    return scalar(found[0].trim());
  }
}

const ESCAPES: Record<string, string> = {
  0: '\0', a: '\x07', b: '\b', t: '\t', '\t': '\t', n: '\n', v: '\v', f: '\f', r: '\r', e: '\x1b', ' ': ' ', '"': '"', '/': '/', '\\': '\\', N: '\x85', _: '\xa0', L: '\u2028', P: '\u2029', '&': '',
};

/** Line breaks inside quotes: one is a space, more are one less. */
function lineFolded(text: string): string {
  return text.replace(/[ \t]*\n([ \t]*\n)*[ \t]*/g, (all) => '\n'.repeat((all.match(/\n/g) ?? []).length - 1) || ' ');
}

function folded(lines: readonly string[]): string {
  let text = '';
  let [loose, blank] = [true, 0];
  for (const [index, line] of lines.entries()) {
    if (line === '') {
      blank++;
      continue;
    }
    const deep = /^[ \t]/.test(line);
    if (index > blank || text !== '') text += '\n'.repeat(blank + (deep || loose ? 1 : 0)) || ' ';
    else text += '\n'.repeat(blank);
    text += line;
    [loose, blank] = [deep, 0];
  }
  return text;
}

/** A text without quotes, by the core schema. */
export function scalar(text: string): unknown {
  if (/^(?:|~|null|Null|NULL)$/.test(text)) return null;
  if (/^(?:true|True|TRUE)$/.test(text)) return true;
  if (/^(?:false|False|FALSE)$/.test(text)) return false;
  if (/^[-+]?\d+$/.test(text) || /^[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?$/.test(text)) return Number(text);
  if (/^0o[0-7]+$/.test(text) || /^0x[\da-fA-F]+$/.test(text)) return Number(text);
  return text;
}
