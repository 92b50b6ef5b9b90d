// What screen readers are told when something changes without a change of page.

class Announcements {
  text = $state('');

  say(text: string): void {
    // The same text twice is read twice only when it changed in between.
    this.text = this.text === text ? `${text}\u00a0` : text;
  }
}

export const announcer = new Announcements();
