// Asks before something that cannot be taken back: `if (await confirm.ask({...})) …`.

export interface Question {
  title: string;
  text: string;
  action: string;
  danger?: boolean;
  /** Must be typed: for what removes more than one sees. */
  typed?: string;
}

class Confirmation {
  question: Question | null = $state.raw(null);
  private answer: (yes: boolean) => void = () => {};

  ask(question: Question): Promise<boolean> {
    this.answer(false);
    this.question = question;
    return new Promise((answer) => (this.answer = answer));
  }

  close(yes: boolean): void {
    this.question = null;
    this.answer(yes);
    this.answer = () => {};
  }
}

export const confirm = new Confirmation();
