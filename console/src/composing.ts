/** Whether a key is of what writes Chinese. The Enter that takes a word comes after its end in Safari, and has only the number. */
export const composes = (event: KeyboardEvent): boolean => event.isComposing || event.keyCode === 229;
