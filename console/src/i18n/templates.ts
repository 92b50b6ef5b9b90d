// Texts of the API in another language, by templates. `{name}` is kept as it is, and `{-name}` is a single word; `{~name}` is itself a text to
// translate, may be empty, and may be several that are joined by `; `; `{_}` is left out. Pure.

export type Templates = Record<string, string>;

interface Rule {
  rank: number;
  /** What stands around the places: one more than there are places. */
  literals: string[];
  places: string[];
  into: string;
}

const PLACE = /\{([~-]?\w+)\}/;
/** Between two texts, and not inside of brackets. */
const JOINT = /; (?![^(]*\))/g;
const KNOWN_MAX = 2000;
/** Longer ones quote much of what a user wrote, and would take long. */
const TEXT_CHARS_MAX = 2000;
const JOINTS_MAX = 12;

export function literalOf(template: string): string {
  return template.replaceAll(new RegExp(PLACE, 'g'), '');
}

/**
 * What stands in the places of a text. Each place ends where the next literal is first found, and that is never taken back: a text is walked
 * once, whatever somebody wrote into it.
 */
function placesOf(text: string, literals: string[], places: string[]): string[] | undefined {
  const [head = '', ...others] = literals;
  const tail = others.pop();
  if (tail === undefined) return text === head ? [] : undefined;
  if (!text.startsWith(head)) return undefined;
  const found: string[] = [];
  let from = head.length;
  for (const [index, literal] of others.entries()) {
    const at = text.indexOf(literal, from + (mayBeEmpty(places[index]) ? 0 : 1));
    if (at < 0) return undefined;
    found.push(text.slice(from, at));
    from = at + literal.length;
  }
  if (!text.endsWith(tail) || text.length - tail.length < from) return undefined;
  found.push(text.slice(from, text.length - tail.length));
  return found.every((value, index) => fits(value, places[index])) ? found : undefined;
}

function mayBeEmpty(place = ''): boolean {
  return /^[~_]/.test(place);
}

function fits(value: string, place = ''): boolean {
  return mayBeEmpty(place) || (value !== '' && !(place.startsWith('-') ? /\s/.test(value) : value.includes('; ')));
}

/** A text that no template fits comes back as it is. */
export function translator(templates: Templates): (text: string) => string {
  const rules: Record<string, Rule[]> = {};
  const known = new Map<string, string>();
  // What says most comes first: `exit code 3; attempt 2 could not be made` is not an exit code.
  const sorted = Object.keys(templates).sort((a, b) => literalOf(b).length - literalOf(a).length);
  for (const [rank, template] of sorted.entries()) {
    const parts = template.split(PLACE);
    const [head = ''] = parts;
    const rule = { rank, literals: parts.filter((_, index) => index % 2 === 0), places: parts.filter((_, index) => index % 2), into: templates[template] ?? '' };
    // By its first word, else its first character, so that few are tried.
    (rules[/^\S+ /.exec(head)?.[0] ?? head.charAt(0)] ??= []).push(rule);
  }

  /** Of the rules that fit, the first whose inner texts are known too, else the first. */
  function byRule(text: string): string | undefined {
    const fit = [/^\S+ /.exec(text)?.[0] ?? '-', text.charAt(0), ''].flatMap((key) => rules[key] ?? []).sort((a, b) => a.rank - b.rank);
    let first: string | undefined;
    for (const { literals, places, into } of fit) {
      const found = placesOf(text, literals, places);
      if (!found) continue;
      const inner = found.map((value, index) => (places[index]?.startsWith('~') ? translate(value) : value));
      const made = into.replaceAll(/\{(\w+)\}/g, (_, name: string) => inner[places.findIndex((place) => place.replace(/^\W/, '') === name)] ?? '').replaceAll(/(?<=[），：；。]) /g, '');
      if (inner.every((value, index) => !places[index]?.startsWith('~') || value !== found[index] || !/[a-z]{2}/i.test(value))) return made;
      first ??= made;
    }
    return first;
  }

  function make(text: string): string {
    const whole = byRule(text);
    if (whole !== undefined) return whole;
    const joints = [...text.matchAll(JOINT)].slice(0, JOINTS_MAX).map(({ index }) => index);
    for (const at of joints.toReversed()) {
      const left = byRule(text.slice(0, at));
      const rest = text.slice(at + 2);
      if (left !== undefined || (at === joints[0] && translate(rest) !== rest)) return `${left ?? text.slice(0, at)}；${translate(rest)}`;
    }
    return text;
  }

  function translate(text: string): string {
    const before = known.get(text);
    if (before !== undefined) return before;
    const made = text && text.length <= TEXT_CHARS_MAX ? make(text) : text;
    if (known.size >= KNOWN_MAX) known.clear();
    known.set(text, made);
    return made;
  }
  return translate;
}
