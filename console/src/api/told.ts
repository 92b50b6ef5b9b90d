// What live events have told lately. An answer may be older: it was on its way, or its server had not heard of it yet.

const LATELY_MS = 5_000;

export type Edit<T> = (data: T) => T;

/** Each edit may be made again on what it was made on before. */
export class Told<T> {
  private edits: { edit: Edit<T>; until: number }[] = [];

  add(edit: Edit<T>): void {
    const now = Date.now();
    this.edits = [...this.edits.filter(({ until }) => until > now), { edit, until: now + LATELY_MS }];
  }

  upon(answer: T): T {
    const now = Date.now();
    return this.edits.filter(({ until }) => until > now).reduce((data, { edit }) => edit(data), answer);
  }

  forget(): void {
    this.edits = [];
  }
}
