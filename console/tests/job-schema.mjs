// Reads the fields of a job document out of the API's schema, for the tests of the form.

/**
 * @param {any} schema
 * @param {string} [path]
 * @returns {{ path: string, kind: string, options?: string[], usual?: unknown, required: boolean }[]}
 */
export function leavesOf(schema, path = '') {
  const required = new Set(schema.required ?? []);
  return Object.entries(schema.properties ?? {}).flatMap(([key, inner]) => {
    const at = path ? `${path}.${key}` : key;
    if (inner.properties) return leavesOf(inner, at);
    if (key === 'action' && inner.oneOf) return inner.oneOf.flatMap((kind) => leavesOf(kind, at));
    const options = inner.enum ?? inner.oneOf?.find((one) => one.enum)?.enum;
    return [{ path: at, kind: kindOf(at, inner), required: required.has(key), ...(options ? { options } : {}), ...('default' in inner ? { usual: inner.default } : {}) }];
  });
}

function kindOf(path, schema) {
  if (path === 'schedule' || path === 'placement') return path;
  if (schema.enum) return 'choice';
  if (schema.type === 'array') return schema.items.type === 'integer' ? 'numbers' : 'list';
  if (schema.type === 'object') return 'map';
  if (schema.type === 'boolean') return 'switch';
  if (schema.type === 'integer' || schema.type === 'number') return schema.type;
  if (schema.type !== 'string') return 'any';
  if (schema.format === 'date-time') return 'instant';
  if (/a duration such as/.test(schema.description ?? '')) return 'duration';
  return /a size such as/.test(schema.description ?? '') ? 'size' : 'text';
}
