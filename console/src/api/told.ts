// What live events have told lately. An answer may be older: it was on its way, or its server had not heard of it yet.

const LATELY_MS = 5_000;

export type Edit<T> = (data: T) => T;

/** Each edit may be made again on what it was made on before. */
export class Told<T> {
  private edits: { edit: Edit<T>; at: number }[] = [];
  private asked = Infinity;

  /** An answer is asked for: none of what is told from now on is old before it is there. */
  reading(goes: boolean): void {
    this.asked = goes ? Date.now() : Infinity;
  }

  add(edit: Edit<T>): void {
    this.edits = [...this.lately(), { edit, at: Date.now() }];
  }

  upon(answer: T): T {
    return this.lately().reduce((data, { edit }) => edit(data), answer);
  }

  forget(): void {
    this.edits = [];
  }

  private lately() {
    const from = Math.min(Date.now(), this.asked) - LATELY_MS;
    return this.edits.filter(({ at }) => at > from);
  }
}
