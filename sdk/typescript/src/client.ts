import createClient, { type Client as RestClient } from "openapi-fetch";

import { MirenError } from "./errors.js";
import { events, type Event } from "./events.js";
import { Sandbox } from "./sandbox.js";
import type { CreateSession, Execution, ExecutionResult, operations, paths, Submission, Template } from "./schema.gen.js";
import { sender } from "./send.js";

/** Longest time, in seconds, that one request asks the server to wait for an end. */
const longestWait = 60;

export interface ClientOptions {
  /** Address of the server's API, such as http://127.0.0.1:7070; default: the environment's MIREN_API_URL. */
  url?: string;
  /** Key that `r key create` printed; default: the environment's MIREN_API_KEY. */
  apiKey?: string;
  /** Seconds without an answer, beyond the time that the request itself may take; default: 30. */
  timeout?: number;
  /** How often a request is repeated; default: 4. */
  maxRetries?: number;
  /** What sends requests; default: the platform's fetch. */
  fetch?: (request: Request, init: RequestInit) => Promise<Response>;
}

export interface CallOptions {
  /** Names the request: another one with the key has the same result. */
  idempotencyKey?: string;
  /** Ends the call. */
  signal?: AbortSignal;
}

export type CreateOptions = Omit<CreateSession, "mode" | "execute">;
export type SubmitOptions = Omit<Submission, "code">;
export type ListOptions = Omit<NonNullable<operations["list-sessions"]["parameters"]["query"]>, "cursor" | "limit">;

/** A connection to a server. */
export class Client {
  /** Every operation of the REST API, with the types of its OpenAPI document. */
  readonly rest: RestClient<paths>;
  readonly #options: Required<Pick<ClientOptions, "timeout" | "maxRetries" | "fetch">>;

  constructor(options: ClientOptions = {}) {
    const url = options.url ?? environment("MIREN_API_URL");
    const apiKey = options.apiKey ?? environment("MIREN_API_KEY");
    if (!url || !apiKey) {
      throw new MirenError("url and apiKey are needed: pass them, or set MIREN_API_URL and MIREN_API_KEY");
    }
    this.#options = {
      timeout: options.timeout ?? 30,
      maxRetries: options.maxRetries ?? 4,
      fetch: options.fetch ?? ((request, init) => globalThis.fetch(request, init)),
    };
    this.rest = createClient<paths>({
      baseUrl: url.replace(/\/+$/, "").replace(/\/api\/v1$/, "") + "/api/v1",
      headers: { Authorization: `Bearer ${apiKey}` },
      fetch: this.takes(300),
    });
  }

  /**
   * Returns the fetch for a request that itself may take so many seconds.
   * @param once The body comes once, so the request is not repeated.
   */
  takes(seconds: number, once = false): (request: Request) => Promise<Response> {
    return sender({ ...this.#options, timeout: (this.#options.timeout + seconds) * 1000, once });
  }

  /** Creates a sandbox and waits until it runs, for `wait` seconds at most (default: 60). */
  async create(body: CreateOptions = {}, options: CallOptions & { wait?: number } = {}): Promise<Sandbox> {
    const wait = options.wait ?? 60;
    const { data } = await this.rest.POST("/sessions", {
      params: { query: { wait }, header: { "Idempotency-Key": options.idempotencyKey ?? newKey() } },
      body,
      fetch: this.takes(wait),
      ...signal(options),
    });
    return new Sandbox(this, data!);
  }

  /** Returns a sandbox that exists. */
  async get(id: string): Promise<Sandbox> {
    const { data } = await this.rest.GET("/sessions/{id}", { params: { path: { id } } });
    return new Sandbox(this, data!);
  }

  /** Yields the sandboxes of the project. */
  async *sandboxes(query: ListOptions = {}): AsyncGenerator<Sandbox> {
    for (let cursor: string | undefined; ; ) {
      const { data } = await this.rest.GET("/sessions", { params: { query: cursor ? { ...query, cursor } : query } });
      for (const session of data!.sessions) yield new Sandbox(this, session);
      cursor = data!.next_cursor;
      if (!cursor) return;
    }
  }

  /** Returns the templates that the project can use. */
  async templates(): Promise<Template[]> {
    const { data } = await this.rest.GET("/templates");
    return data!.templates;
  }

  /** Executes code in a sandbox of its own, waits for its end, and returns what it left. Default language: python. */
  async execute(code: string, body: SubmitOptions = {}, options: CallOptions = {}): Promise<ExecutionResult> {
    const key = options.idempotencyKey ?? newKey();
    return this.finish(async () => {
      const { data } = await this.rest.POST("/executions", {
        params: { query: { wait: longestWait }, header: { "Idempotency-Key": key } },
        body: { language: "python", ...body, code },
        ...signal(options),
      });
      return data!;
    });
  }

  /** Yields the events of an execution until its end, from its begin. */
  async *follow(id: string): AsyncGenerator<Event> {
    yield* this.events((header) =>
      this.rest.GET("/executions/{id}/stream", { params: { path: { id }, header }, parseAs: "stream" }),
    );
  }

  /** Yields the events of a stream until its end. A stream that breaks is continued after its last event. */
  async *events(
    open: (header: { "Last-Event-ID"?: string }) => Promise<{ data?: ReadableStream<Uint8Array> | null }>,
  ): AsyncGenerator<Event> {
    yield* events(
      async (last) => (await open(last ? { "Last-Event-ID": last } : {})).data!,
      this.#options.maxRetries,
      this.#options.timeout * 1000,
    );
  }

  /**
   * Waits for the end of an execution and returns what it left. A submission that is repeated with its key is the same
   * execution, so waiting is submitting again.
   */
  async finish(submit: (wait: number) => Promise<Execution>): Promise<ExecutionResult> {
    for (;;) {
      const execution = await submit(longestWait);
      if (execution.state !== "ended") continue;
      const { data } = await this.rest.GET("/executions/{id}/result", { params: { path: { id: execution.id } } });
      return data!;
    }
  }
}

/** Returns a new Idempotency-Key. */
export function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Returns the part of a request's options that ends it. */
export function signal(options: CallOptions): { signal?: AbortSignal } {
  return options.signal ? { signal: options.signal } : {};
}

/** Returns an environment variable; there are none in browsers. */
function environment(name: string): string | undefined {
  const { process } = globalThis as { process?: { env?: Record<string, string | undefined> } };
  return process?.env?.[name];
}
