// Colours and weights of terminal output: SGR sequences become styles, every other sequence is left out. Pure.

/** 0–15 of the palette, 16–255 of the cube, or `#rrggbb`. */
export type Colour = number | string;

export interface Style {
  fg?: Colour;
  bg?: Colour;
  bold?: true;
  dim?: true;
  italic?: true;
  underline?: true;
  strike?: true;
  inverse?: true;
}

export interface Segment {
  text: string;
  style: Style;
}

export const PLAIN: Style = Object.freeze({});
/** CSI with its parameters and final byte, OSC up to its end, or a lone escape with one character. */
const SEQUENCE = /\x1b\[([0-?]*)[ -/]*([@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\^_()#][0-9A-B]?/g;
/** Control characters that would show as boxes. */
const CONTROL = /[\x00-\x08\x0b-\x1f\x7f]/g;

/** The parts of one line, and the style that the next line begins with. */
export function parseAnsi(line: string, start: Style = PLAIN): { segments: Segment[]; end: Style } {
  const segments: Segment[] = [];
  let style = start;
  let at = 0;
  const put = (text: string) => {
    const shown = text.replace(CONTROL, '');
    if (shown !== '') segments.push({ text: shown, style });
  };
  for (const found of line.matchAll(SEQUENCE)) {
    put(line.slice(at, found.index));
    at = found.index + found[0].length;
    if (found[2] === 'm') style = withCodes(style, found[1] ?? '');
  }
  put(line.slice(at));
  return { segments, end: style };
}

export function withoutAnsi(line: string): string {
  return line.replace(SEQUENCE, '').replace(CONTROL, '');
}

function withCodes(style: Style, parameters: string): Style {
  const codes = parameters === '' ? [0] : parameters.split(/[;:]/).map(Number);
  let next: Style = { ...style };
  for (let i = 0; i < codes.length; i++) {
    const code = codes[i] ?? 0;
    if (code === 0) next = {};
    else if (code === 1) next.bold = true;
    else if (code === 2) next.dim = true;
    else if (code === 3) next.italic = true;
    else if (code === 4) next.underline = true;
    else if (code === 7) next.inverse = true;
    else if (code === 9) next.strike = true;
    else if (code === 22) next = without(next, 'bold', 'dim');
    else if (code === 23) next = without(next, 'italic');
    else if (code === 24) next = without(next, 'underline');
    else if (code === 27) next = without(next, 'inverse');
    else if (code === 29) next = without(next, 'strike');
    else if (code >= 30 && code <= 37) next.fg = code - 30;
    else if (code >= 90 && code <= 97) next.fg = code - 82;
    else if (code >= 40 && code <= 47) next.bg = code - 40;
    else if (code >= 100 && code <= 107) next.bg = code - 92;
    else if (code === 39) next = without(next, 'fg');
    else if (code === 49) next = without(next, 'bg');
    else if (code === 38 || code === 48) {
      const [colour, used] = extended(codes.slice(i + 1));
      if (colour !== null) next[code === 38 ? 'fg' : 'bg'] = colour;
      i += used;
    }
  }
  return next;
}

function extended(codes: readonly number[]): [Colour | null, number] {
  const [kind, a = 0, b = 0, c = 0] = codes;
  if (kind === 5) return [a >= 0 && a <= 255 ? a : null, 2];
  if (kind === 2) return [`#${[a, b, c].map((part) => Math.min(255, part).toString(16).padStart(2, '0')).join('')}`, 4];
  return [null, 1];
}

function without(style: Style, ...keys: (keyof Style)[]): Style {
  return Object.fromEntries(Object.entries(style).filter(([key]) => !keys.includes(key as keyof Style)));
}

/** A colour beyond the first 16 as CSS; the first 16 are classes, tuned to both schemes. */
export function cubeColour(colour: Colour): string | null {
  if (typeof colour === 'string') return colour;
  if (colour < 16) return null;
  if (colour >= 232) {
    const grey = 8 + (colour - 232) * 10;
    return `rgb(${grey} ${grey} ${grey})`;
  }
  const level = (n: number) => (n === 0 ? 0 : 55 + n * 40);
  const n = colour - 16;
  return `rgb(${level(Math.floor(n / 36))} ${level(Math.floor(n / 6) % 6)} ${level(n % 6)})`;
}
