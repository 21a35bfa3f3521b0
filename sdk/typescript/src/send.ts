import { ConnectionFailed, problemOf } from "./errors.js";

const firstDelay = 500; // milliseconds
const longestDelay = 30_000; // milliseconds

export interface SendOptions {
  /** Sends one request. */
  fetch: (request: Request, init: RequestInit) => Promise<Response>;
  /** How often a request is repeated. */
  maxRetries: number;
  /** Milliseconds until the answer begins. */
  timeout: number;
  /** The body comes once, so the request is not repeated. */
  once?: boolean;
}

/**
 * Returns a fetch that repeats requests that the server had no room for, and those that got no answer and can be
 * repeated. It throws ProblemError and ConnectionFailed.
 */
export function sender(options: SendOptions): (request: Request) => Promise<Response> {
  return async (request) => {
    for (let attempt = 0; ; attempt++) {
      const last = options.once === true || attempt >= options.maxRetries;
      let response: Response;
      try {
        response = await withTimeout(options, last ? request : request.clone());
      } catch (error) {
        request.signal.throwIfAborted();
        if (last || error instanceof ConnectionFailed || !repeatable(request)) {
          throw error instanceof ConnectionFailed ? error : new ConnectionFailed(String(error), { cause: error });
        }
        await sleep(delay(attempt), request.signal);
        continue;
      }
      if (response.ok) return response;
      // With 429 nothing was done. With 503 something may have been.
      if (last || !(response.status === 429 || (response.status === 503 && repeatable(request)))) {
        throw await problemOf(response);
      }
      await response.body?.cancel();
      await sleep(delay(attempt, response), request.signal);
    }
  };
}

/** Reports whether a request can be sent twice, with the effect of one. */
function repeatable(request: Request): boolean {
  return ["GET", "PUT", "DELETE"].includes(request.method) || request.headers.has("Idempotency-Key");
}

/** Returns the milliseconds before the next attempt: what the server asks for, else twice as many each time. */
export function delay(attempt: number, response?: Response): number {
  const asked = response?.headers.get("Retry-After");
  if (asked && /^\d+$/.test(asked)) return Math.min(Number(asked) * 1000, longestDelay);
  return Math.min(firstDelay * 2 ** attempt, longestDelay) * (0.5 + Math.random() / 2);
}

async function withTimeout(options: SendOptions, request: Request): Promise<Response> {
  const timeout = new AbortController();
  const timer = setTimeout(
    () => timeout.abort(new ConnectionFailed(`no answer for ${options.timeout / 1000} s`)),
    options.timeout,
  );
  try {
    return await options.fetch(request, { signal: AbortSignal.any([request.signal, timeout.signal]) });
  } finally {
    clearTimeout(timer);
  }
}

export async function sleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    signal?.addEventListener("abort", stop, { once: true });
    if (signal?.aborted) stop();
  });
}
