import { newKey, signal, type CallOptions, type Client } from "./client.js";
import type { Event } from "./events.js";
import { ProblemError } from "./errors.js";
import type { Command, CommandResult, Execute, Execution, ExecutionResult, File, Session } from "./schema.gen.js";

export type RunOptions = Omit<Command, "command">;
export type ExecuteOptions = Omit<Execute, "code">;
export type Content = string | Uint8Array<ArrayBuffer> | Blob | ReadableStream<Uint8Array>;

/** A sandbox: a session of mode persistent. With `await using` it is ended with its block. */
export class Sandbox {
  readonly files: Files;
  readonly #client: Client;
  #session: Session;

  constructor(client: Client, session: Session) {
    this.#client = client;
    this.#session = session;
    this.files = new Files(client, session.id);
  }

  get id(): string {
    return this.#session.id;
  }

  /** What the server last said of it. */
  get session(): Session {
    return this.#session;
  }

  get #path() {
    return { path: { id: this.id } };
  }

  /** Asks the server for its state. */
  async refresh(): Promise<Session> {
    const { data } = await this.#client.rest.GET("/sessions/{id}", { params: this.#path });
    return (this.#session = data!);
  }

  /**
   * Runs a command and returns its output; a string is run by a shell. It is not repeated when the connection fails: it
   * may have run.
   */
  async run(command: string | string[], body: RunOptions = {}, options: CallOptions = {}): Promise<CommandResult> {
    const { data } = await this.#client.rest.POST("/sessions/{id}/commands", {
      params: this.#path,
      body: { ...body, command: typeof command === "string" ? ["sh", "-c", command] : command },
      fetch: this.#client.takes(body.timeout_seconds ?? 300),
      ...signal(options),
    });
    return data!;
  }

  /** Executes code, waits for its end, and returns what it left. Default language: python. */
  async execute(code: string, body: ExecuteOptions = {}, options: CallOptions = {}): Promise<ExecutionResult> {
    const key = options.idempotencyKey ?? newKey();
    return this.#client.finish(async (wait) => {
      const { data } = await this.#client.rest.POST("/sessions/{id}/execute", {
        params: { ...this.#path, query: { wait }, header: { "Idempotency-Key": key } },
        body: { language: "python", ...body, code },
        ...signal(options),
      });
      return data as Execution; // a string only with Accept: text/event-stream
    });
  }

  /** Executes code and yields its output as it comes; the last event is the ended execution. */
  async *stream(code: string, body: ExecuteOptions = {}, options: CallOptions = {}): AsyncGenerator<Event> {
    const { data } = await this.#client.rest.POST("/sessions/{id}/execute", {
      params: { ...this.#path, header: { "Idempotency-Key": options.idempotencyKey ?? newKey() } },
      body: { language: "python", ...body, code },
      ...signal(options),
    });
    yield* this.#client.follow((data as Execution).id);
  }

  /** Runs a command in the background and yields its output as it comes; the last event has its exit code. */
  async *streamCommand(command: string | string[], body: RunOptions = {}): AsyncGenerator<Event> {
    const { id } = await this.run(command, { ...body, background: true });
    yield* this.#client.events((header) =>
      this.#client.rest.GET("/sessions/{id}/commands/{command}/stream", {
        params: { path: { id: this.id, command: id! }, header },
        parseAs: "stream",
      }),
    );
  }

  /** Lets it end so many seconds after now; undefined: never. */
  async extend(seconds?: number): Promise<Session> {
    const body = seconds === undefined ? {} : { ttl_seconds: seconds };
    const { data } = await this.#client.rest.POST("/sessions/{id}/extend", { params: this.#path, body });
    return (this.#session = data!);
  }

  /** Saves it and ends its processes, which `resume` continues. */
  async pause(): Promise<Session> {
    const { data } = await this.#client.rest.POST("/sessions/{id}/pause", { params: this.#path });
    return (this.#session = data!);
  }

  /** Continues it. */
  async resume(): Promise<Session> {
    const { data } = await this.#client.rest.POST("/sessions/{id}/resume", { params: this.#path });
    return (this.#session = data!);
  }

  /** Deletes it; nothing happens if it is gone. */
  async end(): Promise<void> {
    try {
      await this.#client.rest.DELETE("/sessions/{id}", { params: this.#path });
    } catch (error) {
      if (!(error instanceof ProblemError && error.errorClass === "not_found")) throw error;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.end();
  }
}

/** The files of a sandbox. A relative path is below its working directory. */
export class Files {
  readonly #client: Client;
  readonly #id: string;

  constructor(client: Client, id: string) {
    this.#client = client;
    this.#id = id;
  }

  /** Returns the content of a file as it comes. */
  async stream(path: string): Promise<ReadableStream<Uint8Array>> {
    const { data } = await this.#client.rest.GET("/sessions/{id}/files/content", {
      params: { path: { id: this.#id }, query: { path } },
      parseAs: "stream",
    });
    return data ?? new Blob([]).stream(); // of an empty file
  }

  /** Returns the content of a file. */
  async read(path: string): Promise<Uint8Array> {
    return new Uint8Array(await new Response(await this.stream(path)).arrayBuffer());
  }

  /** Returns the content of a file in UTF-8. */
  async readText(path: string): Promise<string> {
    return new Response(await this.stream(path)).text();
  }

  /**
   * Writes a file, which appears when it is complete. A stream is not sent again if the connection fails.
   * @param options mode: permission bits of a new file; parents: make missing directories.
   */
  async write(path: string, content: Content, options: { mode?: number; parents?: boolean } = {}): Promise<File> {
    const stream = content instanceof ReadableStream;
    const { data } = await this.#client.rest.PUT("/sessions/{id}/files/content", {
      params: { path: { id: this.#id }, query: { path, ...options } },
      headers: { "Content-Type": "application/octet-stream" },
      body: "", // the document's type; the serializer has the content
      bodySerializer: () => content,
      fetch: this.#client.takes(300, stream),
      ...(stream ? { duplex: "half" } : {}), // for fetch
    });
    return data!;
  }

  /** Returns the entries of a directory, by name. */
  async list(path = "."): Promise<File[]> {
    const files: File[] = [];
    for (;;) {
      const after = files.at(-1)?.name;
      const { data } = await this.#client.rest.GET("/sessions/{id}/files", {
        params: { path: { id: this.#id }, query: after === undefined ? { path } : { path, after } },
      });
      files.push(...data!.files);
      if (!data!.more || data!.files.length === 0) return files;
    }
  }

  /** Removes a file or directory. */
  async remove(path: string, options: { recursive?: boolean } = {}): Promise<void> {
    await this.#client.rest.DELETE("/sessions/{id}/files", {
      params: { path: { id: this.#id }, query: { path, ...options } },
    });
  }
}
