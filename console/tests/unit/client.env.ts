// An environment for unit tests of what has effects: Svelte as browsers get it, without a document.
export default {
  name: 'client',
  viteEnvironment: 'client',
  setup: () => ({ teardown: () => {} }),
};
