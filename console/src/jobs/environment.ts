// Lines of KEY=VALUE as people type them. Pure.

export function readEnvironment(text: string): { values: Record<string, string> } | { wrong: string } {
  const values: Record<string, string> = {};
  for (const line of text.split('\n').map((one) => one.trim())) {
    if (line === '') continue;
    const at = line.indexOf('=');
    if (at < 1) return { wrong: line };
    values[line.slice(0, at).trim()] = line.slice(at + 1);
  }
  return { values };
}
