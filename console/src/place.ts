// Where the user is, as text in the address: `#/jobs/shop/nightly?tab=revisions`. Pure; the router makes it live.

export type Query = Readonly<Record<string, string>>;

export interface Place {
  path: string;
  query: Query;
}

export function parsePlace(hash: string): Place {
  const text = hash.replace(/^#/, '');
  const at = text.indexOf('?');
  const path = at < 0 ? text : text.slice(0, at);
  const query: Record<string, string> = {};
  for (const [key, value] of new URLSearchParams(at < 0 ? '' : text.slice(at + 1))) query[key] = value;
  return { path: path.startsWith('/') ? path : `/${path}`, query };
}

/** Empty values are left out: the default of a filter has no place in the address. */
export function formatPlace(path: string, query: Readonly<Record<string, string | undefined>> = {}): string {
  const params = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) if (value) params.set(key, value);
  const text = params.toString().replaceAll('%2C', ',').replaceAll('%2F', '/').replaceAll('%3A', ':');
  return `#${path}${text ? `?${text}` : ''}`;
}

/** `/jobs/:ns/:name` against `/jobs/shop/nightly`; null when it is another path. */
export function matchPath(pattern: string, path: string): Record<string, string> | null {
  const wanted = pattern.split('/');
  const given = path.replace(/\/+$/, '').split('/');
  if (given.length === 1) given.push('');
  if (wanted.length !== given.length) return null;
  const params: Record<string, string> = {};
  for (const [index, part] of wanted.entries()) {
    const value = given[index] ?? '';
    if (!part.startsWith(':')) {
      if (part !== value) return null;
    } else if (value === '') {
      return null;
    } else {
      params[part.slice(1)] = decoded(value);
    }
  }
  return params;
}

export function fillPath(pattern: string, params: Readonly<Record<string, string>>): string {
  return pattern.replace(/:([a-z]+)/g, (_, name: string) => encodeURIComponent(params[name] ?? ''));
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
