// Starts the console.
import { mount } from 'svelte';

import App from './App.svelte';
import './style/tokens.css';
import './style/base.css';
import './theme.svelte';

const target = document.getElementById('console');
if (target) mount(App, { target });
