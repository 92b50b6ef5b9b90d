// Light or dark: as the system says, unless the user chose.

export type Theme = 'system' | 'light' | 'dark';
export const themes: readonly Theme[] = ['system', 'light', 'dark'];

const KEPT_AS = 'belfry.theme';

class Appearance {
  theme: Theme = $state('system');

  constructor() {
    const kept = localStorage.getItem(KEPT_AS);
    this.choose(kept === 'light' || kept === 'dark' ? kept : 'system');
  }

  choose(theme: Theme): void {
    this.theme = theme;
    localStorage.setItem(KEPT_AS, theme);
    if (theme === 'system') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  }
}

export const appearance = new Appearance();
