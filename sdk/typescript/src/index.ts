/** Client of Miren Runtime: sandboxes for agents and untrusted code. Needs fetch, and nothing of Node.js. */
export { Client, type CallOptions, type ClientOptions, type CreateOptions, type ListOptions, type SubmitOptions } from "./client.js";
export { ConnectionFailed, MirenError, ProblemError, type ErrorClass } from "./errors.js";
export type { Event } from "./events.js";
export { Files, Sandbox, type Content, type ExecuteOptions, type RunOptions } from "./sandbox.js";
export type * from "./schema.gen.js";
export { version } from "./version.gen.js";
