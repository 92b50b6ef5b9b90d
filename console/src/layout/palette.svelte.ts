// What the palette offers beside pages and jobs: the actions of the page that is shown.

export interface Offer {
  key: string;
  text: string;
  hint?: string;
  run: () => void;
}

class PaletteState {
  open = $state(false);
  private sources: { list: () => Offer[] }[] = [];

  /** To be used in an effect: `$effect(() => palette.offer(() => [...]))`. */
  offer(list: () => Offer[]): () => void {
    const source = { list };
    this.sources = [...this.sources, source];
    return () => (this.sources = this.sources.filter((one) => one !== source));
  }

  offers(): Offer[] {
    return this.sources.flatMap((source) => source.list());
  }
}

export const palette = new PaletteState();
