// English on a Chinese page: everything that can be seen or is read out, but what users wrote themselves.

/** What is never ours to translate: source text and records of the audit (code, pre), what is typed, output of runs, lines of a diff, ids. */
const LITERAL = 'code, pre, textarea, script, style, [role=log], td.text, .mono';
/** The same in both languages on purpose: how one goes to English, commands to type, what the kernel calls its numbers. */
const ON_PURPOSE = [/Switch to English/g, /\bbelfry (?:job|node|script|server|up|explain)\b[\w\s./-]*/g, /\bos error\b/g, /\b(?:useradd|groupadd|chmod|chown) [\w+-]+/g];
/** A word of a language: neither `run_on`, `select.hosts`, `default/backup`, `a=b`, `10s` nor an id. The second may end a sentence; names in a list have commas. */
const FIRST = /^[("'“[]*[A-Za-z]+(?:['’-][A-Za-z]+)*$/;
const SECOND = /^[A-Za-z]{2,}(?:['’-][A-Za-z]+)*[)"'”\],;:.!?]*$/;

/** The visible texts in which two English words stand side by side. `written`: what users wrote. */
export async function englishOn(page, written) {
  const texts = await page.evaluate((literal) => {
    const found = [document.title];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT | NodeFilter.SHOW_ELEMENT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const element = node.nodeType === Node.TEXT_NODE ? node.parentElement : node;
      if (element.closest(literal)) continue;
      // Options are seen when their list is opened; what is hidden for the eye alone is read out.
      if (element.tagName !== 'OPTION' && !element.checkVisibility({ visibilityProperty: true })) continue;
      if (node !== element) found.push(node.textContent.trim());
      else for (const name of ['aria-label', 'title', 'placeholder', 'alt']) found.push(element.getAttribute(name) ?? '');
    }
    return found.filter(Boolean);
  }, LITERAL);
  return [...new Set(texts.filter((text) => isEnglish(text, written)))];
}

export function isEnglish(text, written = []) {
  let rest = text;
  for (const own of [...written].sort((a, b) => b.length - a.length)) rest = rest.replaceAll(own, ' · ');
  for (const phrase of ON_PURPOSE) rest = rest.replaceAll(phrase, ' · ');
  // Chinese has no spaces: what stands between its characters is looked at by itself.
  return rest.split(/[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef·–]+/).some((piece) => {
    const words = piece.trim().split(/\s+/);
    return words.some((word, index) => index > 0 && FIRST.test(words[index - 1]) && SECOND.test(word));
  });
}
