import type { ErrorDetail, Problem } from "./schema.gen.js";

/** Any error of this package. */
export class MirenError extends Error {
  override name = "MirenError";
}

/** The server was not reached, or did not answer in time. */
export class ConnectionFailed extends MirenError {
  override name = "ConnectionFailed";
}

/** Class of a server's error. */
export type ErrorClass =
  | "invalid_argument"
  | "unauthenticated"
  | "permission_denied"
  | "not_found"
  | "already_exists"
  | "conflict"
  | "failed_precondition"
  | "resource_exhausted"
  | "unavailable"
  | "deadline_exceeded"
  | "unimplemented"
  | "internal";

/** The server refused a request, with a problem of RFC 9457. */
export class ProblemError extends MirenError {
  override name = "ProblemError";

  constructor(
    /** HTTP status. */
    readonly status: number,
    /** Class of the error; empty if the answer was no problem. */
    readonly errorClass: ErrorClass | "",
    /** What happened. */
    readonly detail: string,
    /** What to do next; may be empty. */
    readonly hint: string = "",
    /** Parts of the request that are wrong. */
    readonly errors: readonly ErrorDetail[] = [],
  ) {
    super(hint ? `${detail} (${hint})` : detail);
  }
}

/** Returns the error for an answer. */
export async function problemOf(response: Response): Promise<ProblemError> {
  const text = await response.text();
  let problem: Partial<Problem>;
  try {
    problem = JSON.parse(text) as Partial<Problem>;
  } catch {
    return new ProblemError(response.status, "", text || response.statusText);
  }
  return errorOf({ status: response.status, detail: response.statusText, ...problem });
}

/** Returns the error for a problem. */
export function errorOf(problem: Partial<Problem>): ProblemError {
  return new ProblemError(
    problem.status ?? 0,
    (problem.class ?? "") as ErrorClass | "",
    problem.detail ?? "",
    problem.hint,
    problem.errors ?? [],
  );
}
