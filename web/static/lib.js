// The libraries as the pages use them.
import { h, render, Fragment } from "./vendor/preact.js";
import { useEffect, useLayoutEffect, useRef, useState, useCallback, useMemo } from "./vendor/hooks.js";
import { signal, computed, effect, batch } from "./vendor/signals.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
export { h, render, Fragment, useEffect, useLayoutEffect, useRef, useState, useCallback, useMemo, signal, computed, effect, batch };
