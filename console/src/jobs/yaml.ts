// A job document as YAML text, for reading and comparing. Keys in the order of the document; only writes, never reads.

/** What YAML would read as something else than this text, or not at all. */
const NOT_PLAIN = /^$|^[\s>|%@`"'#&*!?{}[\],-]|[\s:]$|: | #|^(?:true|false|yes|no|on|off|null|~)$|[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff]/i;
const LIKE_A_NUMBER = /^[-+]?(?:\.?\d[\d_.:e+-]*$|0[box]|\.(?:inf|nan)$)/i;

export function yaml(value: unknown): string {
  return lines(value).join('\n');
}

function lines(value: unknown): string[] {
  if (Array.isArray(value)) {
    if (value.length === 0) return ['[]'];
    return value.flatMap((item) => {
      const [first = '', ...rest] = lines(item);
      return [`- ${first}`, ...rest.map((line) => `  ${line}`)];
    });
  }
  if (value !== null && typeof value === 'object') {
    const entries = Object.entries(value).filter(([, item]) => item !== undefined);
    if (entries.length === 0) return ['{}'];
    return entries.flatMap(([key, item]) => entry(scalar(key), item));
  }
  return [scalar(value)];
}

function entry(key: string, item: unknown): string[] {
  if (typeof item === 'string' && item.includes('\n') && !/[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff]|^\s|\n\n$/.test(item)) {
    const keep = item.endsWith('\n') ? '|' : '|-';
    return [`${key}: ${keep}`, ...item.replace(/\n$/, '').split('\n').map((line) => (line === '' ? '' : `  ${line}`))];
  }
  const inner = lines(item);
  const nested = item !== null && typeof item === 'object' && Object.keys(item).length > 0;
  return nested ? [`${key}:`, ...inner.map((line) => `  ${line}`)] : [`${key}: ${inner[0]}`];
}

function scalar(value: unknown): string {
  if (typeof value !== 'string') return JSON.stringify(value) ?? 'null';
  return NOT_PLAIN.test(value) || LIKE_A_NUMBER.test(value) ? JSON.stringify(value) : value;
}
