// Class names of components: short, since each stands in the templates many times over.
const cssHash = ({ hash, filename, css }) => `s${hash(filename ?? css).slice(0, 4)}`;

// Templates as trees: less text than as HTML.
export default { compilerOptions: { runes: true, discloseVersion: false, fragments: 'tree', cssHash } };
